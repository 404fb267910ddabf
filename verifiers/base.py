"""What every grader shares: the wire data, the errors, and the one place where a grade is made.

A grader is a `Judge`, written as two functions. `expect(item)` reads what the item accepts and
raises `ItemError` when the item is broken. `compare(sample, expected)` looks at the completion and
returns an `Outcome`, or raises `OutputError` where the completion has nothing to look at; it has no
way to blame the item. So a bad completion can never make a grade errored, and a bad item can never
be counted as a wrong answer, even when both are bad. Only graders that run code may raise `Broken`
while they compare.
"""

from __future__ import annotations

import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Protocol, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from verifiers.values import json_problem

logger = logging.getLogger(__name__)

MAX_OUTPUT_CHARS = 65_536
"""A longer completion fails with score 0 without being looked at, whatever the grader."""

BEST_FAILED_SCORE = 1 - 1e-6
"""The most a failed completion can score: a failure is never worth as much as being right."""

MAX_ERROR_CHARS = 300
OUT_OF_MEMORY = "grading ran out of memory"

ErrorKind = Literal["config", "item", "internal", "timeout", "sandbox"]
"""What broke: the configuration's own code, the item, the grader, its deadline, or the process or
interpreter that it ran in."""

# Adding 0.0 makes -0.0, which is not below zero either, the zero that everybody expects.
Share = Annotated[
    float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(lambda share: share + 0.0)
]


class Status(StrEnum):
    """How a grading ended; `errored` says nothing about the completion."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"


class ToolCall(BaseModel):
    """One tool call of a completion, its arguments already parsed by the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: dict[str, Any]


class Sample(BaseModel):
    """What the model answered: its text, and its tool calls where the engine parsed them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    output_text: str
    output_tools: tuple[ToolCall, ...] = ()


class Grade(BaseModel):
    """The result of grading one completion.

    `score` and `subscores` lie in [0, 1]; `score` is None, and `error_kind` and `error` are set,
    exactly when the status is errored. `seconds` is wall time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    score: Share | None
    subscores: dict[str, Share] = Field(default_factory=dict)
    error_kind: ErrorKind | None = None
    error: str | None = None
    seconds: float = Field(ge=0)

    @model_validator(mode="after")
    def _errored_has_no_score(self) -> Self:
        errored = self.status is Status.ERRORED
        if errored != (self.score is None):
            raise ValueError("a grade has no score exactly when it is errored")
        if errored != (self.error is not None) or errored != (self.error_kind is not None):
            raise ValueError("a grade has an error exactly when it is errored")
        return self

    @property
    def passed(self) -> bool:
        """True when the completion is exactly right."""
        return self.status is Status.PASSED


class GraderConfigError(ValueError):
    """A grader's configuration is wrong; `path` is the dotted place in it, "" for the whole."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class ItemError(Exception):
    """The item lacks what the grader compares with, or holds something it cannot compare with."""


class OutputError(Exception):
    """The completion has no such place as the grader reads from: it fails with score 0."""


class Broken(Exception):
    """A grader cannot say anything about the completion, for a reason that is no bug of its own.

    Raised while comparing by graders that run code: the configuration's code raised, it overran
    its time, its sandbox died.
    """

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Grader(Protocol):
    """A built grader: immutable, pure and safe to share between threads."""

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Grade one completion. Never raises: what breaks on our side is an errored grade."""
        ...

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return a completion text that passes for this item, None where there is no such text."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the validated configuration with every default filled in."""
        ...


class GraderConfig(BaseModel):
    """The fields that every grader's configuration has; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str | None = Field(default=None, max_length=200, description="A label, shown only.")


BuildNested = Callable[[Any, tuple[str, ...]], Grader]
"""Builds a grader inside a grader, given its configuration and its place in the outer one."""


@dataclass(frozen=True)
class Family:
    """One grader type: the model of its configuration, and how a grader is made from it.

    `make` may raise `GraderConfigError` with a path relative to its own configuration. `imports`
    are modules that the grader imports when it first needs them; where graders are all that runs,
    they are imported before there is anything to grade, so that no grade's time goes into it.
    """

    config: type[GraderConfig]
    make: Callable[[Any, BuildNested], Grader]
    imports: tuple[str, ...] = ()


Config = TypeVar("Config", bound=GraderConfig)
Expected = TypeVar("Expected")


def family(
    config: type[Config], make: Callable[[Config], Grader], imports: tuple[str, ...] = ()
) -> Family:
    """Return the family of a grader that has no graders in it."""
    return Family(config, lambda validated, _build: make(validated), imports)


@dataclass(frozen=True)
class Outcome:
    """What `compare` found: exactly right or not, the shaped score, and its parts."""

    passed: bool
    score: float
    subscores: dict[str, float] = field(default_factory=dict)


NOTHING_RIGHT = Outcome(passed=False, score=0.0)


@dataclass(frozen=True)
class Judge(ABC, Generic[Config, Expected]):
    """A grader made of what an item expects and how a completion compares with that."""

    config: Config

    @abstractmethod
    def expect(self, item: dict[str, Any]) -> Expected:
        """Read what the item, a checked one, accepts; raises ItemError."""

    @abstractmethod
    def compare(self, sample: Sample, expected: Expected) -> Outcome:
        """Look at a completion within the bounds of length; raises OutputError, or Broken."""

    def answers(self, item: dict[str, Any], expected: Expected) -> Iterable[str]:
        """Return texts that may be right, the plainest first; raises ItemError for a bad item."""
        del item, expected
        return ()

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Grade one completion. Never raises: what breaks on our side is an errored grade."""
        return grade_with(self.expect, self.compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the first of the answers that passes, None where none does."""
        try:
            texts = self.answers(item, self.expect(checked_item(item)))
        except ItemError:
            return None  # The grade of any completion says what is wrong with the item.
        return next((text for text in texts if passing(self, text, item) is not None), None)

    def describe(self) -> dict[str, Any]:
        """Return the validated configuration with every default filled in."""
        return self.config.model_dump(mode="json")


def grade_with(
    expect: Callable[[dict[str, Any]], Expected],
    compare: Callable[[Sample, Expected], Outcome],
    sample: Sample,
    item: dict[str, Any],
) -> Grade:
    """Grade with a grader's two functions, turning whatever they raise into an errored grade."""
    started = time.perf_counter()
    try:
        expected = expect(checked_item(item))
        outcome = _compared(compare, sample, expected)
        return _finished(outcome, time.perf_counter() - started)
    except ItemError as error:
        return errored_grade("item", str(error), time.perf_counter() - started)
    except Broken as error:
        return errored_grade(error.kind, str(error), time.perf_counter() - started)
    except MemoryError:
        return errored_grade("sandbox", OUT_OF_MEMORY, time.perf_counter() - started)
    except Exception as error:
        message = f"the grader broke: {place_of(error)}"
        logger.error(message)
        return errored_grade("internal", message, time.perf_counter() - started)


def _compared(
    compare: Callable[[Sample, Expected], Outcome], sample: Sample, expected: Expected
) -> Outcome:
    if len(sample.output_text) > MAX_OUTPUT_CHARS:
        return NOTHING_RIGHT
    try:
        return compare(sample, expected)
    except OutputError:
        return NOTHING_RIGHT


def checked_item(item: object) -> dict[str, Any]:
    """Return the item if it is a JSON object within bounds; raises ItemError."""
    if not isinstance(item, dict):
        raise ItemError("the item is not a JSON object")
    problem = json_problem(item)
    if problem is not None:
        raise ItemError(f"the item {problem}")
    return item


def errored_grade(kind: ErrorKind, message: str, seconds: float) -> Grade:
    """Make the grade that says that nothing is known about the completion."""
    return Grade(
        status=Status.ERRORED,
        score=None,
        error_kind=kind,
        error=message[:MAX_ERROR_CHARS],
        seconds=seconds,
    )


def passing(grader: Grader, text: str, item: dict[str, Any]) -> str | None:
    """Return the text if the grader passes it for the item, else None."""
    return text if grader.grade(Sample(output_text=text), item).passed else None


def _finished(outcome: Outcome, seconds: float) -> Grade:
    ceiling = 1.0 if outcome.passed else BEST_FAILED_SCORE
    return Grade(
        status=Status.PASSED if outcome.passed else Status.FAILED,
        score=min(outcome.score, ceiling),
        subscores=outcome.subscores,
        seconds=seconds,
    )


def place_of(error: BaseException) -> str:
    """Name an exception by type and place only: its text could hold the user's data."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(innermost.filename).name}:{innermost.lineno}"
