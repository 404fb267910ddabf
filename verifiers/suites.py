"""The tests of a `unit_tests` grader, in its configuration or in items."""

from __future__ import annotations

import ast
import functools
import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from verifiers.base import ErrorKind, ItemError
from verifiers.mistakes import first_mistake
from verifiers.names import names_of
from verifiers.python import MAX_SOURCE_CHARS, parse
from verifiers.templates import item_value
from verifiers.values import json_problem

MAX_TESTS = 100
MAX_KNOWN_CHARS = 65_536
"""Tests of more characters are read again for every grade."""

Snippet = Annotated[str, Field(max_length=MAX_SOURCE_CHARS)]


class Call(BaseModel):
    """A test that compares a value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    call: Snippet = Field(description="An expression that uses the code.")
    equals: Any = Field(description="The JSON value that it should have.")


Tests = Annotated[list[Snippet | Call], Field(min_length=1, max_length=MAX_TESTS)]
_TESTS: TypeAdapter[list[str | Call]] = TypeAdapter(Tests)


@dataclass(frozen=True, eq=False)
class Check:
    """A test as it is run: a code, or an expression and what it equals.

    `needs` are the names that it uses without binding them, `parts` is how many values, itself
    included, the expected value is made of.
    """

    code: str
    needs: frozenset[str]
    is_call: bool = False
    equals: Any = None
    parts: int = 0


@dataclass(frozen=True)
class Suite:
    """The tests of a grade, whose mistakes theirs are, and right code where the item has some."""

    checks: tuple[Check, ...]
    origin: ErrorKind
    right_code: str | None

    @property
    def codes(self) -> tuple[str, ...]:
        """What the tests run."""
        return tuple(check.code for check in self.checks)


def read_tests(item: dict[str, Any], place: str) -> tuple[Check, ...]:
    """The tests at a dotted path of an item; raises ItemError."""
    value = item_value(item, tuple(place.split(".")))
    try:
        text = json.dumps(value)
        return _known(text) if len(text) <= MAX_KNOWN_CHARS else _read(text)
    except ValidationError as error:
        inside, message = first_mistake(error, value)
        path = f"{place}.{inside}" if inside else place
        raise ItemError(f"the item's field '{path}': {message}") from error
    except ValueError as error:
        raise ItemError(f"the item's field '{place}': {error}") from error


def _read(text: str) -> tuple[Check, ...]:
    return checks_of(_TESTS.validate_python(json.loads(text)))


_known = functools.lru_cache(maxsize=256)(_read)


def checks_of(tests: list[str | Call]) -> tuple[Check, ...]:
    """Raise ValueError for a test that is no Python, or compares with what is no JSON."""
    return tuple(_check(number, test) for number, test in enumerate(tests))


def _check(number: int, test: str | Call) -> Check:
    code = test if isinstance(test, str) else test.call
    try:
        body = parse(code).body
    except ValueError as error:
        raise ValueError(f"test {number} {error}") from error
    needs = names_of((code,)).used
    if isinstance(test, str):
        return Check(code, needs)
    if not (len(body) == 1 and isinstance(body[0], ast.Expr)):
        raise ValueError(f"test {number}: call is not one expression")
    if (problem := json_problem(test.equals)) is not None:
        raise ValueError(f"test {number}: equals {problem}")
    expression = ast.get_source_segment(code, body[0].value) or code  # without a semicolon
    return Check(expression, needs, True, test.equals, _parts(test.equals))


def _parts(value: Any) -> int:
    """How many values a JSON value within bounds is made of."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_parts, inner))
