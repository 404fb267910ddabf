"""Versions of a task's expert: which exist and which is active. The files are `storage.experts`'.

Every function works in the caller's transaction, so an activation is whole or did not happen.
"""

from typing import Any

from sqlmodel import Session, col, select

from storage import tasks
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import Activation, Expert, Task, Version, VersionState
from storage.values import is_sha256, utcnow


def add(
    session: Session,
    *,
    id: str,
    task: str,
    kind: str,
    base_model: str,
    base_hash: str,
    basis_hash: str | None,
    nbytes: int,
    manifest: dict[str, Any],
    parent_id: str | None = None,
    job_id: str | None = None,
) -> Version:
    """Registers stored expert files as the task's next version, a candidate.

    The same files again return the version they already are. Numbers are never given out twice.
    Raises NotFound for an unknown task, Invalid for an id that is no sha256, Conflict when the
    files belong to another task.
    """
    tasks.get(session, task)
    if not is_sha256(id):
        raise Invalid("a version's id is the sha256 of its files")
    old = session.get(Version, id)
    if old is not None:
        if old.task != task:
            raise Conflict(f"version {id[:12]} belongs to task {old.task!r}")
        return old
    version = Version(
        id=id,
        task=task,
        number=_next_number(session, task, kind),
        parent_id=parent_id,
        base_model=base_model,
        base_hash=base_hash,
        basis_hash=basis_hash,
        bytes=nbytes,
        manifest=manifest,
        job_id=job_id,
    )
    session.add(version)
    session.flush()
    return version


def get(session: Session, version_id: str) -> Version:
    """The version with that id; raises NotFound."""
    version = session.get(Version, version_id)
    if version is None:
        raise NotFound(f"there is no expert version {version_id[:80]!r}")
    return version


def list_versions(session: Session, task: str | None = None) -> list[Version]:
    """All versions, or those of one task, by task and number. Raises NotFound (the task)."""
    query = select(Version).order_by(col(Version.task), col(Version.number))
    if task is not None:
        tasks.get(session, task)
        query = query.where(Version.task == task)
    return list(session.exec(query))


def resolve(session: Session, task: str, number: int) -> Version:
    """The version `task@number`; raises NotFound."""
    tasks.get(session, task)
    query = select(Version).where(Version.task == task, Version.number == number)
    version = session.exec(query).one_or_none()
    if version is None:
        raise NotFound(f"task {task!r} has no expert version {number}")
    return version


def active(session: Session, task: str) -> Version | None:
    """The task's active version, or None when the base answers. Raises NotFound (the task)."""
    version_id = tasks.get(session, task).active_version_id
    return None if version_id is None else get(session, version_id)


def reject(session: Session, version_id: str) -> Version:
    """Marks a candidate as not better. Raises NotFound, Conflict for what is no candidate."""
    version = get(session, version_id)
    if version.state is not VersionState.CANDIDATE:
        raise Conflict(f"{_name(version)} is {version.state}, only a candidate can be rejected")
    version.state = VersionState.REJECTED
    session.add(version)
    session.flush()
    return version


def activate(session: Session, version_id: str) -> Version:
    """Makes a candidate or retired version the active one and retires the one before it.

    Activating the active version changes nothing. Raises NotFound, Conflict for a rejected version.
    """
    version = get(session, version_id)
    if version.state is VersionState.REJECTED:
        raise Conflict(f"{_name(version)} was rejected: it did no better than what was active")
    if version.state is VersionState.ACTIVE:
        return version
    _switch(session, tasks.get(session, version.task), version)
    session.add(Activation(task=version.task, version_id=version.id))
    session.flush()
    return version


def rollback(session: Session, task: str) -> Version | None:
    """Goes back to the version that was active before this one, or to the base (None).

    Raises NotFound for an unknown task, Conflict when the base already answers.
    """
    row = tasks.get(session, task)
    if row.active_version_id is None:
        raise Conflict(f"task {task!r} has no active expert to roll back")
    previous = _pop_activations(session, row)
    _switch(session, row, previous)
    session.flush()
    return previous


def delete(session: Session, version_id: str) -> None:
    """Forgets a version; its folder is the caller's to delete after the commit.

    Raises NotFound, Conflict for the active version.
    """
    version = get(session, version_id)
    if version.state is VersionState.ACTIVE:
        raise Conflict(f"{_name(version)} is active; activate another one or roll back first")
    session.delete(version)
    session.flush()
    session.expire_all()


def _next_number(session: Session, task: str, kind: str) -> int:
    """Counts the task's expert up, making its row on the first version."""
    expert = session.get(Expert, task) or Expert(task=task, kind=kind)
    expert.kind = kind
    expert.last_number += 1
    session.add(expert)
    session.flush()
    return expert.last_number


def _switch(session: Session, task: Task, new: Version | None) -> None:
    """Points the task at `new` (None: the base) and retires what was active."""
    if task.active_version_id is not None:
        old = get(session, task.active_version_id)
        old.state = VersionState.RETIRED
        session.add(old)
    if new is not None:
        new.state = VersionState.ACTIVE
        new.activated_at = utcnow()
        session.add(new)
    task.active_version_id = None if new is None else new.id
    task.updated_at = utcnow()
    session.add(task)


def _pop_activations(session: Session, task: Task) -> Version | None:
    """Drops the current version from the top of the stack; returns what lies beneath it.

    Deleting a version can leave the current one twice in a row, so all of them go.
    """
    stack = session.exec(
        select(Activation).where(Activation.task == task.name).order_by(col(Activation.id).desc())
    )
    for entry in stack.all():
        if entry.version_id != task.active_version_id:
            return get(session, entry.version_id)
        session.delete(entry)
    return None


def _name(version: Version) -> str:
    return f"expert {version.task}@{version.number}"
