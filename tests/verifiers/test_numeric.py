"""`numeric`: tolerances, units, what is required. Reading numbers has its own tests."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import Grade, Grader, GraderConfigError, Sample, Status, build, grader_hash

FLOATS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda number: round(number, 3))
TOLERANCES = st.floats(0, 10).map(lambda number: round(number, 2))


def numeric(**config: Any) -> Grader:
    """Build a numeric grader."""
    return build({"type": "numeric", **config})


def grade(text: str, answer: Any, **config: Any) -> Grade:
    """Grade a text against an answer."""
    return numeric(**config).grade(Sample(output_text=text), {"answer": answer})


@given(FLOATS, FLOATS, TOLERANCES, TOLERANCES)
def test_a_number_is_right_within_the_larger_tolerance(
    found: float, wanted: float, absolute: float, relative: float
) -> None:
    one, other = Fraction(repr(found)), Fraction(repr(wanted))
    bound = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(other))
    for text in (f"{found!r}", f"The answer is {found!r}."):
        result = grade(text, wanted, absolute=absolute, relative=relative)
        assert result.passed == (abs(one - other) <= bound)
        assert result.score == (1 if result.passed else 0.1)


def test_bounds_are_exact_where_floats_are_not() -> None:
    assert grade("0.3", 0.1, absolute=0.2).passed
    assert not grade("0.30000000000000004", 0.3).passed
    assert grade(str(10**30 + 1), 10**30 + 1).passed
    assert not grade(str(10**30), 10**30 + 1).passed
    assert grade("1.1", 1, relative=0.1).passed
    assert grade("1/3", "1/3").passed and not grade("0.333", "1/3").passed


@given(st.integers(-(10**30), 10**30) | FLOATS, st.sampled_from([None, "km", "°F", "%"]))
def test_the_reference_passes(answer: Any, unit: str | None) -> None:
    for decimal in (".", ","):
        for find in ("last", "whole"):
            grader = numeric(unit=unit, decimal=decimal, find=find, unit_required=unit is not None)
            text = grader.reference({"answer": answer})
            assert text is not None
            assert grader.grade(Sample(output_text=text), {"answer": answer}).passed


@pytest.mark.parametrize(
    "answer", ["5 km", " 1,234.5 ", "-3/4", "2 million", "25 %", "3 × 10^8 m/s", "72 °F"]
)
def test_an_answer_in_words_is_its_own_reference(answer: str) -> None:
    text = numeric(find="whole").reference({"answer": answer})
    assert text == answer.strip()


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("5000 m", "5 km", True),
        ("It is 5 kilometres away.", "5 km", True),
        ("5", "5 km", True),
        ("5 in total", "5 km", True),
        ("5 apples", "5 km", False),
        ("5 parsecs", "5 km", False),
        ("$5", "5 km", False),
        ("5 kilowatt hours", "5 kWh", True),
        ("5 kilowatt hours", "5 kW", False),
        ("5 kW", "5 kWh", False),
        ("60 miles per hour", "60 mph", True),
        ("60 miles per hour", "60 miles", False),
        ("36 km per hour", "10 m / s", True),
        ("9 square feet", "1 sq yd", True),
        ("9 square feet", "9 ft", False),
        ("20 square meters", "20 m²", True),
        ("1 nautical mile", "1852 m", True),
        ("1 nautical mile", "1 mile", False),
        ("68 ° F", "20 °C", True),
        ("68 deg F", "20 °C", True),
        ("68° Fahrenheit", "20 °C", True),
        ("5 kms", "5 km", True),
        ("8 Mb", "1 MB", True),
        ("8 Mb", "8 MB", False),
        ("1 h 30 min", "90 min", True),
        ("90 min", "1 h 30 min", True),
        ("1 h 30 min", "1.5 h", True),
        ("1 h 30 min", 30, False),
        ("1 h 30 min", 90, False),
        ("minus 5 °C", "-5 °C", True),
        ("minus 5 °C", "5 °C", False),
        ("10 - 5 km", "5 km", False),
        ("5 kg", "5 km", False),
        ("5 km/min", "5 km", False),
        ("5 km/min", "300 km/h", True),
        ("5%", "5 km", False),
        ("1.5 h", "90 minutes", True),
        ("20 degrees", "20 °C", True),
        ("68 °F", "20 °C", True),
        ("68", "20 °C", False),
        ("5 kg", 5, True),
        ("25", "25 %", True),
        ("0.25", "25 %", False),
    ],
)
def test_units_are_converted_or_wrong(text: str, answer: Any, right: bool) -> None:
    assert grade(text, answer).passed == right


def test_the_configured_unit_is_that_of_items_without_one() -> None:
    assert grade("5000 m", 5, unit="km").passed
    assert grade("5 m", "5 m", unit="km").passed
    assert grade("0.4 km", 500, unit="m", absolute=100).passed
    assert not grade("0.4 km", 500, unit="m", absolute=99.9).passed


def test_a_unit_can_be_required() -> None:
    assert grade("5 km", 5, unit="km", unit_required=True).passed
    missing = grade("5", 5, unit="km", unit_required=True)
    assert (missing.status, missing.score) == (Status.FAILED, 0.1)
    broken = grade("5 km", 5, unit_required=True)
    assert (broken.status, broken.error_kind) == (Status.ERRORED, "item")


def test_percent_can_be_a_share() -> None:
    for text in ("25%", "0.25", "1/4"):
        assert grade(text, 0.25, percent="share").passed
        assert grade(text, "25 %", percent="share").passed
    assert not grade("25", "25 %", percent="share").passed
    assert grade("25%", 25).passed and not grade("25%", 0.25).passed


def test_the_whole_text_can_be_asked_for() -> None:
    assert grade("42 doubled is 84", 84).passed
    assert not grade("42 doubled is 84", 84, find="whole").passed
    assert grade(" 84\n", 84, find="whole").passed


def test_the_decimal_mark_can_be_a_comma() -> None:
    assert grade("1.234,5", 1234.5, decimal=",").passed
    assert not grade("1.5", 1.5, decimal=",").passed


def test_scores_tell_a_wrong_number_from_none() -> None:
    wrong, none = grade("6", 5), grade("no idea", 5)
    assert wrong.subscores == {"parseable": 1.0, "value": 0.0} and wrong.score == 0.1
    assert none.subscores == {"parseable": 0.0, "value": 0.0} and none.score == 0.0
    assert grade("6", 5, parseable_weight=0).score == 0


@pytest.mark.parametrize(
    "text", ["٥", "５", "−−5", "1e999", "9" * 5000, "5" + "0" * 2000, "5" * 1_000_000, "NaN", "5½"]
)
def test_hostile_numbers_fail(text: str) -> None:
    for answer in (5, 0, 1e308):
        assert grade(text, answer, relative=1e300).status is Status.FAILED


@pytest.mark.parametrize(
    "answer",
    [None, True, [5], {}, "", "five", "5 apples", "٥", "1e999", "1,23", "5 km/pc", "9" * 1001],
)
def test_an_answer_that_is_no_number_is_errored(answer: Any) -> None:
    for item in ({"answer": answer}, {}):
        result = numeric().grade(Sample(output_text="5"), item)
        assert (result.status, result.error_kind) == (Status.ERRORED, "item")
        assert numeric().reference(item) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"absolute": -1}, "absolute"),
        ({"relative": "0.1"}, "relative"),
        ({"unit": "parsec"}, "unit"),
        ({"unit": "%", "percent": "share"}, "unit"),
        ({"find": "first"}, "find"),
        ({"decimal": "'"}, "decimal"),
        ({"tolerance": 1}, "tolerance"),
        ({"reference": "a b"}, "reference"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        numeric(**config)
    assert caught.value.path == path


def test_names_of_the_same_unit_are_the_same_grader() -> None:
    kilometres, km = ({"type": "numeric", "unit": unit} for unit in ("kilometres", "km"))
    assert grader_hash(kilometres) == grader_hash(km)
