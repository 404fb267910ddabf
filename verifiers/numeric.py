"""`numeric`: the number in a completion, with its unit, against the item's number.

The number is the last one of the text, or the text itself. `verifiers.quantities` says how numbers
are written, `verifiers.number_before`, `verifiers.number_words` and `verifiers.number_after` which
are not read as they are a part of something else, and `verifiers.units` which units are known.

The item's number is a JSON number or text such as "2.5 km"; `unit` names the unit where the item
gives none. Where there is a unit, one of the same dimension is converted, and one of another
dimension or a word that is no known unit is wrong ("5 parsecs", "5 apples"). A number with none, or
with a word that only goes on with the sentence ("5 in total"), counts in the wanted unit unless
`unit_required`; "degrees" are degrees of the wanted temperature. Without a wanted unit, what
follows the number is not looked at, but "1 h 30 min" is then no one number, and "7°" is an angle.

A number is right when it differs by no more than the larger of `absolute`, in the wanted unit, and
`relative` times the wanted number. All of it is reckoned in exact fractions.

Score = 1 if right, else `parseable_weight` if a number could be read, else 0; sub-scores
`parseable`, a number could be read, and `value`, it is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, field_validator

from verifiers.base import (
    GraderConfig,
    GraderConfigError,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.quantities import Quantity, Style, Unreadable, last_quantity, whole_quantity
from verifiers.templates import ItemPath, item_value
from verifiers.texts import normal
from verifiers.units import DEGREE, PERCENT, TEMPERATURE, Unit, convert, unit_named
from verifiers.values import exact


class NumericConfig(GraderConfig):
    """Configuration of `numeric`."""

    type: Literal["numeric"]
    reference: ItemPath = Field(
        default="answer", description="Path of the number in the item; {{item.x}} too."
    )
    find: Literal["last", "whole"] = Field(
        default="last", description="The last number of the text, or a text that is only a number."
    )
    absolute: float = Field(default=0, ge=0, description="Tolerance, in the wanted unit.")
    relative: float = Field(default=0, ge=0, description="Tolerance, as a share of the number.")
    unit: str | None = Field(default=None, description="Unit of item numbers that have none.")
    unit_required: bool = Field(default=False, description="A number without a unit is wrong.")
    percent: Literal["number", "share"] = Field(
        default="number", description="25 % is 25, or it is 0.25."
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="The decimal mark; the other one separates thousands."
    )
    parseable_weight: float = Field(default=0.1, ge=0, lt=1)

    @field_validator("unit")
    @classmethod
    def _is_unit(cls, text: str | None) -> str | None:
        return None if text is None else unit_named(text).symbol


@dataclass(frozen=True)
class Numeric(Judge[NumericConfig, Quantity]):
    """Compares quantities."""

    def answers(self, item: dict[str, Any], expected: Quantity) -> Iterator[str]:
        """The item's number as it is written there, with its unit and without."""
        value = item_value(item, self.config.reference)
        if isinstance(value, str):
            text = value.strip()
        else:
            text = str(Decimal(repr(value))).replace(".", self.config.decimal)
        if expected.unit is not None:
            yield f"{text} {expected.unit.symbol}"
        yield text

    @property
    def _style(self) -> Style:
        return Style(self.config.decimal, self.config.percent)

    def expect(self, item: dict[str, Any]) -> Quantity:
        """The item's number, in the configured unit if it has none of its own."""
        place = self.config.reference
        wanted = self._item_quantity(item_value(item, place), place)
        if wanted.unit is None and self.config.unit is not None:
            wanted = Quantity(wanted.value, unit_named(self.config.unit))
        if wanted.unit is None and self.config.unit_required:
            raise ItemError(f"the item's field '{place}' has no unit, and one is required")
        return wanted

    def _item_quantity(self, value: Any, place: str) -> Quantity:
        if isinstance(value, str):
            try:
                return whole_quantity(normal(value), self._style)
            except Unreadable as error:
                raise ItemError(f"the item's field '{place}' is not a number: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ItemError(f"the item's field '{place}' is not a number")
        return Quantity(exact(value), None)

    def compare(self, sample: Sample, expected: Quantity) -> Outcome:
        """Read the completion's number and compare."""
        read = whole_quantity if self.config.find == "whole" else last_quantity
        try:
            found = read(normal(sample.output_text), self._style)
        except Unreadable:
            return Outcome(False, 0.0, {"parseable": 0.0, "value": 0.0})
        right = self._is_right(found, expected)
        score = 1.0 if right else self.config.parseable_weight
        return Outcome(right, score, {"parseable": 1.0, "value": float(right)})

    def _is_right(self, found: Quantity, wanted: Quantity) -> bool:
        value = found.value
        if wanted.unit is None and (found.parts > 1 or found.unit is DEGREE):
            return False
        if wanted.unit is not None:
            unit = self._unit(found.unit, wanted.unit)
            if unit is None or unit.dimension != wanted.unit.dimension:
                return False
            value = convert(value, unit, wanted.unit)
        tolerance = max(
            exact(self.config.absolute), exact(self.config.relative) * abs(wanted.value)
        )
        return abs(value - wanted.value) <= tolerance

    def _unit(self, found: Unit | None, wanted: Unit) -> Unit | None:
        """The unit that the number counts in, None where it must have one and has none."""
        if found is None:
            return None if self.config.unit_required else wanted
        return wanted if found is DEGREE and wanted.dimension == TEMPERATURE else found


def _make(config: NumericConfig) -> Numeric:
    if config.percent == "share" and config.unit == PERCENT.symbol:
        raise GraderConfigError("unit", "is none where 25 % is 0.25")
    return Numeric(config)


NUMERIC = family(NumericConfig, _make)
