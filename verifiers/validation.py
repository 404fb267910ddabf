"""Validating a value against a checked schema, by jsonschema, in bounded time.

jsonschema is kept to what is linear: patterns are RE2's, unique items are found by hashing,
multiples are exact, and every keyword that is applied costs a step of a budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend
from referencing import Registry

from verifiers.formats import FORMATS
from verifiers.patterns import TextTooLong, parse_pattern
from verifiers.values import Normalise, canonical, exact

MAX_STEPS = 100_000
MAX_PROBLEMS = 1_000

_EXACT = Normalise(casefold=False, strip=False, numbers=False)


class TooComplex(Exception):
    """Validating would take too many steps or too deep a stack."""


@dataclass(frozen=True)
class Problem:
    """One way in which a value breaks its schema: the keyword, and the place in the value."""

    keyword: str
    path: tuple[str | int, ...]


@dataclass
class _Budget:
    """The steps that are left to a validation."""

    left: int = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Take steps; raises TooComplex when none are left."""
        self.left -= steps
        if self.left < 0:
            raise TooComplex


_budget: ContextVar[_Budget] = ContextVar("_budget")


def problems(schema: Mapping[str, Any], value: Any, check_formats: bool) -> list[Problem]:
    """Return how a value breaks a schema that `check_schema` accepts; raises TooComplex."""
    family = _CHECKING_FORMATS if check_formats else _IGNORING_FORMATS
    # An empty registry: no reference can lead out of the schema.
    validator = family(schema, registry=Registry())
    token = _budget.set(_Budget())
    try:
        return [
            Problem(str(error.validator), tuple(error.absolute_path))
            for error in islice(validator.iter_errors(value), MAX_PROBLEMS)
        ]
    except (RecursionError, TextTooLong) as error:
        raise TooComplex from error
    finally:
        _budget.reset(token)


Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]
Errors = Iterator[ValidationError]


def _counted(keyword: Keyword) -> Keyword:
    """Have each application of a keyword cost a step for each thing that it names."""

    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Errors | None:
        steps = 1 + (len(value) if isinstance(value, list | dict) else 0)
        _budget.get().spend(steps)
        return keyword(validator, value, instance, schema)

    return apply


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, str) and not parse_pattern(pattern).found_in(instance):
        yield ValidationError("does not match the pattern")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _schema: Any
) -> Errors:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        for key, value in instance.items():
            _budget.get().spend(1)
            if parse_pattern(pattern).found_in(key):
                yield from validator.descend(value, subschema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, subschema: Any, instance: Any, schema: dict[str, Any]
) -> Errors:
    """As jsonschema's, with RE2 and an error for each property that must not be there."""
    if not isinstance(instance, dict):
        return
    patterns = [parse_pattern(pattern) for pattern in schema.get("patternProperties", {})]
    for key, value in instance.items():
        _budget.get().spend(1 + len(patterns))
        if key in schema.get("properties", {}) or any(one.found_in(key) for one in patterns):
            continue
        if subschema is False:
            yield ValidationError("is not expected")
        else:
            yield from validator.descend(value, subschema, path=key)


def _unique_items(_validator: Any, unique: bool, instance: Any, _schema: Any) -> Errors:
    if not unique or not isinstance(instance, list):
        return
    if len({canonical(one, _EXACT) for one in instance}) != len(instance):
        yield ValidationError("has the same item twice")


def _multiple_of(_validator: Any, divisor: Any, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, bool) or not isinstance(instance, int | float):
        return
    if (exact(instance) / exact(divisor)).denominator != 1:
        yield ValidationError("is not a multiple")


def _format(_validator: Any, name: str, instance: Any, _schema: Any) -> Errors:
    if isinstance(instance, str) and not FORMATS[name](instance):
        yield ValidationError("does not have the format")


def _family(**more: Keyword) -> Any:
    keywords: dict[str, Keyword] = {
        **Draft202012Validator.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of,
        **more,
    }
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    return extend(Draft202012Validator, validators=counted)


_CHECKING_FORMATS = _family(format=_format)
_IGNORING_FORMATS = _family(format=lambda *_: None)
