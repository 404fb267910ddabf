"""Arithmetic expressions, evaluated exactly: numbers, `+ - * /`, parentheses, nothing else.

There are no powers, no names and no calls, so that a value has hardly more digits than its text,
and evaluating takes no recursion: no expression is too deep or too large. `×`, `·`, `÷` and the
minus sign U+2212 are the operators they look like; digits are ASCII. A minus where a number is
wanted makes the number or the parenthesis after it negative; before a parenthesis it is the
operation `-`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARS = 2_000

_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?)|([-+*/()×·÷\u2212]))")
_SAME = {"×": "*", "·": "*", "÷": "/", "\u2212": "-"}
_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_NEGATIVE = "negative"
_NEGATIVE_RANK = 3


class NotArithmetic(ValueError):
    """The text is no expression of the kind that is evaluated here."""


@dataclass(frozen=True)
class Expression:
    """What an expression comes to, None if it divides by zero, and what it is made of.

    A number with a minus of its own is negative, and that minus is no operation yet: who gives the
    numbers knows whether it belongs to one of them.
    """

    value: Fraction | None
    numbers: tuple[Fraction, ...]
    operations: frozenset[str]


def evaluate(text: str) -> Expression:
    """Evaluate an expression; raises NotArithmetic."""
    if len(text) > MAX_CHARS:
        raise NotArithmetic("too long")
    machine = _Machine()
    for number, operator in _tokens(text):
        machine.take(number, operator)
    return machine.finish()


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """The numbers and operators of a text, each with the other one empty."""
    text = text.strip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotArithmetic("a character that is neither number nor operator")
        position = match.end()
        yield match[1] or "", _SAME.get(match[2], match[2] or "")


class _Machine:
    """Dijkstra's two stacks: values, and the operators that wait for their second value."""

    def __init__(self) -> None:
        self._values: list[Fraction | None] = []
        self._waiting: list[str] = []
        self._numbers: list[Fraction] = []
        self._operations: set[str] = set()
        self._wants_value = True
        self._negative = False

    def take(self, number: str, operator: str) -> None:
        """Read on by one token."""
        if not self._wants_value:
            self._take_operator(operator)
        elif number:
            self._take_number(Fraction(number))
        elif operator == "-" and not self._negative:
            self._negative = True
        elif operator == "(":
            self._open()
        else:
            raise NotArithmetic("no number where one is wanted")

    def finish(self) -> Expression:
        """Return the expression that was read."""
        if self._wants_value:
            raise NotArithmetic("no number where one is wanted")
        self._apply(1)
        if self._waiting:
            raise NotArithmetic("a parenthesis that is not closed")
        return Expression(self._values[0], tuple(self._numbers), frozenset(self._operations))

    def _open(self) -> None:
        if self._negative:
            self._waiting.append(_NEGATIVE)
            self._operations.add("-")
            self._negative = False
        self._waiting.append("(")

    def _take_number(self, number: Fraction) -> None:
        number = -number if self._negative else number
        self._numbers.append(number)
        self._values.append(number)
        self._wants_value = self._negative = False

    def _take_operator(self, operator: str) -> None:
        if operator == ")":
            self._apply(1)
            if not self._waiting:
                raise NotArithmetic("a parenthesis that was not opened")
            self._waiting.pop()
        elif operator in _RANK:
            self._apply(_RANK[operator])
            self._waiting.append(operator)
            self._operations.add(operator)
            self._wants_value = True
        else:
            raise NotArithmetic("no operator where one is wanted")

    def _apply(self, rank: int) -> None:
        """Apply the operators of at least this rank that wait since the last parenthesis."""
        while self._waiting and _rank(self._waiting[-1]) >= rank:
            operator, right = self._waiting.pop(), self._values.pop()
            if operator == _NEGATIVE:
                self._values.append(None if right is None else -right)
            else:
                self._values.append(_applied(operator, self._values.pop(), right))


def _rank(operator: str) -> int:
    """How tightly what waits binds; a parenthesis that is open waits for its end."""
    return _NEGATIVE_RANK if operator == _NEGATIVE else _RANK.get(operator, 0)


def _applied(operator: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    if left is None or right is None:
        return None
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right if right else None
