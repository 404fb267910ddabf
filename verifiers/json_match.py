"""`json_match`: a completion that is a JSON object, field by field against the item's object.

Score = `parseable_weight` * parseable + (1 - `parseable_weight`) * fields, where

* parseable is 1 for an object alone, 0.5 for one with other text around it that is not to be
  ignored, 0 for none;
* fields is the weight of the right fields over the weight of all fields, where each unexpected
  field adds the mean weight to the bottom, as a field that is wrong. An element of a list beyond
  the expected list's end is an unexpected field, too.

A field is right where its path leads through objects and lists as it does in the expected object:
`a.0` of a list is not the key "0". Texts that look the same are the same, and so are keys;
an object in which two keys look the same is malformed.

Passes when every listed field is right, nothing is unexpected and nothing surrounds the object.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from verifiers.base import GraderConfig, ItemError, Judge, Outcome, Sample, family
from verifiers.parsing import Malformed, find_object
from verifiers.templates import ItemPath, item_value
from verifiers.texts import normal
from verifiers.values import (
    Missing,
    Normalise,
    SameKeys,
    canonical,
    look_up,
    with_normal_keys,
)

Path = tuple[str, ...]
Weight = Annotated[float, Field(gt=0, le=1e6)]


class JsonMatchConfig(GraderConfig):
    """Configuration of `json_match`."""

    type: Literal["json_match"]
    reference: ItemPath = Field(
        default="answer", description="Path of the expected object in the item; {{item.x}} too."
    )
    fields: dict[str, Weight] | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Dotted path -> weight of each field that counts; by default every top-level "
        "field of the expected object, weighing the same.",
    )
    unexpected: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="Fields and elements that are neither listed nor in the expected object.",
    )
    surrounding: Literal["refuse", "ignore"] = Field(
        default="refuse", description="Text before or after the object."
    )
    parseable_weight: float = Field(default=0.1, ge=0, lt=1)
    normalise: Normalise = Normalise()

    @field_validator("fields")
    @classmethod
    def _are_paths(cls, fields: dict[str, float] | None) -> dict[str, float] | None:
        seen: set[str] = set()
        for path in fields or ():
            if "" in normal(path).split("."):
                raise ValueError(f"{path!r} is not a dotted path")
            if normal(path) in seen:
                raise ValueError(f"{path!r} looks the same as another path")
            seen.add(normal(path))
        return fields


@dataclass(frozen=True)
class Wanted:
    """The expected object and the weight of each field that counts."""

    value: dict[str, Any]
    fields: dict[Path, float]


@dataclass(frozen=True)
class JsonMatch(Judge[JsonMatchConfig, Wanted]):
    """Compares objects field by field."""

    def expect(self, item: dict[str, Any]) -> Wanted:
        """The item's object, in which every listed field must be."""
        place = self.config.reference
        value = item_value(item, place)
        if not isinstance(value, dict):
            raise ItemError(f"the item's field '{place}' is not a JSON object")
        try:
            value = with_normal_keys(value)
        except SameKeys as error:
            raise ItemError(f"the item's field '{place}': {error}") from error
        if self.config.fields is None:
            return Wanted(value, {(key,): 1.0 for key in value})
        listed = self.config.fields.items()
        fields = {tuple(normal(path).split(".")): weight for path, weight in listed}
        for path in fields:
            _require(value, path, place)
        return Wanted(value, fields)

    def answers(self, item: dict[str, Any], expected: Wanted) -> tuple[str, ...]:
        """The expected object as JSON, its keys in the item's order."""
        del expected
        return (json.dumps(item_value(item, self.config.reference), ensure_ascii=False),)

    def compare(self, sample: Sample, expected: Wanted) -> Outcome:
        """Sub-scores are `parseable` and `fields`."""
        try:
            found = find_object(sample.output_text)
            value = with_normal_keys(found.value)
        except (Malformed, SameKeys):
            return Outcome(False, 0.0, {"parseable": 0.0, "fields": 0.0})
        whole = found.alone or self.config.surrounding == "ignore"
        parseable = 1.0 if whole else 0.5
        wrong = self._wrong(value, expected)
        extra = 0 if self.config.unexpected == "ignore" else _unexpected(value, expected)
        share = _share(expected, wrong, extra)
        subscores = {"parseable": parseable, "fields": share}
        # Not decided by share == 1: rounding could hide a field of tiny weight.
        if whole and not wrong and not extra:
            return Outcome(True, 1.0, subscores)
        weight = self.config.parseable_weight
        # min: rounding may carry the mean of ones just above one.
        return Outcome(False, min(1.0, weight * parseable + (1 - weight) * share), subscores)

    def _wrong(self, value: Any, wanted: Wanted) -> set[Path]:
        return {path for path in wanted.fields if not self._same(value, wanted.value, path)}

    def _same(self, found: Any, wanted: Any, path: Path) -> bool:
        for step in path:
            if isinstance(found, list) != isinstance(wanted, list):
                return False
            try:
                found = look_up(found, (step,))
            except Missing:
                return False
            wanted = look_up(wanted, (step,))
        normalise = self.config.normalise
        return canonical(found, normalise) == canonical(wanted, normalise)


def _share(wanted: Wanted, wrong: set[Path], extra: int) -> float:
    """Weighted share of right fields; an unexpected one is a wrong one of mean weight."""
    if not wrong and not extra:
        return 1.0
    total = math.fsum(wanted.fields.values())
    right = math.fsum(weight for path, weight in wanted.fields.items() if path not in wrong)
    mean = total / len(wanted.fields) if wanted.fields else 1.0
    return right / (total + extra * mean)


def _require(value: dict[str, Any], path: Path, place: str) -> None:
    try:
        look_up(value, path)
    except Missing as error:
        raise ItemError(f"the item's field '{place}' has no field '{error}'") from error


def _unexpected(value: Any, wanted: Wanted) -> int:
    """Count the fields that are neither listed nor in the expected object, at any depth.

    A listed field is compared whole, so nothing inside it is counted here a second time.
    """

    def count(found: Any, expected: Any, place: Path) -> int:
        if type(found) is not type(expected):
            return 0
        total, known = 0, _members(expected)
        for key, inner in _members(found).items():
            here = (*place, key)
            if here in wanted.fields:
                continue
            total += count(inner, known[key], here) if key in known else 1
        return total

    return count(value, wanted.value, ())


def _members(value: Any) -> dict[str, Any]:
    """What is in an object or a list, by the steps of paths; nothing is in any other value."""
    if isinstance(value, list):
        return {str(position): one for position, one in enumerate(value)}
    return value if isinstance(value, dict) else {}


JSON_MATCH = family(JsonMatchConfig, JsonMatch)
