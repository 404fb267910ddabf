"""A migrated database with a task in it, and a way to make the n-th file operation fail."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from storage import tasks, versions
from storage.db import Database
from storage.tables import Task, Version


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty database of the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("storage") / "empty.db"
    made = Database(path)
    made.migrate()
    made.close()
    return path


@pytest.fixture
def database(migrated: Path, tmp_path: Path) -> Iterator[Database]:
    """A fresh database of the newest schema."""
    shutil.copy(migrated, tmp_path / "nightowl.db")
    opened = Database(tmp_path / "nightowl.db")
    yield opened
    opened.close()


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    """One write transaction, with nothing in the database."""
    with database.session() as opened:
        yield opened


def _make_task(session: Session, name: str = "home") -> Task:
    return tasks.create(
        session,
        name=name,
        system_prompt="You are a house.",
        grader={"type": "string_check"},
        grader_hash="g1",
        base_model="smollm2-135m",
    )


def _make_version(session: Session, number: int, task: str = "home", **more: Any) -> Version:
    return versions.add(
        session,
        id=f"{number:064x}",
        task=task,
        kind=more.pop("kind", "spectral"),
        base_model="smollm2-135m",
        base_hash="b",
        basis_hash="v",
        nbytes=10,
        manifest={"number": number},
        **more,
    )


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """Stores a task of a given name."""
    return _make_task


@pytest.fixture
def make_version() -> Callable[..., Version]:
    """Registers a version whose id is made from a number."""
    return _make_version


class Faults:
    """Makes the n-th file operation fail, through the functions of `os` that everything ends in.

    With `dead`, every operation after it fails too, as if the process had been killed there.
    """

    OPERATIONS = (
        "open",
        "write",
        "fsync",
        "close",
        "mkdir",
        "rename",
        "replace",
        "unlink",
        "rmdir",
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.fired = False
        self.failed_on = ""

    @contextmanager
    def at(self, n: int, code: int, *, dead: bool = False) -> Iterator[None]:
        """Operation n (from 0) raises OSError(code); `fired` tells whether it was ever reached."""
        self.fired, self.failed_on, count = False, "", 0

        def failing(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count - 1 == n or (dead and self.fired):
                    self.fired = True
                    self.failed_on = self.failed_on or name
                    if name == "close":
                        real(*args, **kwargs)  # a failed close has closed, or tests would leak
                    raise OSError(code, os.strerror(code))
                return real(*args, **kwargs)

            return call

        with self._monkeypatch.context() as patch:
            for name in self.OPERATIONS:
                patch.setattr(os, name, failing(name, getattr(os, name)))
            yield


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """The injector."""
    return Faults(monkeypatch)
