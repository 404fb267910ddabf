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
from verifiers.units import UNKNOWN

ENGLISH = Style()
GERMAN = Style(decimal=",")
PROSE = st.sampled_from(["", "It is ", "a = ", "(", "so 7 of them, i.e. ", "答案是", "**", "$"])
AFTER = st.sampled_from(["", ".", ", I think", "?", ")", " apples", " of B2", "です", "**"])
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
        ("-$5", -5),
        ("$-5", -5),
        ("costs 5€", 5),
        ("42 deaths by COVID-19", 42),
        ("5 in room B2 or b_3", 5),
        ("minus 5", -5),
        ("it is negative 2.5.", Fraction(-5, 2)),
        ("= - 5", -5),
        ("it is \u2212 5", -5),
        ("The answer \u2014 5", 5),
        ("3 / 4", Fraction(3, 4)),
        ("5 hundred", 500),
        ("2 dozen eggs", 24),
        ("3 hundred thousand", 300_000),
        ("1.5 bn", 1_500_000_000),
        ("1.5bn", 1_500_000_000),
        ("was 3, now 5k", 5000),
        ("€5m", 5_000_000),
        ("2 and a half hours", Fraction(5, 2)),
        ("1 234", 1234),
        ("1 234 567.5", Fraction(2469135, 2)),
        ("10 - 3 = 7", 7),
        ("sqrt(9) is 3", 3),
        ("That makes 5!", 5),
        ("**Answer:** **5**", 5),
        ("* 5", 5),
        ("answer (5)", 5),
        ("\\(x = 5\\)", 5),
        ("\\approx 5", 5),
        ("5 - I think", 5),
        ("answer - 5", 5),
        ("answer – 5", 5),
        ("- 5 apples", 5),
        ("\\frac{3}{4}", Fraction(3, 4)),
        ("1\\frac{3}{4}", Fraction(7, 4)),
        ("3/4.", Fraction(3, 4)),
        ("5\\,000", 5000),
        ("5{,}000", 5000),
    ],
)
def test_the_last_number(text: str, value: Any) -> None:
    assert last(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "none", "٣", "５", "1٣", "٣1", "5 or rather ٣", "½", "5½", "5 ½", "5三", "5万",
        "x²5", "5²", "1,23", "1,2,3", "1.2.3", "1,234,56", "1,234'567", "1234,567", "5\\,00",
        "5{,}00", "1 23", "2020 500", "±5", "√2", "x^2", "2^10", "\\frac{x}{4}", "answer–5",
        "answer—5", "‐5", "--5", "−−5", "－5", "05/12/2024", "1/2/3", "1/0", "3 5/4", "1e999",
        "1e9999999", "3x10^9999", "B2", "0x1F", "5x", "COVID-19", "NaN", "Infinity", "inf",
        "9" * 1001, "1" + ",000" * 400, "1/" + "9" * 1001,
    ],
)  # fmt: skip
def test_what_is_not_certain_is_unreadable(text: str) -> None:
    assert last(text) is None
    assert whole(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "10 - 3", "10 -3", "3-5", "3–5", "(2)-5", "(2)5", "x - 5", "x-5", "2x -5", "x + 5", "5 + x",
        "5 * x", "5 - x", "2**3", "2 ** 3", "3 * 5", "**3** * 5", "2^{3}", "2^(3)", "10^-5", "√9",
        "\\sqrt{9}", "\\sqrt 9", "3 \\times 5", "sqrt(9)", "max(3, 5)", "x_{5}", "a = 5!",
        "3 × 5", "3 x 5", "3 times 5", "10 divided by 2", "ten minus 3", "5 squared", "5 plus x",
        "root of 9", "5 ± 2", "≥ 5", "≠ 5", "5+", "|-5|", "3 to 5", "5 or 6", "5 out of 10",
        "10:30", "at 10:30:15", "5 pm", "5 a.m.", "2024-05-12", "May 5", "May 5, 2024", "5 May",
        "12 May 2024", "the 3rd of May", "12.05.2024", "555-1234", "- 5", "= 5!",
        "(2)(5)", "5 5", "hundred and 5", "6 feet 2", "5 hours and a half",
    ],
)  # fmt: skip
def test_a_part_of_something_else_is_no_answer(text: str) -> None:
    for one in (text, f"It is {text}", f"Of 7: {text}."):
        assert last(one) is None
    assert whole(text) is None


def test_an_exclamation_mark_at_the_end_of_a_sentence_is_no_factorial() -> None:
    for text in ("= 5 !", "x = **5!**", "3! + 5!", "There are 5! ways", "5!!", "5! / x", "$5!$"):
        assert last(text) is None, text
    for text in ("5!", "It is 5!", "**Answer: 5!**", "It's 5! Well done.", '"5!"', "It is 5!\nBye"):
        assert last(text) == 5, text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer - 5", 5),
        ("Result – 5", 5),
        ("- 5 apples", 5),
        ("Sold:\n- 3 pears\n- **5** apples", 5),
        ("- 5", None),
        ("List:\n- 5", None),
        ("- 5 °C", None),
        ("Answer: - 5", None),
        ("It is - 5", None),
        ("it fell to - 5", None),
        ("-**5**", None),
        ("= - 5", -5),
        ("it is \u2212 5", -5),
        ("It's -5.", -5),
        ("That’s −5 outside", -5),
    ],
)
def test_a_spaced_dash_is_no_sign_and_refused_where_it_may_be_one(text: str, value: Any) -> None:
    assert last(text) == value


@given(
    st.integers(0, 99), st.integers(0, 99), st.sampled_from(["+", "-", "*", "/", "×", "^", "**"])
)
def test_an_expression_is_never_read_as_one_of_its_numbers(one: int, two: int, sign: str) -> None:
    for text in (f"{one}{sign}{two}", f"It is {one} {sign} {two}"):
        value = last(text)
        assert value is None or (sign == "/" and two and value == Fraction(one, two))
        assert last(f"{text} = 77") == 77


@given(st.integers(0, 50), st.integers(0, 59), st.integers(0, 59), st.sampled_from([" ", " and "]))
def test_quantities_in_smaller_and_smaller_units_are_one(h: int, m: int, s: int, and_: str) -> None:
    text = f"{h} h {m} min{and_}{s} seconds"
    for quantity in (last_quantity(f"It took {text}.", ENGLISH), whole_quantity(text, ENGLISH)):
        assert quantity.value == 3600 * h + 60 * m + s
        assert quantity.unit is not None and (quantity.unit.symbol, quantity.parts) == ("s", 3)


def test_a_list_of_quantities_is_not_one() -> None:
    assert last_quantity("1 h, 90 min", ENGLISH).parts == 1
    assert last("-5 ft 3 in") == -63
    assert last("5 km (5000 m)") == 5000


@pytest.mark.parametrize(
    ("text", "symbol"),
    [
        ("**5** miles", "mi"),
        ("\\boxed{5} km", "km"),
        ("\\boxed{5\\text{ miles}}", "mi"),
        ("$5$ km", "km"),
        ("$5\\,\\mathrm{kg}$", "kg"),
        ("`5` km", "km"),
        ("5 (miles)", "mi"),
        ("5 [in km]", "km"),
        ("5 in miles", "mi"),
        ("costs $5", "?"),
        ("5 €", "?"),
    ],
)
def test_units_are_found_behind_marks(text: str, symbol: str) -> None:
    quantity = last_quantity(text, ENGLISH)
    assert quantity.value == 5
    assert quantity.unit is not None and quantity.unit.symbol == symbol


@pytest.mark.parametrize(
    "text", ["5 apples", "5.", "5,", "a 5", "5 km/parsec", "5th", "5 m m", "5 parsecs"]
)
def test_a_whole_text_is_nothing_but_the_quantity(text: str) -> None:
    assert whole(text) is None
    assert last(text) == 5


def test_units_follow_the_number() -> None:
    quantity = last_quantity("It is 5 thousand km", ENGLISH)
    assert quantity.value == 5000 and quantity.unit is not None and quantity.unit.symbol == "km"
    assert last_quantity("5 in total", ENGLISH) == Quantity(Fraction(5), None)
    for text in ("5 apples", "5 km/parsec", "5/day", "5公里"):
        assert last_quantity(text, ENGLISH) == Quantity(Fraction(5), UNKNOWN)


def test_percent_is_a_unit_or_a_hundredth() -> None:
    share = Style(percent="share")
    for text in ("25%", "25 %", "25 percent", "25\\%"):
        assert last_quantity(text, share) == Quantity(Fraction(1, 4), None)
        assert last(text) == 25


def test_only_so_many_names_are_looked_at() -> None:
    assert last("5 " + "a1 " * (MAX_LOOKED_AT - 1)) == 5
    assert last("5 " + "a1 " * MAX_LOOKED_AT) is None


@given(
    st.lists(
        st.sampled_from([*"0159 -−.,/x*^eh(){}$\\_!", "km", "in", "million", "1 234", "a1", "10^"])
    ).map("".join)
    | HOSTILE_TEXT,
    st.sampled_from([("It was 5 km, ", 7, 600), ("word ", 1, 2000), ("a1 ", 110, 3000)]),
)
def test_a_long_text_is_read_as_a_short_one(end: str, before: tuple[str, int, int]) -> None:
    words, few, many = before
    assert last(words * few + end) == last(words * many + end)


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
     "$ " * 32_000, "5" + " " * 65_000, "1 h " * 16_000,
     "1h30min" * 9_000, "\\frac{3}{" * 9_000, "\\text{" * 9_000, "(9" * 32_000 + ")",
     "1{,}" * 16_000, "more than " * 6_500 + "7", "_" * 65_000 + "7", "7" + "!" * 65_000,
     "1°" * 32_000,
     "f(" * 32_000 + "5", "1 234 " * 9_000, "1e" * 32_000, "a1" * 32_000, "5 million" * 7_000],
    ids=lambda text: text[:9],
)  # fmt: skip
def test_long_lines_end(text: str) -> None:
    last(text)
    whole(text)
