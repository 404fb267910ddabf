"""The names a chat request can ask for, and what each of them stands for.

A base model's id is the plain base. A task's name is its active expert, or the base with the
task's prompt while there is none. `task@3` is that version. Any other name is an error, never the
base without a word.
"""

import re
from dataclasses import dataclass

from fastapi import APIRouter
from sqlmodel import Session

from app.api.bodies import JsonRoute
from app.api.chat_schemas import ModelPublic
from app.api.errors import ApiError
from app.api.experts import require_fitting
from app.api.wire import Listed
from app.state import Parts, Running
from storage import tasks, versions
from storage.errors import NotFound
from storage.tables import Task, Version

router = APIRouter(prefix="/models", route_class=JsonRoute)

_VERSION = re.compile(r"([^@]+)@([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Answerer:
    """Who answers: the base (`expert` None) or a version's id, and the task it works on."""

    name: str
    expert: str | None
    task: Task | None


def resolve(parts: Parts, model: str) -> Answerer:
    """Who answers for a model's name; 404 for an unknown name, 409 for another base model's."""
    base = parts.engine.info.name
    if model == base:
        return Answerer(base, None, None)
    match = _VERSION.fullmatch(model)
    try:
        with parts.database.reading() as session:
            task = tasks.get(session, match[1] if match else model)
            version = (
                versions.resolve(session, task.name, int(match[2]))
                if match
                else versions.active(session, task.name)
            )
    except NotFound as error:
        raise ApiError(
            404, f"there is no model {model!r}", code="model_not_found", param="model"
        ) from error
    if version is None:
        _require_base(task, base)
        return Answerer(base, None, task)
    require_fitting(version, parts.engine.info.base_hash, parts.engine.basis_hash)
    return Answerer(f"{task.name}@{version.number}", version.id, task)


def _require_base(task: Task, served: str) -> None:
    """Refuses a task that was defined for another base model."""
    if task.base_model != served:
        raise ApiError(
            409,
            f"task {task.name!r} is for base model {task.base_model!r}, this service runs"
            f" {served!r}; change the task's base_model to move it",
            code="foreign_task",
            param="model",
        )


@router.get("")
def list_all(parts: Running) -> Listed[ModelPublic]:
    """The base model, the tasks, and all versions of their experts."""
    with parts.database.reading() as session:
        return Listed(data=_all(parts, session))


@router.get("/{model}")
def get(model: str, parts: Running) -> ModelPublic:
    """One of them."""
    with parts.database.reading() as session:
        found = [known for known in _all(parts, session) if known.id == model]
    if not found:
        raise ApiError(404, f"there is no model {model!r}", code="model_not_found", param="model")
    return found[0]


def _all(parts: Parts, session: Session) -> list[ModelPublic]:
    """Everything `resolve` takes: what was trained on another base model is not among it."""
    info = parts.engine.info
    known = {
        version.id: version
        for version in versions.list_versions(session)
        if version.base_hash == info.base_hash
    }
    started = int(parts.started_at.timestamp())
    listed = [ModelPublic(id=info.name, created=started, root=info.name, parent=None)]
    for task in tasks.list_tasks(session):
        answered = task.active_version_id in known
        if answered or (task.active_version_id is None and task.base_model == info.name):
            parent = _name(known, task.active_version_id) or info.name
            created = int(task.created_at.timestamp())
            listed.append(ModelPublic(id=task.name, created=created, root=info.name, parent=parent))
    for version in known.values():
        listed.append(
            ModelPublic(
                id=f"{version.task}@{version.number}",
                created=int(version.created_at.timestamp()),
                root=info.name,
                parent=_name(known, version.parent_id) or info.name,
            )
        )
    return listed


def _name(known: dict[str, Version], version_id: str | None) -> str | None:
    version = None if version_id is None else known.get(version_id)
    return None if version is None else f"{version.task}@{version.number}"
