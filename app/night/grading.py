"""Grading stored episodes anew after a task's grader has changed.

Step by step: each step is graded outside any transaction and then stored in a short one, so nobody
waits for it, and whoever stops between two steps loses nothing. What has a grade of the current
grader is not graded again; grades of earlier graders are kept under their own hash.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.night.data import grade_draft
from storage import grades
from storage.db import Database
from storage.tables import Task
from verifiers import Grade, Sample

GradeMany = Callable[[Sequence[tuple[Sample, dict[str, Any]]]], list[Grade]]
"""Grades completions with their items, in order."""

STEP = 64
"""Episodes per step: even if each of them takes its whole deadline, a step ends in a minute."""


@dataclass(frozen=True)
class Step:
    """What a step stored: the grades of `graded` episodes up to number `seq`; `last` if no more."""

    graded: int
    seq: int
    last: bool


def regrade(
    database: Database, task: Task, grade_many: GradeMany, *, after: int = 0, errored: bool = False
) -> Iterator[Step]:
    """Grades the episodes after number `after` that the task's grader has never graded.

    With `errored` also those it could not grade. Each step is stored before it is yielded. Raises
    NotFound when the task is deleted meanwhile.
    """
    last = False
    while not last:
        with database.reading() as session:
            found = grades.waiting(
                session, task.name, task.grader_hash, after=after, limit=STEP + 1, errored=errored
            )
        rows, last = found[:STEP], len(found) <= STEP
        if not rows:
            return
        made = grade_many([(Sample(output_text=row.completion), row.item) for row in rows])
        drafts = {
            row.id: grade_draft(grade, task.grader_hash)
            for row, grade in zip(rows, made, strict=True)
        }
        with database.session() as session:
            stored = grades.store(session, task.grader_hash, drafts)
        after = rows[-1].seq
        yield Step(stored, after, last)
