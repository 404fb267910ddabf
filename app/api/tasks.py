"""Tasks: named kinds of work with their prompt, grader and expert."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, status
from pydantic import ValidationError
from sqlmodel import Session

from app.answering import FormError, task_form
from app.api.bodies import JsonRoute
from app.api.errors import ApiError, validation_error
from app.api.graders import build_grader, reads_tool_calls
from app.api.grading import TaskName, counts
from app.api.schemas import TaskCreate, TaskPublic, TaskUpdate
from app.api.wire import Deleted, Listed
from app.night import configs
from app.state import Parts, Running
from storage import episodes, tasks, versions
from storage.errors import NotFound
from storage.tables import Task

logger = logging.getLogger("nightowl")
router = APIRouter(prefix="/tasks", route_class=JsonRoute)


def public(session: Session, task: Task) -> TaskPublic:
    """A task as clients see it."""
    active = versions.active(session, task.name)
    return TaskPublic(
        name=task.name,
        system_prompt=task.system_prompt,
        tools=task.tools,
        response_schema=task.response_schema,
        grader=task.grader,
        grader_hash=task.grader_hash,
        base_model=task.base_model,
        training=task.training,
        active=None if active is None else f"{task.name}@{active.number}",
        active_version_id=task.active_version_id,
        episodes=episodes.count(session, task.name),
        grades=counts(session, task),
        created_at=task.created_at,
        updated_at=task.updated_at,
    )


@router.post("", status_code=status.HTTP_201_CREATED)
def create(body: TaskCreate, parts: Running) -> TaskPublic:
    """Defines a task for the base model that is being served."""
    served = parts.engine.info.name
    if body.name == served:
        raise ApiError(409, f"{served!r} is the base model's name", code="conflict", param="name")
    _require_served(body.base_model, served)
    grader, digest = build_grader(body.grader)
    with parts.database.session() as session:
        task = tasks.create(
            session,
            name=body.name,
            grader=grader.describe(),
            grader_hash=digest,
            base_model=served,
            system_prompt=body.system_prompt,
            tools=None if body.tools is None else [tool.plain() for tool in body.tools],
            response_schema=body.response_schema,
            training=_checked_training(body.training),
        )
        _require_sound(parts, task)
        return public(session, task)


@router.get("")
def list_all(parts: Running) -> Listed[TaskPublic]:
    """All tasks by name."""
    with parts.database.reading() as session:
        return Listed(data=[public(session, task) for task in tasks.list_tasks(session)])


@router.get("/{task}")
def get(task: TaskName, parts: Running) -> TaskPublic:
    """One task."""
    with parts.database.reading() as session:
        return public(session, tasks.get(session, task))


@router.patch("/{task}")
def update(task: TaskName, body: TaskUpdate, parts: Running) -> TaskPublic:
    """Changes a task. After a change of grader the next night grades its episodes anew."""
    _require_served(body.base_model, parts.engine.info.name)
    plain = {"system_prompt", "base_model", "response_schema"}
    changes = body.model_dump(exclude_unset=True, include=plain)
    if "tools" in body.model_fields_set:
        changes["tools"] = None if body.tools is None else [tool.plain() for tool in body.tools]
    if body.training is not None:
        changes["training"] = _checked_training(body.training)
    if body.grader is not None:
        grader, digest = build_grader(body.grader)
        changes |= {"grader": grader.describe(), "grader_hash": digest}
    with parts.database.session() as session:
        changed = tasks.update(session, task, changes)
        _require_sound(parts, changed)
        return public(session, changed)


@router.delete("/{task}")
def delete(task: TaskName, parts: Running) -> Deleted:
    """Deletes a task with its episodes, jobs and experts; refused while it is being trained."""
    with parts.database.session() as session:
        version_ids = tasks.delete(session, task)
    # Only now: files without rows are litter, rows without files would be broken experts.
    for version_id in version_ids:
        forget_expert(parts, version_id)
    parts.jobs.wake()  # it clears away what the task's jobs left on disk
    return Deleted(id=task, object="task")


@router.post("/{task}/rollback")
def rollback(task: TaskName, parts: Running) -> TaskPublic:
    """Goes back to the version that was active before, or to the base model."""
    with parts.database.session() as session:
        versions.rollback(session, task)
        return public(session, tasks.get(session, task))


def forget_expert(parts: Parts, version_id: str) -> None:
    """Removes a deleted version's files, and its copy in the engine."""
    parts.engine.forget(version_id)
    try:
        parts.experts.delete(version_id)
    except NotFound:
        logger.warning("the files of expert %s were gone already", version_id[:12])


def _require_sound(parts: Parts, task: Task) -> None:
    """Refuses schemas that answers cannot be held to, and tool calls to be graded without tools."""
    try:
        task_form(task.tools, task.response_schema).checked_grammar(parts.engine)
    except FormError as error:
        param = "tools" if error.part == "tools" else "response_schema"
        raise ApiError(400, f"{param}: {error}", code="invalid_schema", param=param) from error
    if reads_tool_calls(task.grader) and not task.tools:
        raise ApiError(
            400,
            'grader: with syntax "tools" it reads calls of the task\'s tools, and there are none',
            code="invalid_grader",
            param="tools",
        )


def _require_served(base_model: str | None, served: str) -> None:
    """Refuses a base model that cannot be trained or asked here; None leaves it open."""
    if base_model not in (None, served):
        raise ApiError(
            404,
            f"there is no base model {base_model!r} here, this service runs {served!r}",
            code="model_not_found",
            param="base_model",
        )


def _checked_training(training: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides themselves, if the trainer takes them."""
    try:
        configs.parse_named(training)
    except ValidationError as error:
        raise validation_error(error.errors(), "training") from error
    return dict(training)
