"""Transactions: whole or not at all, with a clear error, from threads and processes."""

import itertools
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from storage import db, episodes, jobs, settings, tasks, versions
from storage.db import Database
from storage.episodes import EpisodeDraft, GradeDraft
from storage.errors import Busy, Conflict, Corrupt, Invalid, NoSpace, StorageError
from storage.tables import Episode, GradeRow, Task, VersionState

GRADE = GradeDraft("g1", "passed", 1.0, 0.01)


def test_the_file_is_private_and_the_pragmas_are_set(database: Database, tmp_path: Path) -> None:
    expected = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
    }
    for opened in (database.session, database.reading):
        with opened() as session:
            connection = session.connection()
            for pragma, value in expected.items():
                assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
    assert {stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()} == {0o600}


def test_rows_stay_usable_after_the_commit(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        task = make_task(session)
    assert task.name == "home"


def test_an_error_rolls_everything_back(database: Database, make_task: Callable[..., Task]) -> None:
    with pytest.raises(ZeroDivisionError), database.session() as session:
        make_task(session)
        raise ZeroDivisionError
    with database.reading() as session:
        assert tasks.list_tasks(session) == []


def test_a_row_that_refers_to_nothing_is_refused(database: Database) -> None:
    with pytest.raises(IntegrityError), database.session() as session:
        session.add(GradeRow(episode_id="ep_x", grader_hash="g", status="passed", seconds=0.0))


def test_a_reading_session_refuses_writes(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with pytest.raises(OperationalError, match="readonly"), database.reading() as session:
        make_task(session)
    with pytest.raises(OperationalError, match="readonly"), database.reading() as session:
        session.add(Task(name="x", grader={}, grader_hash="g", base_model="m"))


def test_a_reader_sees_its_snapshot_while_a_writer_commits(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.reading() as reader:
        assert tasks.list_tasks(reader) == []
        with database.session() as writer:
            make_task(writer)
        assert tasks.list_tasks(reader) == []
    with database.reading() as reader:
        assert len(tasks.list_tasks(reader)) == 1


def test_text_and_numbers_that_do_not_fit_are_invalid(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with pytest.raises(Invalid, match="Unicode"), database.session() as session:
        tasks.create(
            session, name="t", system_prompt="\ud800", grader={}, grader_hash="g", base_model="m"
        )
    with pytest.raises(Invalid, match="too large"), database.session() as session:
        make_task(session)
        jobs.create(session, task="home", trainer="t", config={}, seed=2**63, trigger="api")
    with database.reading() as session:
        assert tasks.list_tasks(session) == []


def _without_room(database: Database, session: Any) -> None:
    """Forbids SQLite to make the file any larger: a real SQLITE_FULL, as on a full disk."""
    pages = session.connection().exec_driver_sql("PRAGMA page_count").scalar_one()
    session.connection().exec_driver_sql(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_no_space_and_loses_nothing(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        make_task(session)
        kept, _ = episodes.add(session, "home", EpisodeDraft([], "kept"), GRADE)
    with pytest.raises(NoSpace, match="no space left for the database"), database.session() as full:
        _without_room(database, full)
        episodes.add(full, "home", EpisodeDraft([], "small"), GRADE)
        episodes.add(full, "home", EpisodeDraft([], "x" * 200_000), GRADE)
    database.close()  # the limit belongs to the connection
    with database.session() as session:
        assert [row.id for row in episodes.page(session, "home", None, 9)[0]] == [kept.id]
        assert session.connection().exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        episodes.add(session, "home", EpisodeDraft([], "x" * 200_000), GRADE)


def test_a_full_disk_when_the_file_is_made_is_no_space(tmp_path: Path, faults: Any) -> None:
    with faults.at(0, 28), pytest.raises(NoSpace) as caught:
        Database(tmp_path / "n.db")
    assert str(tmp_path) not in str(caught.value)


def test_other_errors_of_the_system_are_seen_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Database(tmp_path / "missing" / "n.db")


def test_a_held_database_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_task: Callable[..., Task]
) -> None:
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 1)
    first, second = Database(tmp_path / "n.db"), Database(tmp_path / "n.db")
    first.migrate()
    with first.session() as session:
        make_task(session)
        with pytest.raises(Busy, match="try again"), second.session() as other:
            tasks.list_tasks(other)
    with second.session() as other:
        assert len(tasks.list_tasks(other)) == 1
    first.close()
    second.close()


@pytest.mark.parametrize(
    "content", [b"not a database" * 1000, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "n.db").write_bytes(content)
    database = Database(tmp_path / "n.db")
    with pytest.raises(Corrupt, match="damaged") as caught:
        database.migrate()
    assert str(tmp_path) not in str(caught.value)
    database.close()
    assert (tmp_path / "n.db").read_bytes() == content


def test_an_error_sqlite_has_other_words_for_is_seen_as_it_is() -> None:
    with pytest.raises(sqlite3.ProgrammingError), db.translated():
        raise sqlite3.ProgrammingError("a bug")


def _in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Runs work(0..count-1) at the same time and returns the results; their errors are raised."""
    barrier = threading.Barrier(count)

    def together(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(together, range(count)))


@pytest.fixture
def home(database: Database, make_task: Callable[..., Task]) -> Iterator[Database]:
    """A database with the task `home`."""
    with database.session() as session:
        make_task(session)
    yield database


def test_threads_lose_no_episode_and_share_no_number(home: Database) -> None:
    def work(number: int) -> list[str]:
        ids = []
        for turn in range(5):
            with home.session() as session:
                draft = EpisodeDraft([], f"{number}.{turn}")
                ids.append(episodes.add(session, "home", draft, GRADE)[0].id)
        return ids

    stored = sorted(itertools.chain.from_iterable(_in_threads(20, work)))
    with home.reading() as session:
        rows, _ = episodes.page(session, "home", None, 1000)
        assert sorted(row.id for row in rows) == stored
        assert [row.seq for row in rows] == list(range(1, 101))


def test_threads_with_one_idempotency_key_store_one_episode(home: Database) -> None:
    def work(number: int) -> tuple[str, bool]:
        with home.session() as session:
            draft = EpisodeDraft([], "c", idempotency_key="k")
            episode, new = episodes.add(session, "home", draft, GRADE)
            return episode.id, new

    results = _in_threads(8, work)
    assert len({episode_id for episode_id, _ in results}) == 1
    assert sum(new for _, new in results) == 1


def test_threads_append_events_without_a_gap(home: Database) -> None:
    with home.session() as session:
        job = jobs.create(session, task="home", trainer="t", config={}, seed=1, trigger="api")

    def work(number: int) -> None:
        for _ in range(4):
            with home.session() as session:
                jobs.append_event(session, job.id, "progress", {"thread": number})

    _in_threads(6, work)
    with home.reading() as session:
        assert [e.seq for e in jobs.events_after(session, job.id, 0)] == list(range(1, 25))


def test_threads_claim_a_queued_job_once(home: Database) -> None:
    with home.session() as session:
        job = jobs.create(session, task="home", trainer="t", config={}, seed=1, trigger="api")

    def work(number: int) -> bool:
        try:
            with home.session() as session:
                jobs.set_status(session, job.id, jobs.JobStatus.RUNNING, {jobs.JobStatus.QUEUED})
        except Conflict:
            return False
        return True

    assert sum(_in_threads(6, work)) == 1


def test_threads_activating_leave_one_active_version(
    home: Database, make_version: Callable[..., Any]
) -> None:
    with home.session() as session:
        ids = [make_version(session, number).id for number in range(6)]

    def work(number: int) -> None:
        with home.session() as session:
            versions.activate(session, ids[number])

    _in_threads(6, work)
    with home.session() as session:
        rows = versions.list_versions(session, "home")
        [active] = [row.id for row in rows if row.state is VersionState.ACTIVE]
        assert tasks.get(session, "home").active_version_id == active
        for _ in ids:
            last = versions.rollback(session, "home")
        assert last is None


_WRITER = """
import os, sys
from pathlib import Path
from storage import settings
from storage.db import Database

database = Database(Path(sys.argv[1]))
with database.session() as session:
    settings.put(session, "whole", 1)
with database.session() as session:
    settings.put(session, "whole", 2)
    settings.put(session, "half", "x" * 1_000_000)
    print("written", flush=True)
    sys.stdin.read()
"""


def test_a_process_killed_in_a_transaction_leaves_what_was_committed(
    database: Database, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path / "nightowl.db")]
    root = Path(db.__file__).parents[1]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        os.kill(writer.pid, signal.SIGKILL)
    with database.session() as session:
        assert settings.get(session, "whole") == 1
        assert settings.get(session, "half") is None
        assert session.connection().exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"


def test_a_bug_in_a_statement_is_not_renamed(database: Database) -> None:
    with pytest.raises(OperationalError) as caught, database.session() as session:
        session.execute(sa.text("SELECT * FROM nothing"))
    assert not isinstance(caught.value, StorageError)
    with database.reading() as session:
        assert session.get(Episode, "x") is None
