r"""`math`: the answer of a mathematical text against the item's, by math-verify.

The answer is in the last `\boxed{...}`, else in the last line that says "answer", else in the last
line; `verifiers.math_answers` says how. It is right when math-verify finds it equal to the item's:
numbers, fractions, percentages (50 % is 0.5, and 50), roots, algebra, equations, sets, intervals,
matrices. Floats are compared rounded to `decimals`.

Answers that would be too much for computer algebra, or that it is known to misread, are not read
at all (`verifiers.math_bounds`): a completion then fails, an item is errored. What still takes too
long is ended by the deadline of the process that grades.

Score = 1 if right, else `parseable_weight` for an answer that could be read, else 0; sub-scores
`parseable`, an answer could be read, and `value`, it is right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from verifiers import math_bounds
from verifiers.base import GraderConfig, ItemError, Judge, Outcome, Sample, family
from verifiers.math_answers import Written, answer_in, formula
from verifiers.math_bounds import NotRead
from verifiers.templates import ItemPath, item_value

_INTEGER = re.compile(rf"-?[0-9]{{1,{math_bounds.MAX_DIGITS}}}")


class MathConfig(GraderConfig):
    """Configuration of `math`."""

    type: Literal["math"]
    reference: ItemPath = Field(
        default="answer", description="Path of the answer in the item; {{item.x}} too."
    )
    find: Literal["any", "boxed"] = Field(
        default="any", description="Where the answer may be; boxed: in \\boxed{...} only."
    )
    worked_out: bool = Field(
        default=True,
        description="A wanted number must be given as one: 391, not 17 * 23, which asks again.",
    )
    decimals: int = Field(default=6, ge=0, le=12, description="Floats are rounded to so many.")
    parseable_weight: float = Field(default=0.1, ge=0, lt=1)


@dataclass(frozen=True)
class Wanted:
    """The item's answer: its text, how that is read, and what it says."""

    text: str
    written: Written
    values: list[Any]


@dataclass(frozen=True)
class Mathematics(Judge[MathConfig, Wanted]):
    """Compares mathematical answers."""

    def answers(self, item: dict[str, Any], expected: Wanted) -> tuple[str, ...]:
        r"""The item's answer, in `\boxed{...}` where it must be or is not found without."""
        del item
        return expected.text, f"\\boxed{{{expected.text}}}"

    def expect(self, item: dict[str, Any]) -> Wanted:
        """The item's answer, read."""
        place = self.config.reference
        value = item_value(item, place)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ItemError(f"the item's field '{place}' is neither text nor a number")
        text = value.strip() if isinstance(value, str) else repr(value)
        written = formula(text)
        try:
            values = _values(written)
        except NotRead as error:
            raise ItemError(f"the item's field '{place}' is {error}") from error
        if not values:
            raise ItemError(f"the item's field '{place}' is not understood as mathematics")
        return Wanted(text, written, values)

    def compare(self, sample: Sample, expected: Wanted) -> Outcome:
        """Read the completion's answer and compare; equal texts need no computer algebra."""
        written = answer_in(sample.output_text, self.config.find == "boxed")
        if written is None:
            return Outcome(False, 0.0, {"parseable": 0.0, "value": 0.0})
        if written.text == expected.written.text:
            return self._outcome(True, True)
        if _INTEGER.fullmatch(written.text) and _INTEGER.fullmatch(expected.written.text):
            # As the computer algebra would say, a hundred times faster.
            return self._outcome(True, int(written.text) == int(expected.written.text))
        try:
            values = _values(written)
        except NotRead:
            values = []
        return self._outcome(bool(values), self._is_right(expected.values, values))

    def _outcome(self, parseable: bool, right: bool) -> Outcome:
        score = 1.0 if right else self.config.parseable_weight * parseable
        return Outcome(right, score, {"parseable": float(parseable), "value": float(right)})

    def _is_right(self, wanted: list[Any], found: list[Any]) -> bool:
        from verifiers.math_library import equal, worked_out

        if self.config.worked_out and all(map(worked_out, wanted)):
            found = [value for value in found if worked_out(value)]
        return bool(found) and equal(wanted, found, self.config.decimals)


def _values(written: Written) -> list[Any]:
    """Read an answer; raises NotRead."""
    math_bounds.check(written.text, written.prose)
    # Imported when first needed: sympy takes longer to import than all else that grades.
    from verifiers.math_library import read

    return read(written)


MATH = family(MathConfig, Mathematics, imports=("verifiers.math_library",))
