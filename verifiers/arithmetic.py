"""`arithmetic`: an expression made of the item's numbers that comes to the item's target.

As in the numbers round of Countdown or the game of 24: `{"numbers": [3, 3, 8, 8], "target": 24}`
is solved by `8 / (3 - 8 / 3)`. The expression may be followed by `=` and its right result. It is
evaluated in exact fractions; `verifiers.expressions` says what it may be.

Score = 1 if all is right, else `parseable_weight` for an expression plus `numbers_weight` times the
share of right numbers: F1 of those used and those given or, where not all need be used, the share
of those used that were given as often. The value alone earns nothing: the target itself would have
it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

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
from verifiers.expressions import Expression, NotArithmetic, evaluate
from verifiers.templates import item_value, parse_path
from verifiers.values import exact

Operation: TypeAlias = Literal["+", "-", "*", "/"]

MAX_NUMBERS = 100

_TAGGED = re.compile(r"<answer>([^<]*)</answer>")
_ALL: tuple[Operation, ...] = ("+", "-", "*", "/")


class ArithmeticConfig(GraderConfig):
    """Configuration of `arithmetic`."""

    type: Literal["arithmetic"]
    numbers: str = Field(default="numbers", description="Path of the list of given numbers.")
    target: str = Field(default="target", description="Path of the number to reach.")
    use: Literal["all", "some", "any"] = Field(
        default="all",
        description="Each given number exactly once; each at most once; any numbers, none given.",
    )
    operations: tuple[Operation, ...] = Field(
        default=_ALL, min_length=1, strict=False, description="The operations that may be used."
    )
    find: Literal["whole", "last_line", "tag"] = Field(
        default="whole",
        description="Where the expression is: the whole text, its last line that is not blank, "
        "or between the last <answer> and </answer>.",
    )
    parseable_weight: float = Field(default=0.1, ge=0, lt=1)
    numbers_weight: float = Field(default=0.4, ge=0, lt=1)
    example: str | None = Field(
        default=None, description="Path of an expression that is right, to learn from."
    )

    @field_validator("numbers", "target", "example")
    @classmethod
    def _is_path(cls, text: str | None) -> str | None:
        return None if text is None else ".".join(parse_path(text))

    @field_validator("operations")
    @classmethod
    def _in_order(cls, operations: Sequence[Operation]) -> tuple[Operation, ...]:
        return tuple(one for one in _ALL if one in operations)

    @model_validator(mode="after")
    def _leave_room(self) -> Self:
        if self.parseable_weight + self.numbers_weight >= 1:
            raise ValueError("parseable_weight and numbers_weight together are 1 or more")
        return self


@dataclass(frozen=True)
class Puzzle:
    """The given numbers, None where any may be used, and the number to reach."""

    numbers: Counter[Fraction] | None
    target: Fraction


@dataclass(frozen=True)
class Arithmetic:
    """Evaluates the completion's expression."""

    config: ArithmeticConfig

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score by sub-scores `parseable`, `numbers` (if some are given) and `value`."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the configured example; where any numbers may be used, else, the target."""
        try:
            puzzle = self._expect(checked_item(item))
            if self.config.example is not None:
                text = str(item_value(item, tuple(self.config.example.split("."))))
            elif puzzle.numbers is None and puzzle.target.denominator == 1:
                text = str(puzzle.target)
            else:
                return None
        except ItemError:
            return None  # The item lacks the example, or its grade says what is wrong with it.
        return passing(
            self, f"<answer>{text}</answer>" if self.config.find == "tag" else text, item
        )

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def _expect(self, item: dict[str, Any]) -> Puzzle:
        target = _number(item_value(item, tuple(self.config.target.split("."))), self.config.target)
        if self.config.use == "any":
            return Puzzle(None, target)
        place = self.config.numbers
        given = item_value(item, tuple(place.split(".")))
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_NUMBERS:
            raise ItemError(
                f"the item's field '{place}' is not a list of 1 to {MAX_NUMBERS} numbers"
            )
        return Puzzle(Counter(_number(one, place) for one in given), target)

    def _compare(self, sample: Sample, puzzle: Puzzle) -> Outcome:
        try:
            expression = self._read(sample.output_text)
        except NotArithmetic:
            numbers = {} if puzzle.numbers is None else {"numbers": 0.0}
            return Outcome(False, 0.0, {"parseable": 0.0, **numbers, "value": 0.0})
        subscores = {"parseable": 1.0, "value": float(expression.value == puzzle.target)}
        if puzzle.numbers is not None:
            subscores["numbers"] = self._share(Counter(expression.numbers), puzzle.numbers)
        if all(score == 1.0 for score in subscores.values()):
            return Outcome(True, 1.0, subscores)
        shaped = self.config.numbers_weight * subscores.get("numbers", 0.0)
        return Outcome(False, self.config.parseable_weight + shaped, subscores)

    def _read(self, text: str) -> Expression:
        """Read the expression and check the result that is claimed for it."""
        left, *claimed = self._place(text).split("=")
        expression = evaluate(left)
        if not expression.operations <= set(self.config.operations):
            raise NotArithmetic("an operation that is not allowed")
        if len(claimed) > 1:
            raise NotArithmetic("more than one result")
        for one in claimed:
            result = evaluate(one)
            if result.operations or result.value != expression.value:
                raise NotArithmetic("a result that is not the expression's")
        return expression

    def _place(self, text: str) -> str:
        if self.config.find == "whole":
            return text
        if self.config.find == "last_line":
            return text.rstrip().rpartition("\n")[2]
        tagged = _TAGGED.findall(text)
        if not tagged:
            raise NotArithmetic("no <answer>")
        last: str = tagged[-1]
        return last

    def _share(self, used: Counter[Fraction], given: Counter[Fraction]) -> float:
        right = (used & given).total()
        if self.config.use == "some":
            return right / used.total()
        return 2 * right / (used.total() + given.total())


def _number(value: Any, place: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ItemError(f"the item's field '{place}' holds what is not a number")
    return exact(value)


def _make(config: ArithmeticConfig, _build: BuildNested) -> Grader:
    return Arithmetic(config)


ARITHMETIC = Family(ArithmeticConfig, _make)
