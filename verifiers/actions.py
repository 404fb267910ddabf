"""Declared actions of devices: their parameters, and effects on the values of a state.

A path is keys with dots between them; a step is a key, `{p}` for the key that parameter p names, or
`*` for every key under which the path goes on. A value is any JSON value but an object, or `"{p}"`
for the value of parameter p.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from verifiers.values import Normalise, canonical, is_number

Scalar: TypeAlias = str | int | float | bool

EXACT = Normalise(casefold=False, strip=False, numbers=False)

_SLOT = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BOOLEANS = {"true": True, "false": False}

ActionName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]


class InvalidCall(Exception):
    """No such action, a wrong argument, or a device that is not there or has no such value."""


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Parameter(_Declared):
    """What an argument may be.

    It may be left out if it is optional or has a default. Effects that use one which is left out
    and has no default do not happen; a call in which nothing happens for that reason is invalid.
    """

    type: Literal["string", "integer", "number", "boolean"] = "string"
    values: tuple[Scalar, ...] | None = Field(
        default=None, min_length=1, max_length=1_000, strict=False, description="All there are."
    )
    aliases: dict[str, Scalar] = Field(
        default_factory=dict, max_length=1_000, description="Other spelling -> value."
    )
    minimum: float | None = None
    maximum: float | None = None
    default: Scalar | None = None
    optional: bool = False

    def typed(self, value: Any, normalise: Normalise) -> Scalar:
        """Return a value in the parameter's type and within its bounds; raises InvalidCall."""
        match self.type:
            case "string":
                return as_text(value, normalise)
            case "boolean":
                return _as_boolean(value, normalise)
            case _:
                return self._as_number(value, normalise)

    def _as_number(self, value: Any, normalise: Normalise) -> int | float:
        number = as_exact(value, normalise)
        if self.type == "integer" and number.denominator != 1:
            raise InvalidCall
        if number != _bounded(number, self.minimum, self.maximum):
            raise InvalidCall
        return as_json(number)


class _Effect(_Declared):
    path: str = Field(min_length=1, max_length=1_000)

    @field_validator("path")
    @classmethod
    def _is_path(cls, text: str) -> str:
        for step in text.split("."):
            if not step or (slot_of(step) is None and set(step) & {"{", "}"}):
                raise ValueError(f"{text!r} is not keys, {{parameters}} and * with dots between")
        return text


class _WithValue(_Effect):
    value: Any

    @field_validator("value")
    @classmethod
    def _is_value(cls, value: Any) -> Any:
        if isinstance(value, dict):
            raise ValueError("an object is not one value")
        if isinstance(value, str) and slot_of(value) is None and set(value) & {"{", "}"}:
            raise ValueError("a parameter in braces is the whole value or none of it")
        return value


class SetValue(_WithValue):
    """The value becomes another one."""

    op: Literal["set"]


class Toggle(_Effect):
    """True becomes false and false becomes true."""

    op: Literal["toggle"]


class Change(_WithValue):
    """A number grows or shrinks, and stops at the bounds."""

    op: Literal["increment", "decrement"]
    minimum: float | None = None
    maximum: float | None = None


class Append(_WithValue):
    """A list gets one more element at its end."""

    op: Literal["append"]


class Remove(_WithValue):
    """A list loses the first element that is equal; nothing happens if there is none."""

    op: Literal["remove"]


Effect = Annotated[SetValue | Toggle | Change | Append | Remove, Field(discriminator="op")]


class Action(_Declared):
    """What can be called: its parameters, and what it changes."""

    parameters: dict[ParameterName, Parameter] = Field(default_factory=dict, max_length=32)
    effects: tuple[Effect, ...] = Field(
        default=(), max_length=32, strict=False, description="None for one that only answers."
    )


def result(effect: Effect, old: Any, arguments: Mapping[str, Scalar], normalise: Normalise) -> Any:
    """Return what an effect makes of a value; raises InvalidCall if it is not of that type."""
    if isinstance(effect, Toggle):
        if not isinstance(old, bool):
            raise InvalidCall
        return not old
    name = slot_of(effect.value)
    value = arguments[name] if name else effect.value
    if isinstance(effect, SetValue):
        return value
    if isinstance(effect, Change):
        return _shifted(effect, old, value)
    if not isinstance(old, list):
        raise InvalidCall
    return [*old, value] if isinstance(effect, Append) else _without(old, value, normalise)


def slots(effect: Effect) -> set[str]:
    """Return the parameters that an effect uses."""
    places = [*effect.path.split("."), None if isinstance(effect, Toggle) else effect.value]
    return {name for place in places if (name := slot_of(place))}


def slot_of(value: Any) -> str | None:
    """Return the parameter of `{p}`, None for any other value."""
    match = _SLOT.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def as_text(value: Any, normalise: Normalise) -> str:
    """Return a value as text, which a number may stand for; raises InvalidCall."""
    if isinstance(value, str):
        return value
    if normalise.numbers and isinstance(value, bool):
        return str(value).lower()
    if normalise.numbers and isinstance(value, int | float):
        return repr(value)
    raise InvalidCall


def as_exact(value: Any, normalise: Normalise) -> Fraction:
    """Return a number as its decimal text says; raises InvalidCall for what is none."""
    if is_plain_number(value):
        return Fraction(repr(value))
    if normalise.numbers and isinstance(value, str) and is_number(value.strip()):
        return Fraction(value.strip())
    raise InvalidCall


def as_json(number: Fraction) -> int | float:
    """Return a number as JSON has it; raises InvalidCall if it is too large."""
    if number.denominator == 1:
        return int(number)
    try:
        return float(number)
    except OverflowError as error:
        raise InvalidCall from error


def is_plain_number(value: Any) -> bool:
    """Tell whether a JSON value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_boolean(value: Any, normalise: Normalise) -> bool:
    if isinstance(value, bool):
        return value
    if normalise.numbers and isinstance(value, str) and value.strip().casefold() in _BOOLEANS:
        return _BOOLEANS[value.strip().casefold()]
    raise InvalidCall


def _shifted(effect: Change, old: Any, step: Any) -> int | float:
    """Add exactly, so that 0.1 and 0.2 make 0.3."""
    change = as_exact(step, EXACT)
    total = as_exact(old, EXACT) + (change if effect.op == "increment" else -change)
    return as_json(_bounded(total, effect.minimum, effect.maximum))


def _bounded(number: Fraction, minimum: float | None, maximum: float | None) -> Fraction:
    if minimum is not None:
        number = max(number, Fraction(repr(minimum)))
    return number if maximum is None else min(number, Fraction(repr(maximum)))


def _without(values: list[Any], value: Any, normalise: Normalise) -> list[Any]:
    gone = canonical(value, normalise)
    for index, element in enumerate(values):
        if canonical(element, normalise) == gone:
            return values[:index] + values[index + 1 :]
    return values
