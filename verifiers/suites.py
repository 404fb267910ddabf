"""The tests of a `unit_tests` grader, in its configuration or in items."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from verifiers.base import ErrorKind, ItemError
from verifiers.mistakes import first_mistake
from verifiers.python import MAX_SOURCE_CHARS, parse
from verifiers.templates import item_value
from verifiers.values import json_problem

MAX_TESTS = 100
Snippet = Annotated[str, Field(max_length=MAX_SOURCE_CHARS)]


class Call(BaseModel):
    """A test that compares a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    call: Snippet = Field(description="An expression that uses the code.")
    equals: Any = Field(description="The JSON value that it should have.")


Tests = Annotated[list[Snippet | Call], Field(min_length=1, max_length=MAX_TESTS)]
_TESTS: TypeAdapter[list[str | Call]] = TypeAdapter(Tests)


@dataclass(frozen=True)
class Suite:
    """The tests of a grade, whose mistakes theirs are, and right code where the item has some."""

    tests: tuple[str | Call, ...]
    origin: ErrorKind
    right_code: str | None

    def codes(self) -> tuple[str, ...]:
        """What the tests run."""
        return tuple(test if isinstance(test, str) else test.call for test in self.tests)


def read_tests(item: dict[str, Any], place: str) -> tuple[str | Call, ...]:
    """The tests at a dotted path of an item; raises ItemError."""
    value = item_value(item, tuple(place.split(".")))
    try:
        tests = _TESTS.validate_python(value)
        check_tests(tests)
    except ValidationError as error:
        inside, message = first_mistake(error, value)
        path = f"{place}.{inside}" if inside else place
        raise ItemError(f"the item's field '{path}': {message}") from error
    except ValueError as error:
        raise ItemError(f"the item's field '{place}': {error}") from error
    return tuple(tests)


def check_tests(tests: list[str | Call]) -> None:
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
