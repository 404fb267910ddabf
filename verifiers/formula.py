"""The formula of `multi`: arithmetic over the scores of graders, read without `eval`.

What OpenAI's `calculate_output` has: + - * / ^, parentheses, numbers, names, and the functions min,
max, abs, floor, ceil, exp, sqrt and log. `^` binds tightest and to the right, as in -2^2 = -4.
A formula becomes a list of steps for a stack machine, so that neither its evaluation nor sending it
to another process is recursive, and its time is bounded by its length.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_FORMULA_CHARS = 1_000
MAX_NESTING = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<mark>[-+*/^(),]))"
)
_END = ("the end", "")

_OPERATORS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    # Not **, which makes complex numbers of negative bases.
    "^": math.pow,
}
_ONE_ARGUMENT: dict[str, Callable[[float], float]] = {
    "negative": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
_ANY_ARGUMENTS: dict[str, Callable[[list[float]], float]] = {"min": min, "max": max}
FUNCTIONS = frozenset(_ONE_ARGUMENT.keys() - {"negative"} | _ANY_ARGUMENTS.keys())


class FormulaError(ValueError):
    """The text is not a formula; the message says where."""


class Undefined(ArithmeticError):
    """The formula has no finite value for these scores."""


@dataclass(frozen=True)
class Load:
    """Push a named value."""

    name: str


@dataclass(frozen=True)
class Apply:
    """Replace the topmost `count` values by the result of a function."""

    function: str
    count: int


@dataclass(frozen=True)
class Formula:
    """A formula as steps in the order in which they are carried out; numbers are pushed."""

    steps: tuple[float | Load | Apply, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names whose values the formula needs."""
        return frozenset(step.name for step in self.steps if isinstance(step, Load))

    def evaluate(self, values: Mapping[str, float]) -> float:
        """Return the formula's value; raises Undefined."""
        stack: list[float] = []
        for step in self.steps:
            if isinstance(step, Load):
                stack.append(values[step.name])
            elif isinstance(step, Apply):
                arguments = stack[-step.count :]
                stack[-step.count :] = [_apply(step.function, arguments)]
            else:
                stack.append(step)
        return stack[0]


def parse_formula(text: str) -> Formula:
    """Parse a formula; raises FormulaError."""
    if len(text) > MAX_FORMULA_CHARS:
        raise FormulaError(f"has more than {MAX_FORMULA_CHARS} characters")
    parser = _Parser(_tokens(text))
    parser.sum(0)
    parser.take(_END[0])
    return Formula(tuple(parser.steps))


def _apply(function: str, arguments: list[float]) -> float:
    try:
        if function in _OPERATORS:
            value = _OPERATORS[function](arguments[0], arguments[1])
        elif function in _ONE_ARGUMENT:
            value = _ONE_ARGUMENT[function](arguments[0])
        else:
            value = _ANY_ARGUMENTS[function](arguments)
    except ZeroDivisionError as error:
        raise Undefined("divides by zero") from error
    except (OverflowError, ValueError) as error:
        raise Undefined(f"has no value: {function} of {_listed(arguments)}") from error
    if not math.isfinite(value):
        raise Undefined(f"has no finite value: {function} of {_listed(arguments)}")
    return float(value)


def _listed(arguments: list[float]) -> str:
    return ", ".join(f"{argument:g}" for argument in arguments)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Split into (kind, text); the kind of a mark is the mark itself."""
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise FormulaError(f"cannot be read at {text[position:].strip()[:20]!r}")
        kind = match.lastgroup or ""
        found = match[kind]
        tokens.append((found if kind == "mark" else kind, found))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent; each method reads one kind of expression and appends its steps."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.position = 0
        self.steps: list[float | Load | Apply] = []

    @property
    def next(self) -> tuple[str, str]:
        """The token that is read next."""
        return self.tokens[self.position] if self.position < len(self.tokens) else _END

    def take(self, *kinds: str) -> str:
        """Read a token of one of these kinds; raises FormulaError for any other."""
        kind, text = self.next
        if kind not in kinds:
            found = f"has {text!r}" if text else "ends"
            raise FormulaError(f"{found} where {' or '.join(kinds)} should be")
        self.position += 1
        return text

    def sum(self, depth: int) -> None:
        """Read products with + or - between them."""
        if depth > MAX_NESTING:
            raise FormulaError(f"is nested deeper than {MAX_NESTING} levels")
        self._chain(("+", "-"), self.product, depth)

    def product(self, depth: int) -> None:
        """Read factors with * or / between them."""
        self._chain(("*", "/"), self.factor, depth)

    def factor(self, depth: int) -> None:
        """Read a power with any number of minus signs before it."""
        negative = False
        while self.next[0] == "-":
            self.take("-")
            negative = not negative
        self.atom(depth)
        if self.next[0] == "^":
            self.take("^")
            self.exponent(depth + 1)
            self.steps.append(Apply("^", 2))
        if negative:
            self.steps.append(Apply("negative", 1))

    def exponent(self, depth: int) -> None:
        """Read what follows ^, which may be a negative number or another power."""
        if depth > MAX_NESTING:
            raise FormulaError(f"is nested deeper than {MAX_NESTING} levels")
        self.factor(depth)

    def atom(self, depth: int) -> None:
        """Read a number, a name, a function's call or a sum in parentheses."""
        kind, text = self.next
        self.take("number", "name", "(")
        if kind == "number":
            self.steps.append(_number(text))
        elif kind == "(":
            self.sum(depth + 1)
            self.take(")")
        elif self.next[0] == "(":
            self._call(text, depth)
        else:
            self.steps.append(Load(text))

    def _call(self, name: str, depth: int) -> None:
        if name not in FUNCTIONS:
            raise FormulaError(
                f"has no function {name!r}; there are {', '.join(sorted(FUNCTIONS))}"
            )
        self.take("(")
        self.sum(depth + 1)
        count = 1
        while self.take(",", ")") == ",":
            self.sum(depth + 1)
            count += 1
        if count > 1 and name in _ONE_ARGUMENT:
            raise FormulaError(f"gives {name} more than one argument")
        self.steps.append(Apply(name, count))

    def _chain(self, marks: tuple[str, str], read: Callable[[int], None], depth: int) -> None:
        read(depth)
        while self.next[0] in marks:
            mark = self.take(*marks)
            read(depth)
            self.steps.append(Apply(mark, 2))


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FormulaError(f"has a number that is too large: {text[:20]}")
    return value
