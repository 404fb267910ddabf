"""Grading stored episodes anew after a task's grader has changed.

Step by step: each step is graded outside any transaction and then stored in a short one, so nobody
waits for it, and whoever stops between two steps loses nothing. What has a grade of the current
grader is not graded again; grades of earlier graders are kept under their own hash.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.answering import AnswerForm, task_form
from app.engine.tool_form import ToolForm, written_calls
from app.night.data import grade_draft
from storage import grades
from storage.db import Database
from storage.tables import Task
from verifiers import Grade, GraderPool, Sample, ToolCall

Calls = Sequence[dict[str, Any]]
"""Tool calls as they are stored: OpenAI's shape, the arguments an object."""
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


def answer_text(completion: str, calls: Calls | None) -> str:
    """A stored answer as text: its calls written out after what it says."""
    written = written_calls([call["function"] for call in calls]) if calls else ""
    return "\n".join(part for part in (completion, written) if part)


def sample_of(completion: str, calls: Calls | None) -> Sample:
    """A stored answer as graders see it."""
    functions = [call["function"] for call in calls or ()]
    return Sample(
        output_text=answer_text(completion, calls),
        output_tools=tuple(ToolCall(name=f["name"], arguments=f["arguments"]) for f in functions),
    )


def reading_calls(grade_many: GradeMany, answers: AnswerForm, form: ToolForm) -> GradeMany:
    """Grades answers with the tool calls that are read from them, as chat reads them.

    An answer that has come with calls keeps those.
    """
    if not answers.tools:
        return grade_many

    def read(sample: Sample) -> Sample:
        if sample.output_tools:
            return sample
        calls = answers.read(form, sample.output_text).calls
        return Sample(output_text=sample.output_text, output_tools=calls)

    return lambda pairs: grade_many([(read(sample), item) for sample, item in pairs])


def grader_of(pool: GraderPool, form: ToolForm, task: Task, config: dict[str, Any]) -> GradeMany:
    """Grades answers to a task, by a grader that need not be the task's own."""
    return reading_calls(
        lambda pairs: pool.grade_many(config, pairs),
        task_form(task.tools, task.response_schema),
        form,
    )


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
        made = grade_many([(sample_of(row.completion, row.tool_calls), row.item) for row in rows])
        drafts = {
            row.id: grade_draft(grade, task.grader_hash)
            for row, grade in zip(rows, made, strict=True)
        }
        with database.session() as session:
            stored = grades.store(session, task.grader_hash, drafts)
        after = rows[-1].seq
        yield Step(stored, after, last)
