"""The wire of grading many: counts, examples, dry runs, re-grading, trust checks."""

from typing import Annotated, Literal

from pydantic import Field

from app.api.wire import Incoming, Json, Outgoing
from verifiers import Status


class GradeCounts(Outgoing):
    """What the current grader said of a task's episodes. `errored` counts by kind of error;
    `error_share` is of the graded ones, None without any."""

    passed: int
    failed: int
    errored: dict[str, int]
    ungraded: int
    error_share: float | None


class GraderExample(Outgoing):
    """A configuration with an item, and completions that it passes and fails."""

    grader: Json
    item: Json
    passes: str
    fails: str


class GradingError(Outgoing):
    """An episode that could not be graded, and why."""

    episode_id: str
    error_kind: str
    error: str


class GradeChange(Outgoing):
    """An episode whose status would be another one."""

    episode_id: str
    before: Status
    after: Status


class DryRun(Outgoing):
    """What a configuration says of a task's last episodes; nothing of it is stored.

    `graded` are fewer than asked for when there are not so many, or when `stopped_early` says that
    grading took too long. `compared` of them have a grade of the task's own grader: the status of
    `changed` would be another, of the rest `rescored` would only have another score. `changes` and
    `errors` are the first of each, the newest episode first.
    """

    object: Literal["grader.dry_run"] = "grader.dry_run"
    task: str
    graded: int
    passed: int
    failed: int
    errored: dict[str, int]
    compared: int
    changed: int
    rescored: int
    changes: list[GradeChange]
    errors: list[GradingError]
    stopped_early: bool


class Regrade(Incoming):
    """Which of a task's episodes to grade: those without a grade of the current grader; with
    `errored` also those that it could not grade. `cursor` goes on where an answer stopped."""

    errored: bool = False
    cursor: Annotated[str | None, Field(max_length=64)] = None


class Regraded(Outgoing):
    """How far re-grading has come: done when `next_cursor` is None."""

    object: Literal["task.regrade"] = "task.regrade"
    task: str
    grader_hash: str
    graded: int
    grades: GradeCounts
    next_cursor: str | None


class Baseline(Outgoing):
    """A trivial answer on training prompts; `text` is None where each prompt has its own."""

    kind: Literal["empty", "completion", "reference", "prompt", "conversation", "longest", "all"]
    text: str | None
    passed: int
    errored: int
    share: float


class TrivialExample(Outgoing):
    """A prompt that a trivial answer passes, and that answer."""

    episode_id: str
    prompt: str
    completion: str


class Discrimination(Outgoing):
    """Of `prompts` prompts with different stored completions, `differing` differ in score."""

    prompts: int
    differing: int
    share: float | None


class TrustReport(Outgoing):
    """Whether a task's grader can be satisfied without doing the task; the best baseline leads."""

    object: Literal["task.trust"] = "task.trust"
    task: str
    grader_hash: str
    hackable: bool
    message: str
    threshold: float
    prompts: int
    example: TrivialExample | None
    baselines: list[Baseline]
    discrimination: Discrimination
