"""Numbers in prose against how Python writes them, and those that must not be guessed."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers.quantities import (
    MAX_LOOKED_AT,
    Quantity,
    Style,
    Unreadable,
    last_quantity,
    whole_quantity,
)

ENGLISH = Style()
GERMAN = Style(decimal=",")
PROSE = st.sampled_from(["", "It is ", "a = ", "(", "so 7 of them, i.e. ", "答案是", "**", "$"])
AFTER = st.sampled_from(["", ".", ", I think", "!", ")", " apples", " of B2", "です", "**"])
DECIMALS = st.decimals(-(10**12), 10**12, allow_nan=False, places=3)


def last(text: str, style: Style = ENGLISH) -> Any:
    """The value of the last quantity, None if it is unreadable."""
    try:
        return last_quantity(text, style).value
    except Unreadable:
        return None


def whole(text: str, style: Style = ENGLISH) -> Any:
    """The value of the whole text, None if it is unreadable."""
    try:
        return whole_quantity(text, style).value
    except Unreadable:
        return None


@given(DECIMALS, PROSE, AFTER, st.booleans(), st.booleans())
def test_decimals_as_python_writes_them(
    number: Any, before: str, after: str, grouped: bool, real_minus: bool
) -> None:
    text = f"{number:,f}" if grouped else f"{number:f}"
    german = text.translate(str.maketrans(",.", ".,"))
    if real_minus:
        text, german = text.replace("-", "\u2212"), german.replace("-", "\u2212")
    assert whole(text) == whole(german, GERMAN) == Fraction(number)
    assert last(before + text + after) == last(before + german + after, GERMAN) == Fraction(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_as_python_writes_them(number: float) -> None:
    assert whole(repr(number)) == last(f"about {number!r}.") == Fraction(repr(number))


@given(st.integers(0, 999), st.integers(0, 999), st.integers(1, 999), st.sampled_from("-+ "))
def test_fractions_and_mixed_numbers(number: int, top: int, bottom: int, sign: str) -> None:
    factor = -1 if sign == "-" else 1
    assert whole(f"{sign}{top}/{bottom}") == factor * Fraction(top, bottom)
    mixed = factor * (number + Fraction(top, bottom)) if top < bottom else None
    assert whole(f"{sign}{number} {top}/{bottom}") == mixed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 × 10^8 m/s", 3 * 10**8),
        ("3x10^{8}", 3 * 10**8),
        ("3 \\times 10^{-2}", Fraction(3, 100)),
        ("3*10**2", 300),
        ("1'234'567", 1234567),
        ("1\u00a0234\u202f567", None),
        ("1\u202f234\u202f567", 1234567),
        ("two plus two is 4", 4),
        ("2 million", 2_000_000),
        ("1.5 Billion euros", 1_500_000_000),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("007", 7),
        ("the 3rd", 3),
        ("\\boxed{42}", 42),
        ("3-5", 5),
        ("3–5", 5),
        ("(2)-5", 5),
        ("-$5", -5),
        ("$-5", -5),
        ("costs 5€", 5),
        ("42 deaths by COVID-19", 42),
        ("5 in room B2 or b_3", 5),
        ("12:30", 30),
    ],
)
def test_the_last_number(text: str, value: Any) -> None:
    assert last(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "none", "٣", "５", "1٣", "٣1", "5 or rather ٣", "½", "5½", "5 ½", "5三", "5万",
        "x²5", "5²", "1,23", "1,2,3", "1.2.3", "1,234,56", "1,234'567", "1234,567", "5\\,000",
        "5{,}000", "1 000", "±5", "√2", "x^2", "2^10", "\\frac{3}{4}", "answer–5", "answer—5",
        "‐5", "--5", "−−5", "－5", "05/12/2024", "1/2/3", "1/0", "3 5/4", "1e999", "1e9999999",
        "3x10^9999", "B2", "0x1F", "5k", "COVID-19", "NaN", "Infinity", "inf",
        "9" * 1001, "1" + ",000" * 400, "1/" + "9" * 1001,
    ],
)  # fmt: skip
def test_what_is_not_certain_is_unreadable(text: str) -> None:
    assert last(text) is None
    assert whole(text) is None


@pytest.mark.parametrize(
    "text", ["5 apples", "5.", "5,", "3-5", "a 5", "5 5", "5 km/min", "5th", "5 m m"]
)
def test_a_whole_text_is_nothing_but_the_quantity(text: str) -> None:
    assert whole(text) is None
    assert last(text) == 5


def test_units_follow_the_number() -> None:
    quantity = last_quantity("It is 5 thousand km", ENGLISH)
    assert quantity.value == 5000 and quantity.unit is not None and quantity.unit.symbol == "km"
    assert last_quantity("5 apples", ENGLISH) == Quantity(Fraction(5), None)
    unknown = last_quantity("5 km/min", ENGLISH).unit
    assert unknown is not None and unknown.dimension == "unknown"


def test_percent_is_a_unit_or_a_hundredth() -> None:
    share = Style(percent="share")
    for text in ("25%", "25 %", "25 percent", "25\\%"):
        assert last_quantity(text, share) == Quantity(Fraction(1, 4), None)
        assert last(text) == 25


def test_only_so_many_names_are_looked_at() -> None:
    assert last("5 " + "a1 " * (MAX_LOOKED_AT - 1)) == 5
    assert last("5 " + "a1 " * MAX_LOOKED_AT) is None


@given(HOSTILE_TEXT, st.sampled_from([ENGLISH, GERMAN, Style(".", "share")]))
def test_any_text_is_read_or_unreadable_and_a_whole_one_is_its_last(
    text: str, style: Style
) -> None:
    value = whole(text, style)
    if value is not None:
        assert last(text, style) == value


@pytest.mark.parametrize(
    "text",
    ["1 " * 32_000, "9" * 65_000, "1," * 32_000, "1/" * 32_000, "-" * 65_000, "1 x 10^" * 9_000,
     "$ " * 32_000, "5" + " " * 65_000, "1e" * 32_000, "a1" * 32_000, "5 million" * 7_000],
    ids=lambda text: text[:9],
)  # fmt: skip
def test_long_lines_end(text: str) -> None:
    last(text)
    whole(text)
