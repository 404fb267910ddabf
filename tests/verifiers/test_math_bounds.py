"""What is kept from the computer algebra: all that is large, against what Python makes of it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers.math_bounds import MAX_EXPANDED, MAX_POWER_DIGITS, NotRead, check

LEAVES = st.sampled_from(["0", "1", "2", "3", "9", "10", "77", "123456"])
POWERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "*"]), inner).map(lambda t: f"({''.join(t)})"),
        st.tuples(inner, inner).map(lambda t: f"({t[0]})^{{{t[1]}}}"),
        st.tuples(LEAVES, LEAVES).map("^".join),
    ),
    max_leaves=6,
)


class _Large(Exception):
    """The value has more digits than are reckoned here."""


@dataclass(frozen=True)
class _Number:
    """A whole number that refuses to become large."""

    value: int

    def __add__(self, other: _Number) -> _Number:
        return _Number(self.value + other.value)

    def __mul__(self, other: _Number) -> _Number:
        return _Number(self.value * other.value)

    def __pow__(self, other: _Number) -> _Number:
        if self.value > 1 and other.value * math.log10(self.value) > 3 * MAX_POWER_DIGITS:
            raise _Large
        exponent = other.value if self.value > 1 else min(other.value, 1)
        return _Number(self.value**exponent)


def digits(text: str) -> float:
    """The digits of what an expression comes to."""
    python = text.replace("^", "**").translate(str.maketrans("{}", "()"))
    source = re.sub("[0-9]+", lambda run: f"N({run[0]})", python)
    try:
        value: _Number = eval(source, {"N": _Number})
    except _Large:
        return math.inf
    return value.value.bit_length() * math.log10(2)


@given(POWERS)
def test_what_is_read_has_no_more_digits_than_allowed(text: str) -> None:
    try:
        check(text, prose=False)
    except NotRead:
        return
    assert digits(text) <= 2 * MAX_POWER_DIGITS


@pytest.mark.parametrize(
    "text",
    [
        "42", "-1.5", "\\frac{1}{2}", "3\\frac{1}{2}", "2^{1024}", "2^{2^{10}}", "10^{-30}", "5!",
        "e^{x^2}", "x^{2024}", "(x+1)^{30}", "(\\frac{1}{2})^{100}", "\\sqrt[3]{8}", "(1,2]",
        "\\{1,2\\}", "|x-1|", "(x+1)(x-1)", "2(x+1)", "x_{1}^{2}", "x^\\frac{1}{2}", "90^\\circ",
        "\\left(\\frac{\\sqrt{2}}{2}\\right)^{2}", "1,000,000", "f(2)", "n!", "9" * 300, "a^{-(b)}",
    ],
)  # fmt: skip
def test_answers_are_read(text: str) -> None:
    check(text, prose=False)


@pytest.mark.parametrize(
    "text",
    [
        # too large
        "9^{9^9}", "9^9^9", "9**9**9", "44**19**35", "2^{99999}", "((2^{99})^{99})^{99}",
        "2^{1/0.0000001}", "2^{" + "(1+1)" * 15 + "}", "9^\\frac{99999}{1}", "2^{9!}", "2^3!",
        "2^{-99999}", "10000!", "3!!", "(3!)!", "(99)!", "9" * 301, "x^{9^{9}}",
        "2^{\\frac{1}{\\frac{1}{99999}}}", f"(x+1)^{{{MAX_EXPANDED + 1}}}", "(\\sin(x))^{99}",
        "x" * 401, "(((((((1)))))))", "{" * 50 + "}" * 50, "|x|" * 4,
        "\\sqrt{" * 30 + "2" + "}" * 30,
        # tasks
        "\\int_0^1 x dx", "\\sum_{n=1}^{9} n", "\\prod n", "\\lim_{x \\to 0} x", "\\binom{9}{3}",
        "\\frac{d}{dx} x^2", "\\iint x", "\\det A", "\\gcd(4, 6)",
        # misread
        "12 000", "2(3)", "(2)(3)", "(2)3", "2\\left(3\\right)", "5\\,000", "1.2.3", "1.000,5",
        "{2}{3}", "٣", "５", "3√2", "½", "\u09ea",
        # broken
        "(1", "1)", "{", "}", "2^", "^", "2^^3", "2^)", "\\frac{1}{2",
    ],
)  # fmt: skip
def test_what_is_too_heavy_or_misread_is_not_read(text: str) -> None:
    with pytest.raises(NotRead):
        check(text, prose=False)


def test_prose_may_have_brackets_and_numbers_side_by_side() -> None:
    check("a) is 5 2 :-) or 12 000", prose=True)
    for text in ("it is 9^{9^9}", "it is ٣", "it is 99999!", "x" * 401):
        with pytest.raises(NotRead):
            check(text, prose=True)


@given(HOSTILE_TEXT, st.booleans())
def test_any_text_is_read_or_not(text: str, prose: bool) -> None:
    try:
        check(text, prose)
    except NotRead as reason:
        assert str(reason)
