"""`function_call`: one call, name and arguments against allowed values; or no call at all.

The item's `call` is `{"name": "turn_on", "arguments": {"area": ["kitchen", "den"], "level": 50}}`.
An argument holds a value or a list of allowed values, as in BFCL; "" in the list means that the
argument may be left out. A value that is itself a list is wrapped: `[[1, 2]]`. `null` instead of a
call means that the right answer calls nothing.

Score = weighted mean of three sub-scores (weights 0.1, 0.4, 0.5 unless configured):

* parseable: 1 for a whole call, 0.5 for a whole call with something else around it, 0 for a broken
  one, whose name and arguments still count as far as they could be read;
* name: 1 if right;
* arguments: F1 over key and value pairs, counted whether or not the name is right. A right key with
  a wrong value is half a pair; of duplicates the best counts once. F1 is 1 when a call needs no
  arguments and gives none.

Passes only for a whole call with the right name, every needed argument with an allowed value and no
other. When nothing is to be called, passes whatever does not begin a call, and scores 0 or 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from verifiers.base import (
    BuildNested,
    Family,
    Grade,
    Grader,
    GraderConfig,
    ItemError,
    Outcome,
    Sample,
    checked_item,
    grade_with,
    passing,
)
from verifiers.calls import Reading, Shape, read_call, write_call
from verifiers.templates import item_value, parse_path
from verifiers.values import Normalise, canonical


class CallWeights(BaseModel):
    """The share of each sub-score in the score."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    parseable: float = Field(default=0.1, ge=0, le=1e6)
    name: float = Field(default=0.4, ge=0, le=1e6)
    arguments: float = Field(default=0.5, ge=0, le=1e6)

    @model_validator(mode="after")
    def _weigh_something(self) -> Self:
        if self.parseable + self.name + self.arguments <= 0:
            raise ValueError("at least one weight must be above zero")
        return self


class FunctionCallConfig(GraderConfig):
    """Configuration of `function_call`."""

    type: Literal["function_call"]
    reference: str = Field(
        default="call", description="Path of the expected call in the item; {{item.x}} too."
    )
    syntax: Literal["json", "call", "tools"] = Field(
        default="json",
        description='json: {"name": ..., "arguments": {...}}; call: turn_on(area=kitchen, '
        "level=50), values quoted or not; tools: the completion's first tool call.",
    )
    surrounding: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="Text around the call. json: before or after the object; call: lines after "
        "the first. tools: the text beside a tool call never matters, a second call always does.",
    )
    weights: CallWeights = CallWeights()
    normalise: Normalise = Normalise()
    no_call_text: str = Field(
        default="none",
        min_length=1,
        max_length=1000,
        description="The text to learn from when nothing is to be called.",
    )

    @field_validator("reference")
    @classmethod
    def _is_path(cls, text: str) -> str:
        return ".".join(parse_path(text))


@dataclass(frozen=True)
class Argument:
    """What one argument may be: the canonical allowed values, and whether it may be left out."""

    allowed: frozenset[Hashable]
    optional: bool
    example: Any


@dataclass(frozen=True)
class Call:
    """The call that the item accepts."""

    name: str
    arguments: dict[str, Argument]


@dataclass(frozen=True)
class FunctionCall:
    """Compares the call in a completion with the item's."""

    config: FunctionCallConfig

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score by the sub-scores `parseable`, `name` and `arguments`."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the call with the first allowed values and without optional arguments.

        For an item that calls nothing this is the configured `no_call_text`. None for `tools`,
        whose calls are not text.
        """
        try:
            call = self._expect(checked_item(item))
        except ItemError:
            return None  # The grade of any completion says what is wrong with the item.
        if call is None:
            return passing(self, self.config.no_call_text, item)
        needed = {key: arg.example for key, arg in call.arguments.items() if not arg.optional}
        text = write_call(call.name, needed, self.config.syntax)
        return None if text is None else passing(self, text, item)

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def _expect(self, item: dict[str, Any]) -> Call | None:
        place = self.config.reference
        value = item_value(item, tuple(place.split(".")))
        if value is None:
            return None
        if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
            raise ItemError(f"the item's field '{place}' is not null or {{name, arguments}}")
        if not isinstance(value["name"], str) or not value["name"]:
            raise ItemError(f"the item's field '{place}.name' is not a function's name")
        if not isinstance(value["arguments"], dict):
            raise ItemError(f"the item's field '{place}.arguments' is not a JSON object")
        return Call(
            value["name"],
            {
                key: _argument(allowed, f"{place}.arguments.{key}", self.config.normalise)
                for key, allowed in value["arguments"].items()
            },
        )

    def _compare(self, sample: Sample, call: Call | None) -> Outcome:
        ignore = self.config.surrounding == "ignore"
        reading = read_call(sample, self.config.syntax, ignore)
        if call is None:
            return Outcome(reading is None, float(reading is None))
        if reading is None:
            return Outcome(False, 0.0, {"parseable": 0.0, "name": 0.0, "arguments": 0.0})
        subscores = {
            "parseable": reading.shape.value,
            "name": float(reading.name == call.name),
            "arguments": _f1(reading, call, self.config.normalise),
        }
        if all(score == 1.0 for score in subscores.values()):
            return Outcome(True, 1.0, subscores)
        return Outcome(False, self._weighted(subscores), subscores)

    def _weighted(self, subscores: dict[str, float]) -> float:
        weights: dict[str, float] = self.config.weights.model_dump()
        total = sum(weights[key] * score for key, score in subscores.items())
        # min: rounding may carry the mean of ones just above one.
        return min(1.0, total / sum(weights.values()))


def _argument(value: Any, place: str, normalise: Normalise) -> Argument:
    choices = value if isinstance(value, list) else [value]
    if not choices:
        raise ItemError(f"the item's field '{place}' allows no value")
    optional = isinstance(value, list) and "" in value
    allowed = frozenset(canonical(choice, normalise) for choice in choices)
    return Argument(allowed, optional, choices[0])


def _f1(reading: Reading, call: Call, normalise: Normalise) -> float:
    """F1 = 2 * matched / (given + wanted), where an optional argument is wanted only if given."""
    credit: dict[str, float] = {}
    for key, value in reading.arguments:
        if key in call.arguments:
            right = canonical(value, normalise) in call.arguments[key].allowed
            credit[key] = max(credit.get(key, 0.0), 1.0 if right else 0.5)
    wanted = sum(key in credit or not arg.optional for key, arg in call.arguments.items())
    pairs = len(reading.arguments) + wanted
    return 1.0 if pairs == 0 and reading.shape is not Shape.BROKEN else _ratio(credit, pairs)


def _ratio(credit: dict[str, float], pairs: int) -> float:
    return 2 * sum(credit.values()) / pairs if pairs else 0.0


def _make(config: FunctionCallConfig, _build: BuildNested) -> Grader:
    return FunctionCall(config)


FUNCTION_CALL = Family(FunctionCallConfig, _make)
