"""`unit_tests`: the completion is code; tests say whether it does what it should, in a sandbox.

A test is a text, a piece of Python that raises when the code is wrong (`assert add(1, 2) == 3`), or
an object: `{"call": "add(1, 2)", "equals": 3}`. The result of `call` leaves the sandbox before it
is compared (as JSON, tuples being lists), so that no code can pass by what it says of itself: an
object that calls itself equal to everything passes the first kind of test. The tests of the item,
or of the configuration, run one after the other in one interpreter, after the code and `setup`.

Score = `runs_weight` * runs + (1 - `runs_weight`) * tests, where runs is 1 for code that runs at
all and tests is the share of tests passed. It passes when all tests do. Code that raises fails, and
so does code of which `setup` raises.

Code that overruns its time is errored as `timeout`, code that needs what the sandbox lacks as
`sandbox`: neither has been judged. `unjudged: failed` counts both as failures, which keeps a model
from learning that an endless loop costs less than a wrong answer. What the sandbox covers, and what
it lacks, is written in `verifiers.sandbox`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from verifiers import sandbox
from verifiers.base import (
    Broken,
    BuildNested,
    ErrorKind,
    Family,
    Grade,
    Grader,
    GraderConfig,
    ItemError,
    Outcome,
    OutputError,
    Sample,
    checked_item,
    grade_with,
    passing,
)
from verifiers.mistakes import first_mistake
from verifiers.python import MAX_SOURCE_CHARS, parse
from verifiers.templates import item_value, parse_path
from verifiers.values import MAX_DEPTH, Normalise, canonical, is_unicode, json_problem

MAX_TESTS = 100
_FENCE = "```"
_EXACTLY = Normalise(casefold=False, strip=False, numbers=False)
Snippet = Annotated[str, Field(max_length=MAX_SOURCE_CHARS)]


class Call(BaseModel):
    """A test that compares a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    call: Snippet = Field(description="An expression that uses the code.")
    equals: Any = Field(description="The JSON value that it should have.")


Tests = Annotated[list[Snippet | Call], Field(min_length=1, max_length=MAX_TESTS)]
_TESTS: TypeAdapter[list[str | Call]] = TypeAdapter(Tests)


class UnitTestsConfig(GraderConfig):
    """Configuration of `unit_tests`."""

    type: Literal["unit_tests"]
    tests: str | Tests = Field(
        default="tests", description="Path of the tests in the item ({{item.x}} too), or the tests."
    )
    setup: Snippet = Field(default="", description="Code that runs before the tests, for them.")
    code: Literal["fenced", "whole"] = Field(
        default="fenced",
        description="The code is the first block fenced by ```, if there is one, or all the text.",
    )
    reference: str | None = Field(default=None, description="Path of right code in the item.")
    runs_weight: float = Field(default=0.1, ge=0, lt=1)
    unjudged: Literal["errored", "failed"] = Field(
        default="errored",
        description="What code is that overruns its time or needs what the sandbox lacks.",
    )
    timeout_s: float = Field(
        default=1.0, ge=0.1, le=10, description="Seconds for all; the service has a limit, too."
    )

    @field_validator("tests")
    @classmethod
    def _are_tests(cls, tests: str | list[str | Call]) -> str | list[str | Call]:
        if isinstance(tests, str):
            return ".".join(parse_path(tests))
        _check(tests)
        return tests

    @field_validator("setup")
    @classmethod
    def _is_python(cls, setup: str) -> str:
        parse(setup)
        return setup

    @field_validator("reference")
    @classmethod
    def _is_path(cls, text: str | None) -> str | None:
        return None if text is None else ".".join(parse_path(text))


@dataclass(frozen=True)
class UnitTests:
    """Runs code and tests in a fresh interpreter."""

    config: UnitTestsConfig

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score the share of tests passed; sub-scores `runs` and `tests`."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the item's right code, where the configuration says where it is."""
        if self.config.reference is None:
            return None
        try:
            text = item_value(checked_item(item), tuple(self.config.reference.split(".")))
        except ItemError:
            return None  # An item without an answer may still have tests.
        return passing(self, text, item) if isinstance(text, str) else None

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def _expect(self, item: dict[str, Any]) -> list[str | Call]:
        place = self.config.tests
        if not isinstance(place, str):
            return place
        value = item_value(item, tuple(place.split(".")))
        try:
            tests = _TESTS.validate_python(value)
            _check(tests)
        except ValidationError as error:
            inside, message = first_mistake(error, value)
            path = f"{place}.{inside}" if inside else place
            raise ItemError(f"the item's field '{path}': {message}") from error
        except ValueError as error:
            raise ItemError(f"the item's field '{place}': {error}") from error
        return tests

    def _compare(self, sample: Sample, tests: list[str | Call]) -> Outcome:
        code = code_of(sample.output_text) if self.config.code == "fenced" else sample.output_text
        if not is_unicode(code):
            raise OutputError
        try:
            return self._run(code, tests)
        except sandbox.Overran:
            return self._unjudged(
                "timeout", f"the code ran longer than {self.config.timeout_s:g} s"
            )
        except sandbox.NotCovered as error:
            return self._unjudged("sandbox", f"the sandbox does not have {error}")
        except sandbox.Died as error:
            raise Broken("sandbox", "the sandbox died of the code") from error

    def _run(self, code: str, tests: list[str | Call]) -> Outcome:
        with sandbox.session(self.config.timeout_s) as session:
            try:
                session.run(code)
            except sandbox.Raised:
                return _outcome(0.0, 0.0, 0.0)
            try:
                session.run(self.config.setup)
            except sandbox.Raised:  # it may need a name that the code does not define
                return _outcome(self.config.runs_weight, 1.0, 0.0)
            passed = [_passes(session, test) for test in tests]
        return _outcome(self.config.runs_weight, 1.0, sum(passed) / len(passed))

    def _unjudged(self, kind: ErrorKind, message: str) -> Outcome:
        if self.config.unjudged == "failed":
            return _outcome(0.0, 0.0, 0.0)
        raise Broken(kind, message)


def code_of(text: str) -> str:
    """Return the first fenced block of a text, all of it where there is none."""
    _, fence, rest = text.partition(_FENCE)
    if not fence:
        return text
    _, _, block = rest.partition("\n")  # after the name of the language
    return block.partition(_FENCE)[0]


def _outcome(weight: float, runs: float, share: float) -> Outcome:
    score = min(1.0, weight * runs + (1 - weight) * share)
    return Outcome(share == 1, score, {"runs": runs, "tests": share})


def _passes(session: sandbox.Session, test: str | Call) -> bool:
    try:
        if isinstance(test, str):
            session.run(test)
            return True
        value = _plain(session.value(test.call))
    except (sandbox.Raised, _NotPlain):
        return False
    if json_problem(value) is not None:
        return False
    return canonical(value, _EXACTLY) == canonical(test.equals, _EXACTLY)


class _NotPlain(Exception):
    """A value is nested too deep to be JSON."""


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with lists for tuples."""
    if depth > MAX_DEPTH:
        raise _NotPlain
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one, depth + 1) for key, one in value.items()}
    return value


def _check(tests: list[str | Call]) -> None:
    """Raise ValueError for a test that is no Python, or compares with what is no JSON."""
    for number, test in enumerate(tests):
        try:
            body = parse(test if isinstance(test, str) else test.call).body
        except ValueError as error:
            raise ValueError(f"test {number} {error}") from error
        if isinstance(test, Call) and not (len(body) == 1 and isinstance(body[0], ast.Expr)):
            raise ValueError(f"test {number}: call is not one expression")
        if isinstance(test, Call) and (problem := json_problem(test.equals)) is not None:
            raise ValueError(f"test {number}: equals {problem}")


def _make(config: UnitTestsConfig, _build: BuildNested) -> Grader:
    return UnitTests(config)


UNIT_TESTS = Family(UnitTestsConfig, _make)
