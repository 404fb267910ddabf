"""Tasks: created, changed and deleted whole. Every function works in the caller's transaction."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session, col, select

from storage.errors import Conflict, Invalid, NotFound
from storage.tables import Job, JobStatus, Task, Version
from storage.values import check_name, utcnow

CHANGEABLE = frozenset(
    {
        "system_prompt",
        "tools",
        "response_schema",
        "grader",
        "grader_hash",
        "base_model",
        "training",
    }
)


def create(
    session: Session,
    *,
    name: str,
    grader: dict[str, Any],
    grader_hash: str,
    base_model: str,
    system_prompt: str = "",
    tools: Any = None,
    response_schema: Any = None,
    training: dict[str, Any] | None = None,
) -> Task:
    """Stores a new task. Raises Invalid for an illegal name, Conflict for one that is taken."""
    check_name(name)
    if session.get(Task, name) is not None:
        raise Conflict(f"there is already a task {name!r}")
    task = Task(
        name=name,
        system_prompt=system_prompt,
        tools=tools,
        response_schema=response_schema,
        grader=grader,
        grader_hash=grader_hash,
        base_model=base_model,
        training=training or {},
    )
    session.add(task)
    session.flush()
    return task


def get(session: Session, name: str) -> Task:
    """The task of that name; raises NotFound."""
    task = session.get(Task, name)
    if task is None:
        raise NotFound(f"there is no task {name[:80]!r}")
    return task


def list_tasks(session: Session) -> list[Task]:
    """All tasks by name."""
    return list(session.exec(select(Task).order_by(col(Task.name))))


def update(session: Session, name: str, changes: Mapping[str, Any]) -> Task:
    """Replaces the given columns (of those in CHANGEABLE). Raises NotFound, Invalid."""
    unknown = sorted(set(changes) - CHANGEABLE)
    if unknown:
        raise Invalid(f"a task's {', '.join(unknown)} cannot be changed")
    task = get(session, name)
    for key, value in changes.items():
        setattr(task, key, value)
    task.updated_at = utcnow()
    session.add(task)
    session.flush()
    return task


def delete(session: Session, name: str) -> list[str]:
    """Deletes a task with its episodes, grades, jobs and versions.

    Returns the ids of the deleted versions, whose folders the caller deletes after the commit.
    Raises NotFound, and Conflict while a job of the task is running or paused.
    """
    task = get(session, name)
    busy = select(Job.id).where(
        Job.task == name, col(Job.status).in_([JobStatus.RUNNING, JobStatus.PAUSED])
    )
    job_id = session.exec(busy).first()
    if job_id is not None:
        raise Conflict(f"task {name!r} is being trained by {job_id}; cancel that job first")
    versions = list(session.exec(select(Version.id).where(Version.task == name)))
    session.delete(task)
    session.flush()
    session.expire_all()  # the database deleted rows this session may still hold
    return versions
