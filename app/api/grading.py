"""Grading the stored episodes of a task: a dry run, again after a change of grader, trust checks.

All of it is bounded in time: a request that has graded long enough answers with what it has, and
the next one goes on. Nothing here runs on the event loop.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Path
from sqlmodel import Session

from app.api.bodies import JsonRoute
from app.api.errors import ApiError
from app.api.grading_schemas import (
    DryRun,
    GradeChange,
    GradeCounts,
    GradingError,
    Regrade,
    Regraded,
    TrustReport,
)
from app.api.wire import Json
from app.night import configs, data, grading, trust
from app.night.grading import grader_of, sample_of
from app.security import Name
from app.state import Parts, Running
from storage import episodes, grades, tasks
from storage.errors import NotFound
from storage.tables import Episode, GradeRow, Task
from verifiers import Grade, GraderConfigError, Status, build

router = APIRouter(prefix="/tasks", route_class=JsonRoute)
TaskName = Annotated[Name, Path()]

DRY_RUN_S = 30.0
REGRADE_S = 20.0
TRUST_S = 60.0
MAX_SHOWN = 10  # changes, and errors, of a dry run


def counts(session: Session, task: Task) -> GradeCounts:
    """What the task's current grader said of its episodes."""
    found = grades.counts(session, task.name, task.grader_hash)
    return GradeCounts(
        passed=found.passed,
        failed=found.failed,
        errored=found.errored,
        ungraded=found.ungraded,
        error_share=found.error_share,
    )


@router.post("/{task}/regrade")
def regrade(task: TaskName, parts: Running, body: Regrade = Regrade()) -> Regraded:
    """Grades the episodes that the task's current grader has never seen, as many as time allows.

    Ask again with `next_cursor` until there is none. Stopping in between loses nothing.
    """
    with parts.database.reading() as session:
        row = tasks.get(session, task)
    ends_at = time.monotonic() + REGRADE_S
    graded, cursor = 0, None
    for step in grading.regrade(
        parts.database,
        row,
        grader_of(parts.graders, parts.engine.tool_form, row, row.grader),
        after=_after(body.cursor, row.grader_hash),
        errored=body.errored,
    ):
        graded += step.graded
        if not step.last and (time.monotonic() > ends_at or parts.stopping.is_set()):
            cursor = _cursor(step.seq, row.grader_hash)
            break
    with parts.database.reading() as session:
        return Regraded(
            task=task,
            grader_hash=row.grader_hash,
            graded=graded,
            grades=counts(session, row),
            next_cursor=cursor,
        )


@router.get("/{task}/trust")
def examine(task: TaskName, parts: Running) -> TrustReport:
    """Tries trivial answers on the task's training prompts, as the night does before it trains."""
    with parts.database.reading() as session:
        row = tasks.get(session, task)
        graded = episodes.graded(session, task, row.grader_hash)
    try:
        build(row.grader)
    except GraderConfigError as error:
        raise ApiError(
            409, f"the task's grader is not valid: {error}", code="invalid_grader"
        ) from error
    chosen = set(data.choose(graded, task, parts.settings).training)
    report = trust.check(
        [episode for episode, _ in graded if episode.id in chosen],
        graded,
        lambda items: parts.graders.references(row.grader, items),
        grader_of(parts.graders, parts.engine.tool_form, row, row.grader),
        threshold=parts.settings.max_trivial_share,
        max_chars=configs.parse_named(row.training).max_tokens * trust.CHARS_PER_TOKEN,
        pause=_limit(parts, TRUST_S),
    )
    return TrustReport.model_validate(
        {"task": task, "grader_hash": row.grader_hash, **report.public()}
    )


def dry_run(parts: Parts, config: Json, task: str, limit: int) -> DryRun:
    """What a valid configuration says of a task's last episodes, next to what is stored."""
    try:
        with parts.database.reading() as session:
            named = tasks.get(session, task)
            rows = grades.newest(session, task, named.grader_hash, limit)
    except NotFound as error:
        raise ApiError(404, str(error), code="task_not_found", param="task") from error
    grade_many = grader_of(parts.graders, parts.engine.tool_form, named, config)
    ends_at = time.monotonic() + DRY_RUN_S
    made: list[Grade] = []
    rows.reverse()  # the newest are graded first
    while len(made) < len(rows) and time.monotonic() < ends_at:
        some = rows[len(made) : len(made) + grading.STEP]
        made += grade_many(
            [(sample_of(row.completion, row.tool_calls), row.item) for row, _ in some]
        )
    return _summary(task, rows[: len(made)], made, stopped_early=len(made) < len(rows))


def _summary(
    task: str,
    rows: Sequence[tuple[Episode, GradeRow | None]],
    made: Sequence[Grade],
    *,
    stopped_early: bool,
) -> DryRun:
    statuses = Counter(grade.status for grade in made)
    pairs = [
        (episode.id, Status(old.status.value), old.score, new)
        for (episode, old), new in zip(rows, made, strict=True)
        if old is not None
    ]
    changes = [
        GradeChange(episode_id=id, before=status, after=new.status)
        for id, status, _, new in pairs
        if status is not new.status
    ]
    errors = [
        GradingError(episode_id=row.id, error_kind=str(grade.error_kind), error=str(grade.error))
        for (row, _), grade in zip(rows, made, strict=True)
        if grade.status is Status.ERRORED
    ]
    rescored = sum(status is new.status and score != new.score for _, status, score, new in pairs)
    return DryRun(
        task=task,
        graded=len(made),
        passed=statuses[Status.PASSED],
        failed=statuses[Status.FAILED],
        errored=dict(Counter(error.error_kind for error in errors)),
        compared=len(pairs),
        changed=len(changes),
        rescored=rescored,
        changes=changes[:MAX_SHOWN],
        errors=errors[:MAX_SHOWN],
        stopped_early=stopped_early,
    )


def _limit(parts: Parts, seconds: float) -> Callable[[], None]:
    """Raises ApiError when it is called after that time, or when the service stops."""
    ends_at = time.monotonic() + seconds

    def check() -> None:
        if parts.stopping.is_set():
            raise ApiError(503, "the service is stopping", code="stopping")
        if time.monotonic() > ends_at:
            raise ApiError(
                503,
                f"this grader is too slow to be examined within {seconds:.0f} s;"
                " a night takes its time for it",
                code="grader_too_slow",
            )

    return check


def _cursor(seq: int, grader_hash: str) -> str:
    return f"{seq}-{grader_hash[:12]}"


def _after(cursor: str | None, grader_hash: str) -> int:
    """The number in a cursor. Raises ApiError, also for a cursor of another grader."""
    if cursor is None:
        return 0
    seq, _, digest = cursor.partition("-")
    if digest != grader_hash[:12]:
        raise ApiError(
            409,
            "the cursor belongs to another grader: begin again without it",
            code="conflict",
            param="cursor",
        )
    return episodes.seq_of(seq)
