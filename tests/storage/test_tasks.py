"""Tasks and what hangs on them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlmodel import Session, select

from storage import episodes, jobs, settings, tasks, versions
from storage.db import Database
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import JobStatus, Row, Setting, Task, UtcDateTime


def test_a_created_task_is_found_and_listed_by_name(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        for name in ("home", "alarm"):
            make_task(session, name)
    with database.reading() as session:
        task = tasks.get(session, "home")
        assert (task.system_prompt, task.grader, task.training) == (
            "You are a house.",
            {"type": "string_check"},
            {},
        )
        assert (task.tools, task.response_schema, task.active_version_id) == (None, None, None)
        assert task.created_at.tzinfo is UTC
        assert [row.name for row in tasks.list_tasks(session)] == ["alarm", "home"]


def test_json_keeps_the_order_of_its_keys(database: Database) -> None:
    tools = [{"zebra": 1, "apple": {"b": 1, "a": 2}}]
    with database.session() as session:
        tasks.create(
            session, name="t", grader={}, grader_hash="g", base_model="m", tools=tools
        )  # fmt: skip
    with database.reading() as session:
        assert str(tasks.get(session, "t").tools) == str(tools)


def test_a_taken_name_is_a_conflict(session: Session, make_task: Callable[..., Task]) -> None:
    make_task(session)
    with pytest.raises(Conflict, match="already a task 'home'"):
        make_task(session)


def test_an_illegal_name_is_invalid(session: Session, make_task: Callable[..., Task]) -> None:
    with pytest.raises(Invalid):
        make_task(session, "../home")


def test_an_unknown_task_is_not_found(session: Session) -> None:
    for operation in (tasks.get, tasks.delete):
        with pytest.raises(NotFound, match="no task 'home'"):
            operation(session, "home")


def test_an_update_changes_what_it_names_and_the_time(
    database: Database, make_task: Callable[..., Task]
) -> None:
    with database.session() as session:
        before = make_task(session).updated_at
    with database.session() as session:
        tasks.update(session, "home", {"system_prompt": "New.", "training": {"sigma": 0.1}})
    with database.reading() as session:
        task = tasks.get(session, "home")
        assert (task.system_prompt, task.training) == ("New.", {"sigma": 0.1})
        assert task.grader_hash == "g1"
        assert task.updated_at > before


def test_an_update_of_anything_else_is_invalid_and_changes_nothing(
    session: Session, make_task: Callable[..., Task]
) -> None:
    make_task(session)
    with pytest.raises(Invalid, match="active_version_id, name cannot be changed"):
        tasks.update(session, "home", {"name": "x", "active_version_id": "y", "training": {"a": 1}})
    assert tasks.get(session, "home").training == {}


def test_deleting_a_task_deletes_all_that_hangs_on_it_and_names_its_versions(
    database: Database, make_task: Callable[..., Task], make_version: Callable[..., Any]
) -> None:
    with database.session() as session:
        make_task(session)
        make_task(session, "other")
        draft = episodes.EpisodeDraft([], "c")
        episodes.add(session, "home", draft, episodes.GradeDraft("g1", "passed", 1.0, 0.1))
        kept, _ = episodes.add(
            session, "other", draft, episodes.GradeDraft("g1", "passed", 1.0, 0.1)
        )
        job = jobs.create(session, task="home", trainer="t", config={}, seed=1, trigger="api")
        jobs.append_event(session, job.id, "x", {})
        ids = [make_version(session, n, job_id=job.id).id for n in (1, 2)]
        versions.activate(session, ids[0])
        jobs.set_status(session, job.id, JobStatus.RUNNING)
        jobs.set_status(session, job.id, JobStatus.SUCCEEDED, version_id=ids[0])
    with database.session() as session:
        assert tasks.delete(session, "home") == ids
    with database.reading() as session:
        left = {
            table.name: len(session.execute(select(table)).all())
            for table in Row.metadata.tables.values()
        }
        assert left == {**dict.fromkeys(left, 0), "tasks": 1, "episodes": 1, "grades": 1}
        assert episodes.get(session, kept.id).task == "other"


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.PAUSED])
def test_a_task_in_training_cannot_be_deleted(
    session: Session, make_task: Callable[..., Task], status: JobStatus
) -> None:
    make_task(session)
    job = jobs.create(session, task="home", trainer="t", config={}, seed=1, trigger="api")
    jobs.set_status(session, job.id, status)
    with pytest.raises(Conflict, match="is being trained"):
        tasks.delete(session, "home")


def test_settings_are_replaced_whole_and_absent_ones_are_none(database: Database) -> None:
    with database.session() as session:
        assert settings.get(session, "schedule") is None
        settings.put(session, "schedule", {"at": "03:00"})
        settings.put(session, "schedule", {"enabled": False})
    with database.session() as session:
        assert settings.get(session, "schedule") == {"enabled": False}
        settings.put(session, "schedule", None)
    with database.reading() as session:
        assert settings.get(session, "schedule") is None
        assert session.get(Setting, "schedule") is not None
    with pytest.raises(Invalid), database.session() as session:
        settings.put(session, "schedule", {"at": float("nan")})


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="timezone"):
        UtcDateTime().process_bind_param(datetime(2026, 1, 1), None)  # type: ignore[arg-type]
