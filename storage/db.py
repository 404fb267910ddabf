"""The SQLite database: opening, migrating, transactions that commit or end in a clear error."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import NullPool
from sqlmodel import Session

from storage.errors import Busy, Corrupt, Invalid, NoSpace, SchemaTooNew, StorageError, is_no_space
from storage.values import stored_json

BUSY_TIMEOUT_MS = 5000
_PRIMARY_CODE = 0xFF  # SQLite's extended result codes keep the primary one in the low byte


class Database:
    """One SQLite file. Thread-safe: every session has a connection of its own.

    Writers queue up at BEGIN (a transaction that reads first and writes later would otherwise fail
    at once, without waiting, when another writer came between).
    """

    def __init__(self, path: Path) -> None:
        """Creates an empty private file if there is none; the folder must exist."""
        with translated():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._path = path
        self._writers = _engine(path, begin="BEGIN IMMEDIATE")
        self._readers = _engine(path, begin="BEGIN", query_only=True)

    def migrate(self) -> None:
        """Brings the schema to this version in one transaction: all of it or nothing.

        Raises SchemaTooNew for a database of a later version, Corrupt for what is no database.
        """
        # Rebuilding a table must not cascade into its children, and SQLite ignores a change of
        # foreign_keys inside a transaction: so a connection of its own, checked before the commit.
        engine = _engine(self._path, begin="BEGIN IMMEDIATE", foreign_keys=False, pooled=False)
        with translated(), engine.begin() as connection:
            config = alembic_config()
            _refuse_later_schema(connection, config)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            if broken:
                raise Corrupt(f"{len(broken)} rows refer to rows that do not exist")

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A write transaction: committed on success, rolled back on any error.

        Keep it short, others wait for it. Rows stay usable after the commit. Raises NoSpace, Busy,
        Corrupt, Invalid for what SQLite reports; nothing of the transaction is kept then.
        """
        with translated(), Session(self._writers, expire_on_commit=False) as session:
            yield session
            session.commit()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A read-only snapshot that never waits for a writer; SQLite refuses a write in it."""
        with translated(), Session(self._readers, expire_on_commit=False) as session:
            yield session
            session.commit()  # writes nothing, but a forgotten pending row is refused, not lost

    def close(self) -> None:
        """Closes the pooled connections; the last one folds the write-ahead log into the file."""
        self._readers.dispose()
        self._writers.dispose()


def alembic_config() -> Config:
    """Alembic's configuration for the migrations inside this package."""
    config = Config()
    config.set_main_option("script_location", "storage:migrations")
    config.set_main_option("path_separator", "os")
    return config


def _refuse_later_schema(connection: sa.Connection, config: Config) -> None:
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise SchemaTooNew(
            "the database was written by a later version of nightowl; "
            "install that version or a later one"
        )


def _engine(
    path: Path,
    *,
    begin: str,
    query_only: bool = False,
    foreign_keys: bool = True,
    pooled: bool = True,
) -> sa.Engine:
    """An engine whose transactions start with `begin`; the pragmas are set on every connection."""
    # As many connections as threads: SQLite itself makes writers wait, and says so in the end.
    pool: dict[str, Any] = {"max_overflow": -1} if pooled else {"poolclass": NullPool}
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), json_serializer=stored_json, **pool
    )
    pragmas = (
        f"busy_timeout = {BUSY_TIMEOUT_MS}",
        "journal_mode = WAL",
        "synchronous = FULL",
        f"foreign_keys = {int(foreign_keys)}",
        f"query_only = {int(query_only)}",
    )

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        try:
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            connection.close()  # the pool forgets a connection that fails here
            raise

    @sa.event.listens_for(engine, "begin")
    def _begun(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def translated() -> Iterator[None]:
    """Turns what SQLite and the file system report about the disk into storage's own errors."""
    try:
        yield
    except (StatementError, sqlite3.Error, OSError, UnicodeEncodeError, OverflowError) as error:
        known = _known(error)
        if known is None:
            raise
        raise known from error


def _known(error: Exception) -> StorageError | None:
    """Storage's name for an error, or None for one that is a bug and must be seen as it is."""
    cause = error.orig if isinstance(error, StatementError) else error
    match cause:
        case StorageError():
            return cause
        case UnicodeEncodeError():
            return Invalid("text that is not valid Unicode cannot be stored")
        case OverflowError():
            return Invalid("a number is too large to be stored")
        case sqlite3.Error():
            return _known_to_sqlite(cause)
        case _ if is_no_space(cause):
            return NoSpace("no space left for the database; the change was not stored")
    return None


def _known_to_sqlite(error: sqlite3.Error) -> StorageError | None:
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code == sqlite3.SQLITE_FULL:
        return NoSpace("no space left for the database; the change was not stored")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("another process is writing to the database; try again")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return Corrupt(f"the database file is damaged: {error}")
    return None
