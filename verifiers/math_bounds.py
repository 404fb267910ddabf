r"""What is not given to the computer algebra: what it could choke on, and what it misreads.

All checks are linear in the text. They keep out what is cheap to recognise (power towers, large
factorials, deep brackets, tasks in place of answers); the rest is up to the deadline of the process
that grades.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from verifiers.math_answers import MAX_CHARS

MAX_DEPTH = 5
MAX_BARS = 6
MAX_DIGITS = 300
MAX_POWER_DIGITS = 20_000
"""So many digits the numbers of an answer may have together, once its powers are worked out."""

MAX_EXPANDED = 30
"""The highest power of a bracket with symbols in it: to compare, it is multiplied out."""

_TASK = re.compile(
    r"\\(?:[a-z]*int|sum|prod|lim(?:sup|inf)?|det|gcd|lcm|max|min|binom|choose|mod|pmod)(?![A-Za-z])"
    r"|\\[dt]?frac\s*\{\s*d\s*\}"
)
_FACTORIAL = re.compile(r"[0-9]{4,}\s*!|[0-9)}\]]\s*!\s*!|[)}\]]\s*!")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
_UNCERTAIN = re.compile(r"[√∛∜∑∏∫¼½¾⅓⅔⅛]")
# math-verify adds numbers that stand side by side: 2(3) is 5 to it, and 12 000 is 0.
_NUMBER = r"[-+]?[0-9.]+\s*"
_SIDE_BY_SIDE = re.compile(
    r"[0-9.](?:\s|\\[,;:! ])+[0-9]"
    rf"|[0-9]\s*(?:\\left\s*)?\(\s*{_NUMBER}(?:\\right\s*)?\)"
    rf"|\(\s*{_NUMBER}(?:\\right\s*)?\)\s*(?:\\left\s*)?[(0-9]"
    r"|^\{[0-9]+\}\s*\{"
    # Runs of digits with marks between them that are neither decimals nor groups of three.
    r"|[0-9]\.[0-9]+[.,][0-9]"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<power>\^|\*\*)|(?P<sign>[-+])|(?P<factorial>!)"
    r"|(?P<open>\\?[({\[])|(?P<close>\\?[)}\]])|(?P<command>\\[A-Za-z]+)|\\?.)",
    re.DOTALL,
)


class NotRead(ValueError):
    """An answer that is not given to the computer algebra."""


def check(text: str, prose: bool) -> None:
    """Raise NotRead for an answer that is too heavy, or that would be misread."""
    if len(text) > MAX_CHARS:
        raise NotRead("too long")
    if _OTHER_DIGIT.search(text) or _UNCERTAIN.search(text):
        raise NotRead("digits or signs that are not read")
    if not prose and _SIDE_BY_SIDE.search(text):
        raise NotRead("numbers side by side")
    if _TASK.search(text):
        raise NotRead("a task, not an answer")
    if _FACTORIAL.search(text):
        raise NotRead("a factorial that is too large")
    if any(len(run) > MAX_DIGITS for run in re.findall("[0-9]+", text)):
        raise NotRead("a number that is too long")
    if text.count("|") > MAX_BARS:
        raise NotRead("too many bars")
    _Scanner(text, prose).read()


@dataclass(frozen=True)
class _Size:
    """How many digits the numbers of an expression have together, and what it is at most.

    `symbols` says that it has any, `bracket` that it stands in one.
    """

    digits: int = 1
    bound: int = 1
    symbols: bool = False
    bracket: bool = False

    def to_the(self, exponent: _Size) -> _Size:
        """The size of a power; what has no numbers, such as x, is taken for 1."""
        if self.bracket and self.symbols and exponent.bound > MAX_EXPANDED:
            raise NotRead("a power that is too large")
        bound = min(self.bound ** min(exponent.bound, 64), _TOO_LARGE)
        return _Size(self.digits * max(1, exponent.bound), bound, self.symbols)

    def factorial(self) -> _Size:
        """The size of a factorial of up to three digits, as only those are taken."""
        return self if self.bound == 1 else _Size(3 * self.bound, _TOO_LARGE, self.symbols)


_OPERATORS = frozenset(
    {"\\frac", "\\dfrac", "\\tfrac", "\\sqrt", "\\left", "\\right", "\\cdot", "\\times"}
)
_TOO_LARGE = MAX_POWER_DIGITS + 1


def _number(text: str) -> _Size:
    whole, _, decimals = text.partition(".")
    # At least 2, since then no sum is more than the product; 0.001 may be divided by.
    bound = max(2, int(whole)) * 10 ** len(decimals)
    return _Size(len(text), min(bound, _TOO_LARGE))


def _together(sizes: Sequence[_Size]) -> _Size:
    digits = sum(size.digits for size in sizes)
    if digits > MAX_POWER_DIGITS:
        raise NotRead("a power that is too large")
    bound = min(math.prod(size.bound for size in sizes), _TOO_LARGE)
    return _Size(max(1, digits), bound, any(size.symbols for size in sizes))


class _Scanner:
    """Reads an expression to bound what its powers come to; raises NotRead."""

    def __init__(self, text: str, prose: bool) -> None:
        self._text = text
        self._prose = prose
        self._position = 0

    def read(self, depth: int = 0) -> _Size:
        """Read on to the bracket that closes this depth, or to the end."""
        if depth > MAX_DEPTH:
            raise NotRead("nested too deep")
        sizes: list[_Size] = []
        while (token := self._next()) is not None:
            if token["power"]:
                exponent = self._exponent(depth)
                sizes.append((sizes.pop() if sizes else _Size()).to_the(exponent))
            elif token["factorial"] and sizes:
                sizes.append(sizes.pop().factorial())
            elif token["close"] and depth:
                return _together(sizes)
            elif token["close"] and not self._prose:
                raise NotRead("a bracket that was not opened")
            else:
                sizes.append(self._atom(token, depth))
        if depth and not self._prose:
            raise NotRead("a bracket that is not closed")
        return _together(sizes)

    def _next(self) -> re.Match[str] | None:
        match = _TOKEN.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
        return match

    def _follows(self, kind: str) -> bool:
        match = _TOKEN.match(self._text, self._position)
        return match is not None and match[kind] is not None

    def _atom(self, token: re.Match[str], depth: int) -> _Size:
        if token["number"]:
            return _number(token["number"])
        if token["open"]:
            return replace(self.read(depth + 1), bracket=True)
        name = token[0].strip()
        return _Size(symbols=name.isalpha() or (name[1:].isalpha() and name not in _OPERATORS))

    def _exponent(self, depth: int) -> _Size:
        token = self._next()
        while token is not None and token["sign"]:
            token = self._next()
        if token is None or token["power"] or token["close"]:
            raise NotRead("a power without an exponent")
        sizes = [self._atom(token, depth)]
        while token["command"] and self._follows("open"):
            self._next()
            sizes.append(self.read(depth + 1))
        if self._follows("power") or self._follows("factorial"):
            raise NotRead("an exponent that goes on, without braces")
        return _together(sizes)
