"""Named JSON values of the service. Every function works in the caller's transaction."""

from typing import Any

from sqlmodel import Session

from storage.tables import Setting


def get(session: Session, key: str) -> Any:
    """The stored value, or None when there is none."""
    row = session.get(Setting, key)
    return None if row is None else row.value


def put(session: Session, key: str, value: Any) -> None:
    """Stores a value in place of the one before. Raises Invalid for what is no JSON."""
    row = session.get(Setting, key) or Setting(key=key, value=None)
    row.value = value
    session.add(row)
    session.flush()
