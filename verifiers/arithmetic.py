"""`arithmetic`: an expression made of the item's numbers that comes to the item's target.

As in the numbers round of Countdown or the game of 24: `{"numbers": [3, 3, 8, 8], "target": 24}`
is solved by `8 / (3 - 8 / 3)`. The expression may be followed by `=` and its right result. It is
evaluated in exact fractions; `verifiers.expressions` says what it may be. `-3` is the given number
-3 or, where that is not given and subtraction is allowed, the given number 3 with a minus.

Score = 1 if all is right, else `parseable_weight` for an expression plus `numbers_weight` times the
share of right numbers: F1 of those used and those given or, where not all need be used, the share
of those used that were given as often. The value alone earns nothing: the target itself would have
it. Sub-scores are `parseable`, `numbers` (if some are given) and `value`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from verifiers.base import GraderConfig, ItemError, Judge, Outcome, Sample, family
from verifiers.expressions import Expression, NotArithmetic, evaluate
from verifiers.templates import ItemPath, item_value
from verifiers.values import exact

Operation: TypeAlias = Literal["+", "-", "*", "/"]

MAX_NUMBERS = 100

_TAGGED = re.compile(r"<answer>([^<]*)</answer>")
_ALL: tuple[Operation, ...] = ("+", "-", "*", "/")


class ArithmeticConfig(GraderConfig):
    """Configuration of `arithmetic`."""

    type: Literal["arithmetic"]
    numbers: ItemPath = Field(default="numbers", description="Path of the list of given numbers.")
    target: ItemPath = Field(default="target", description="Path of the number to reach.")
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
    example: ItemPath | None = Field(
        default=None, description="Path of an expression that is right, to learn from."
    )

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
class Arithmetic(Judge[ArithmeticConfig, Puzzle]):
    """Evaluates the completion's expression."""

    def expect(self, item: dict[str, Any]) -> Puzzle:
        """The item's numbers and target."""
        target = _number(item_value(item, self.config.target), self.config.target)
        if self.config.use == "any":
            return Puzzle(None, target)
        place = self.config.numbers
        given = item_value(item, place)
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_NUMBERS:
            raise ItemError(
                f"the item's field '{place}' is not a list of 1 to {MAX_NUMBERS} numbers"
            )
        return Puzzle(Counter(_number(one, place) for one in given), target)

    def answers(self, item: dict[str, Any], expected: Puzzle) -> tuple[str, ...]:
        """The configured example; where any numbers may be used, else, the target."""
        if self.config.example is not None:
            text = str(item_value(item, self.config.example))
        elif expected.numbers is None and expected.target.denominator == 1:
            text = str(expected.target)
        else:
            return ()
        return (f"<answer>{text}</answer>" if self.config.find == "tag" else text,)

    def compare(self, sample: Sample, expected: Puzzle) -> Outcome:
        """Compare the expression's numbers and its value."""
        try:
            expression = self._read(sample.output_text)
        except NotArithmetic:
            numbers = {} if expected.numbers is None else {"numbers": 0.0}
            return Outcome(False, 0.0, {"parseable": 0.0, **numbers, "value": 0.0})
        subscores = {"parseable": 1.0, "value": float(expression.value == expected.target)}
        if expected.numbers is not None:
            subscores["numbers"] = self._share(expression.numbers, expected.numbers)
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

    def _share(self, used: Sequence[Fraction], given: Counter[Fraction]) -> float:
        right = self._right(Counter(used), given)
        if self.config.use == "some":
            return right / len(used)
        return 2 * right / (len(used) + given.total())

    def _right(self, used: Counter[Fraction], given: Counter[Fraction]) -> int:
        """Count the numbers that were given, those with a minus of the expression's own as well."""
        same = used & given
        if "-" not in self.config.operations:
            return same.total()
        left = {-number: count for number, count in (used - same).items() if number < 0}
        return (same + (Counter(left) & (given - same))).total()


def _number(value: Any, place: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ItemError(f"the item's field '{place}' holds what is not a number")
    return exact(value)


ARITHMETIC = family(ArithmeticConfig, Arithmetic)
