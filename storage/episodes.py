"""Episodes and their grades. Every function works in the caller's transaction."""

from dataclasses import dataclass, field
from typing import Any, Protocol

import sqlalchemy as sa
from sqlmodel import Session, col, select

from storage import tasks
from storage.errors import Conflict, Invalid, NotFound
from storage.tables import Episode, GradeRow, GradeStatus
from storage.values import content_hash, new_id


@dataclass(frozen=True)
class EpisodeDraft:
    """What a client says about one attempt, before it is stored."""

    messages: list[dict[str, Any]]
    completion: str
    item: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    model: str | None = None
    client_id: str | None = None
    idempotency_key: str | None = None
    tool_calls: list[dict[str, Any]] | None = None

    def content_hash(self) -> str:
        """Identity of everything but the idempotency key. Raises Invalid for what is no JSON."""
        content = {
            "messages": self.messages,
            "completion": self.completion,
            "item": self.item,
            "group": self.group,
            "model": self.model,
            "client_id": self.client_id,
        }
        if self.tool_calls is not None:  # without any, the hash is that of the first schema
            content["tool_calls"] = self.tool_calls
        return content_hash(content)


class GradeLike(Protocol):
    """What is stored of a grade: `GradeDraft` and `GradeRow` both are one."""

    @property
    def grader_hash(self) -> str:
        """The grader's identity."""

    @property
    def status(self) -> str:
        """passed, failed or errored."""

    @property
    def score(self) -> float | None:
        """In [0, 1]; None exactly when errored."""

    @property
    def subscores(self) -> dict[str, float]:
        """Named parts of the score."""

    @property
    def error_kind(self) -> str | None:
        """Whose fault an error was."""

    @property
    def error(self) -> str | None:
        """The error's message."""

    @property
    def seconds(self) -> float:
        """How long grading took."""


@dataclass(frozen=True)
class GradeDraft:
    """A grade before it is stored."""

    grader_hash: str
    status: str
    score: float | None
    seconds: float
    subscores: dict[str, float] = field(default_factory=dict)
    error_kind: str | None = None
    error: str | None = None


def add(session: Session, task: str, draft: EpisodeDraft, grade: GradeLike) -> tuple[Episode, bool]:
    """Stores an episode with its grade; (episode, True) when it is new.

    An idempotency key the task has seen with the same content returns (the old episode, False) and
    stores nothing. Raises NotFound for an unknown task, Conflict for a seen key with other content,
    Invalid for what is no JSON or no grade; nothing of the episode is in the transaction then.
    """
    tasks.get(session, task)
    digest = draft.content_hash()
    _status(grade)  # before anything is stored: a caller may go on after the error
    old = _with_key(session, task, draft.idempotency_key)
    if old is not None:
        if old.content_hash != digest:
            raise Conflict(
                f"idempotency key {draft.idempotency_key!r} was already used for another episode"
            )
        return old, False
    episode = Episode(
        id=new_id("ep"),
        seq=_next_seq(session),
        task=task,
        messages=draft.messages,
        completion=draft.completion,
        item=draft.item,
        group_key=draft.group,
        model=draft.model,
        client_id=draft.client_id,
        idempotency_key=draft.idempotency_key,
        content_hash=digest,
        tool_calls=draft.tool_calls,
    )
    session.add(episode)
    session.flush()
    set_grade(session, episode.id, grade)
    return episode, True


def get(session: Session, episode_id: str) -> Episode:
    """The episode with that id; raises NotFound."""
    episode = session.get(Episode, episode_id)
    if episode is None:
        raise NotFound(f"there is no episode {episode_id[:80]!r}")
    return episode


def delete(session: Session, episode_id: str) -> None:
    """Deletes an episode and its grades; raises NotFound."""
    session.delete(get(session, episode_id))
    session.flush()
    session.expire_all()


def page(
    session: Session, task: str | None, cursor: str | None, limit: int
) -> tuple[list[Episode], str | None]:
    """Up to `limit` episodes after `cursor` in order of arrival; the next cursor (None: the end).

    Raises NotFound for an unknown task, Invalid for a malformed cursor or a limit below 1.
    """
    query = select(Episode).order_by(col(Episode.seq))
    if task is not None:
        tasks.get(session, task)
        query = query.where(Episode.task == task)
    if cursor is not None:
        query = query.where(col(Episode.seq) > seq_of(cursor))
    rows = list(session.exec(query.limit(checked_limit(limit) + 1)))
    more = len(rows) > limit
    return rows[:limit], str(rows[limit - 1].seq) if more else None


def count(session: Session, task: str) -> int:
    """How many episodes a task has."""
    query = select(sa.func.count()).select_from(Episode).where(Episode.task == task)
    return session.exec(query).one()


def set_grade(session: Session, episode_id: str, grade: GradeLike) -> GradeRow:
    """Stores what a grader says about an episode, in place of what the same grader said before.

    Raises NotFound for an unknown episode, Invalid for a status or a score that is none.
    """
    get(session, episode_id)
    row = grade_row(grade_of(session, episode_id, grade.grader_hash), episode_id, grade)
    session.add(row)
    session.flush()
    return row


def grade_row(old: GradeRow | None, episode_id: str, grade: GradeLike) -> GradeRow:
    """The row of a grade: the old one of the same grader, changed, or a new one.

    Raises Invalid for a status or a score that is none.
    """
    status = _status(grade)
    row = old or GradeRow(
        episode_id=episode_id,
        grader_hash=grade.grader_hash,
        status=status,
        seconds=grade.seconds,
    )
    row.status = status
    row.score = grade.score
    row.subscores = dict(grade.subscores)
    row.error_kind = grade.error_kind
    row.error = grade.error
    row.seconds = grade.seconds
    return row


def grade_of(session: Session, episode_id: str, grader_hash: str) -> GradeRow | None:
    """What one grader said about one episode, or None when it was never asked."""
    query = select(GradeRow).where(
        GradeRow.episode_id == episode_id, GradeRow.grader_hash == grader_hash
    )
    return session.exec(query).one_or_none()


def grades_of(session: Session, episode_ids: list[str]) -> dict[str, list[GradeRow]]:
    """All grades of the given episodes, oldest first; an episode without any is absent."""
    query = (
        select(GradeRow).where(col(GradeRow.episode_id).in_(episode_ids)).order_by(col(GradeRow.id))
    )
    found: dict[str, list[GradeRow]] = {}
    for row in session.exec(query):
        found.setdefault(row.episode_id, []).append(row)
    return found


def graded(session: Session, task: str, grader_hash: str) -> list[tuple[Episode, GradeRow]]:
    """The task's episodes that this grader has graded (errored ones too), in order of arrival."""
    query = (
        select(Episode, GradeRow)
        .join(GradeRow, col(GradeRow.episode_id) == col(Episode.id))
        .where(Episode.task == task, GradeRow.grader_hash == grader_hash)
        .order_by(col(Episode.seq))
    )
    return [(episode, grade) for episode, grade in session.exec(query)]


def seq_of(cursor: str) -> int:
    """The arrival number inside a cursor; raises Invalid."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise Invalid("the cursor is not one this service gave out")
    return int(cursor)


def checked_limit(limit: int) -> int:
    """The page size itself; raises Invalid below 1."""
    if limit < 1:
        raise Invalid("a page needs a limit of at least 1")
    return limit


def _with_key(session: Session, task: str, key: str | None) -> Episode | None:
    if key is None:
        return None
    query = select(Episode).where(Episode.task == task, Episode.idempotency_key == key)
    return session.exec(query).one_or_none()


def _next_seq(session: Session) -> int:
    """One more than the largest; the write transaction makes this exact."""
    return (session.exec(select(sa.func.max(col(Episode.seq)))).one() or 0) + 1


def _status(grade: GradeLike) -> GradeStatus:
    """The grade's status, checked against its score."""
    try:
        status = GradeStatus(str(grade.status))
    except ValueError as error:
        raise Invalid(f"{grade.status!r} is not a grade's status") from error
    if (grade.score is None) != (status is GradeStatus.ERRORED):
        raise Invalid("a grade has a score exactly when it is not errored")
    if grade.score is not None and not 0.0 <= grade.score <= 1.0:
        raise Invalid(f"a score lies in [0, 1], not at {grade.score}")
    return status
