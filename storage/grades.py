"""The grades of a whole task under one grader. Every function works in the caller's transaction.

Grades are kept per grader (by hash): a changed grader starts with none, the old ones stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlmodel import Session, col, select

from storage import episodes, tasks
from storage.episodes import GradeLike, checked_limit
from storage.tables import Episode, GradeRow, GradeStatus


@dataclass(frozen=True)
class Counts:
    """How many of a task's episodes one grader passed, failed, could not grade (by kind of error),
    and has not been asked about."""

    passed: int = 0
    failed: int = 0
    errored: dict[str, int] = field(default_factory=dict)
    ungraded: int = 0

    @property
    def graded(self) -> int:
        """Episodes the grader was asked about."""
        return self.passed + self.failed + sum(self.errored.values())

    @property
    def error_share(self) -> float | None:
        """Share of errored grades among all there are; None without any."""
        return sum(self.errored.values()) / self.graded if self.graded else None


@dataclass(frozen=True)
class FrequentError:
    """An error, and how many episodes have it."""

    kind: str
    error: str
    count: int


def counts(session: Session, task: str, grader_hash: str) -> Counts:
    """What one grader said of a task's episodes, counted."""
    query = (
        select(GradeRow.status, GradeRow.error_kind, sa.func.count())
        .join(Episode, col(Episode.id) == col(GradeRow.episode_id))
        .where(Episode.task == task, GradeRow.grader_hash == grader_hash)
        .group_by(col(GradeRow.status), col(GradeRow.error_kind))
        .order_by(col(GradeRow.error_kind))
    )
    found = list(session.exec(query))
    of = {status: sum(n for one, _, n in found if one is status) for status in GradeStatus}
    return Counts(
        passed=of[GradeStatus.PASSED],
        failed=of[GradeStatus.FAILED],
        errored={str(kind): n for status, kind, n in found if status is GradeStatus.ERRORED},
        ungraded=episodes.count(session, task) - sum(of.values()),
    )


def most_frequent_error(session: Session, task: str, grader_hash: str) -> FrequentError | None:
    """The error that most of a task's episodes have under one grader, None without errors."""
    number = sa.func.count()
    query = (
        select(GradeRow.error_kind, GradeRow.error, number)
        .join(Episode, col(Episode.id) == col(GradeRow.episode_id))
        .where(
            Episode.task == task,
            GradeRow.grader_hash == grader_hash,
            GradeRow.status == GradeStatus.ERRORED,
        )
        .group_by(col(GradeRow.error_kind), col(GradeRow.error))
        .order_by(number.desc(), col(GradeRow.error))
    )
    first = session.exec(query.limit(1)).first()
    return None if first is None else FrequentError(str(first[0]), str(first[1]), first[2])


def waiting(
    session: Session, task: str, grader_hash: str, *, after: int, limit: int, errored: bool
) -> list[Episode]:
    """Up to `limit` episodes that a grader has not graded, of those with a `seq` above `after`.

    In order of arrival. With `errored` also those whose grade errored. Raises NotFound for an
    unknown task, Invalid for a limit below 1.
    """
    tasks.get(session, task)
    done = sa.exists().where(
        col(GradeRow.episode_id) == col(Episode.id), col(GradeRow.grader_hash) == grader_hash
    )
    if errored:
        done = done.where(col(GradeRow.status) != GradeStatus.ERRORED)
    query = (
        select(Episode)
        .where(Episode.task == task, col(Episode.seq) > after, ~done)
        .order_by(col(Episode.seq))
    )
    return list(session.exec(query.limit(checked_limit(limit))))


def store(session: Session, grader_hash: str, given: Mapping[str, GradeLike]) -> int:
    """Stores one grader's grades, at most 500, by episode id, and says how many.

    An episode that was deleted meanwhile has none. Raises Invalid for a grade that is none.
    """
    present = set(session.exec(select(Episode.id).where(col(Episode.id).in_(given))))
    query = select(GradeRow).where(
        col(GradeRow.episode_id).in_(present), GradeRow.grader_hash == grader_hash
    )
    old = {row.episode_id: row for row in session.exec(query)}
    for episode_id in given:
        if episode_id in present:
            row = episodes.grade_row(old.get(episode_id), episode_id, given[episode_id])
            session.add(row)
    session.flush()
    return len(present)


def newest(
    session: Session, task: str, grader_hash: str, limit: int
) -> list[tuple[Episode, GradeRow | None]]:
    """A task's last `limit` episodes, in order of arrival, with this grader's grade or None.

    Raises NotFound for an unknown task, Invalid for a limit below 1.
    """
    tasks.get(session, task)
    query = (
        select(Episode, GradeRow)
        .outerjoin(
            GradeRow,
            sa.and_(
                col(GradeRow.episode_id) == col(Episode.id),
                col(GradeRow.grader_hash) == grader_hash,
            ),
        )
        .where(Episode.task == task)
        .order_by(col(Episode.seq).desc())
        .limit(checked_limit(limit))
    )
    found: list[tuple[Episode, GradeRow | None]] = list(session.exec(query))
    return found[::-1]
