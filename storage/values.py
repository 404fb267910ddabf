"""Small values every module of storage agrees on: ids, names, time, canonical JSON."""

import hashlib
import json
import re
import secrets
from datetime import UTC, datetime
from typing import Any

from storage.errors import Invalid

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def utcnow() -> datetime:
    """The current time, timezone-aware, in UTC."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """A fresh random id: `prefix` (`ep`, `job`), an underscore, 24 hex digits."""
    return f"{prefix}_{secrets.token_hex(12)}"


def check_name(name: str) -> str:
    """The name itself, if it is a legal task or model name; raises Invalid otherwise."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name[:80]!r} is not a legal name: use 1 to 64 of a-z, 0-9, '_' and '-', "
            "starting with a letter or digit"
        )
    return name


def is_sha256(text: str) -> bool:
    """True for 64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces. Raises Invalid for what is no JSON."""
    return _json(value, sort_keys=True)


def stored_json(value: Any) -> str:
    """JSON text that keeps the order of keys (it shows in prompts). Raises Invalid for no JSON."""
    return _json(value, sort_keys=False)


def _json(value: Any, *, sort_keys: bool) -> str:
    try:
        text = json.dumps(
            value,
            sort_keys=sort_keys,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
        text.encode()  # a lone surrogate is legal in a Python string, not in UTF-8
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"not a JSON value: {error}") from error
    return text


def content_hash(value: Any) -> str:
    """sha256 (hex) of a value's canonical JSON: its identity."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
