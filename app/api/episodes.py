"""Episodes: stored for good and graded before the answer, one or a list at a time."""

from typing import Annotated

from fastapi import APIRouter, Query, Response, status
from sqlmodel import Session

from app.api import graders
from app.api.bodies import JsonRoute
from app.api.errors import ApiError
from app.api.schemas import EpisodeBody, EpisodeCreate, EpisodePublic
from app.api.wire import Deleted, Listed, called, said
from app.night.data import grade_draft
from app.night.grading import grader_of, sample_of
from app.security import Name
from app.state import Parts, Running
from storage import episodes, tasks
from storage.episodes import EpisodeDraft, GradeDraft
from storage.errors import Conflict, Invalid, NotFound, StorageError
from storage.tables import Episode, GradeRow, Task

router = APIRouter(prefix="/episodes", route_class=JsonRoute)

_ASKED_AT_ONCE = 500  # SQLite bounds the variables of a statement


@router.post("", status_code=status.HTTP_201_CREATED)
def create(
    body: EpisodeBody, response: Response, parts: Running
) -> EpisodePublic | Listed[EpisodePublic]:
    """Stores and grades episodes: all of a list, or none.

    Episodes whose idempotency key is known are answered as they were stored; 200 if all were.
    """
    drafts = body if isinstance(body, list) else [body]
    graded = _grade_all(parts, drafts, listed=isinstance(body, list))
    rows: list[Episode] = []
    new = 0
    with parts.database.session() as session:
        for index, (draft, grade) in enumerate(zip(drafts, graded, strict=True)):
            place = f"{index}." if isinstance(body, list) else ""
            try:
                episode, is_new = episodes.add(session, draft.task, _draft(draft), grade)
            except StorageError as error:
                raise _refused(error, place) from error
            new += is_new
            rows.append(episode)
        stored = _public(session, rows)
    if not new:
        response.status_code = status.HTTP_200_OK
    return Listed(data=stored) if isinstance(body, list) else stored[0]


@router.get("")
def list_page(
    parts: Running,
    task: Annotated[Name | None, Query()] = None,
    cursor: Annotated[str | None, Query(max_length=32)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Listed[EpisodePublic]:
    """Episodes in order of arrival."""
    with parts.database.reading() as session:
        rows, following = episodes.page(session, task, cursor, limit)
        return Listed(data=_public(session, rows), next_cursor=following)


@router.get("/{episode_id}")
def get(episode_id: str, parts: Running) -> EpisodePublic:
    """One episode."""
    with parts.database.reading() as session:
        return _public(session, [episodes.get(session, episode_id)])[0]


@router.delete("/{episode_id}")
def delete(episode_id: str, parts: Running) -> Deleted:
    """Deletes an episode with its grades. Experts trained on it stay as they are."""
    with parts.database.session() as session:
        episodes.delete(session, episode_id)
    return Deleted(id=episode_id, object="episode")


def _grade_all(parts: Parts, drafts: list[EpisodeCreate], *, listed: bool) -> list[GradeDraft]:
    """A grade for each episode, made outside the write transaction that others wait for."""
    found: dict[str, Task] = {}
    with parts.database.reading() as session:
        for index, draft in enumerate(drafts):
            if draft.task in found:
                continue
            try:
                found[draft.task] = tasks.get(session, draft.task)
            except NotFound as error:
                raise _refused(error, f"{index}." if listed else "") from error
    graded: dict[int, GradeDraft] = {}
    for task in found.values():
        of = [index for index, draft in enumerate(drafts) if draft.task == task.name]
        answers = [drafts[index].completion for index in of]
        samples = [sample_of(said(answer), called(answer)) for answer in answers]
        grades = grader_of(parts.graders, parts.engine.tool_form, task, task.grader)(
            [(sample, drafts[i].item) for sample, i in zip(samples, of, strict=True)]
        )
        graded |= zip(of, [grade_draft(grade, task.grader_hash) for grade in grades], strict=True)
    return [graded[index] for index in range(len(drafts))]


def _refused(error: StorageError, place: str) -> Exception:
    """Why one episode cannot be stored, with its place in the list; other errors as they are."""
    match error:
        case NotFound():
            return ApiError(404, str(error), code="task_not_found", param=f"{place}task")
        case Conflict():
            param = f"{place}idempotency_key"
            return ApiError(409, str(error), code="conflict", param=param)
        case Invalid():
            return ApiError(400, str(error), code="invalid_value", param=place.rstrip(".") or None)
    return error


def _draft(body: EpisodeCreate) -> EpisodeDraft:
    return EpisodeDraft(
        messages=[message.plain() for message in body.messages],
        completion=said(body.completion),
        item=body.item,
        group=body.group,
        model=body.model,
        client_id=body.client_id,
        idempotency_key=body.idempotency_key,
        tool_calls=called(body.completion),
    )


def _public(session: Session, rows: list[Episode]) -> list[EpisodePublic]:
    """Episodes as clients see them, each with what its task's grader of today said."""
    hashes = {name: tasks.get(session, name).grader_hash for name in {row.task for row in rows}}
    grades = {
        (grade.episode_id, grade.grader_hash): grade
        for start in range(0, len(rows), _ASKED_AT_ONCE)
        for found in episodes.grades_of(
            session, [row.id for row in rows[start : start + _ASKED_AT_ONCE]]
        ).values()
        for grade in found
    }
    return [_with_grade(row, grades.get((row.id, hashes[row.task]))) for row in rows]


def _with_grade(episode: Episode, grade: GradeRow | None) -> EpisodePublic:
    return EpisodePublic(
        id=episode.id,
        task=episode.task,
        messages=episode.messages,
        completion=episode.completion,
        tool_calls=episode.tool_calls,
        item=episode.item,
        group=episode.group_key,
        model=episode.model,
        client_id=episode.client_id,
        idempotency_key=episode.idempotency_key,
        created_at=episode.created_at,
        grade=None if grade is None else graders.public(grade, grade.grader_hash),
    )
