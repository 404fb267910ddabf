"""Bounds, look-up and equality of JSON values."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.verifiers.strategies import JSON, OBJECTS, SCALARS
from verifiers.texts import normal
from verifiers.values import (
    MAX_DEPTH,
    MAX_NODES,
    Missing,
    Normalise,
    canonical,
    exact,
    is_number,
    json_problem,
    look_up,
)

EXACT = Normalise(casefold=False, strip=False, numbers=False)


def nested(depth: int) -> Any:
    """Return a list in a list ... `depth` times."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def same_json(one: Any, other: Any) -> bool:
    """Compare two JSON values by the book, without any canonical form."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return Fraction(str(one)) == Fraction(str(other))
    if isinstance(one, str) and isinstance(other, str):
        return normal(one) == normal(other)
    return type(one) is type(other) and one == other


@given(JSON)
def test_json_has_no_problem(value: Any) -> None:
    assert json_problem(value) is None


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "not finite"),
        ([float("-inf")], "not finite"),
        (10**1001, "too large"),
        ({1: 2}, "not text"),
        ({"\ud800": 1}, "not text"),
        (["\udfff"], "not valid Unicode"),
        ((1, 2), "tuple"),
        (b"x", "bytes"),
        ([0] * (MAX_NODES + 1), "more than"),
        (nested(MAX_DEPTH + 1), "deeper"),
        (nested(100_000), "deeper"),
    ],
)
def test_what_is_not_bounded_json_is_named(value: Any, problem: str) -> None:
    found = json_problem(value)
    assert found is not None and problem in found


def test_the_depth_limit_itself_is_allowed() -> None:
    assert json_problem(nested(MAX_DEPTH)) is None


def test_cycles_and_shared_fans_end_at_the_bounds() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert json_problem(cycle) is not None
    fan: Any = 1
    for _ in range(60):
        fan = [fan, fan]
    assert json_problem(fan) is not None


@given(JSON, JSON)
@example(True, 1)
@example(1, 1.0)
@example([0], [False])
@example(0.0, -0.0)
@example({"a": [1, "1"]}, {"a": [1.0, "1"]})
def test_without_normalisation_canonical_is_json_equality(one: Any, other: Any) -> None:
    assert (canonical(one, EXACT) == canonical(other, EXACT)) == same_json(one, other)


@given(SCALARS.filter(lambda value: not isinstance(value, str)))
def test_a_number_or_literal_equals_its_text(value: Any) -> None:
    assert canonical(value, Normalise()) == canonical(json.dumps(value), Normalise())
    assert canonical(value, EXACT) != canonical(json.dumps(value), EXACT)


@given(st.integers(-(10**15), 10**15), st.integers(0, 5))
def test_numbers_written_differently_are_equal(number: int, zeros: int) -> None:
    for text in (f" {number}\n", f"{number}.{'0' * (zeros + 1)}", f"{number}E{zeros:03}"):
        expected = number * 10**zeros if "E" in text else number
        assert canonical(text, Normalise()) == canonical(expected, Normalise())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Kitchen", "kitchen"),
        (" living \t room\n", "living room"),
        ("50", 50),
        (50.0, "50"),
        ("1e2", 100),
        ("STRASSE", "straße"),
        ("True", True),
        (["50", {"a": "X"}], [50, {"a": "x"}]),
    ],
)
def test_normalised_equalities(one: Any, other: Any) -> None:
    assert canonical(one, Normalise()) == canonical(other, Normalise())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the kitchen", "kitchen"),
        ("livingroom", "living room"),
        (True, 1),
        (False, 0),
        (None, ""),
        ("007", 7),
        ("+5", 5),
        ("٣", 3),
        ("５０", 50),
        ("−5", -5),
        ("1_000", 1000),
        ("NaN", "0"),
        ([1, 2], [2, 1]),
        ({"A": 1}, {"a": 1}),
        ([], {}),
        (0.1 + 0.2, 0.3),
    ],
)
def test_normalised_differences(one: Any, other: Any) -> None:
    assert canonical(one, Normalise()) != canonical(other, Normalise())


@pytest.mark.parametrize(
    ("one", "other"),
    [("May 1, 2024", "may 1 2024"), ("a-b_c/d", "abcd"), ("it's", 'it"s'), ("x^2*y", "x2y")],
)
def test_punctuation_is_ignored_only_where_that_is_asked_for(one: str, other: str) -> None:
    asked = Normalise(punctuation=True)
    assert canonical(one, asked) == canonical(other, asked)
    assert canonical(one, Normalise()) != canonical(other, Normalise())
    assert canonical("1.5", asked) != canonical("15", asked) == canonical(15, asked)


@given(st.text(max_size=8))
def test_each_normalisation_can_be_switched_off(text: str) -> None:
    keep_case = Normalise(casefold=False, numbers=False)  # 0e0 and 0E0 are the same number.
    keep_space = Normalise(strip=False)
    assert (canonical(text.upper(), keep_case) == canonical(text, keep_case)) == (
        " ".join(text.upper().split()) == " ".join(text.split())
    )
    assert canonical(text + " ", keep_space) != canonical(text, keep_space)


@given(st.text(alphabet="0123456789.-+eE٣ ", max_size=6))
@example("9" * 1000)
@example("9" * 1001)
@example("1e400")
@example("1e308")
def test_a_number_is_what_json_reads_as_one(text: str) -> None:
    try:
        value = json.loads(text)
        is_json = text.strip() == text and abs(value) != float("inf") and len(text) <= 1000
    except ValueError:
        is_json = False
    assert is_number(text) == is_json


@given(OBJECTS)
def test_every_path_of_an_object_leads_to_its_value(value: dict[str, Any]) -> None:
    def walk(inner: Any, path: tuple[str, ...]) -> None:
        assert look_up(value, path) is inner
        children: Any = ()
        if isinstance(inner, dict):
            children = inner.items()
        elif isinstance(inner, list):
            children = enumerate(inner)
        for key, child in children:
            walk(child, (*path, str(key)))

    walk(value, ())


@pytest.mark.parametrize("path", ["b", "a.x", "a.2", "a.-1", "a.00", "a.٠", "a.0.0", "c.0"])
def test_a_path_that_leads_nowhere_is_missing(path: str) -> None:
    with pytest.raises(Missing, match=path):
        look_up({"a": [1, 2], "c": "text"}, path.split("."))


@given(st.integers(-(10**30), 10**30), st.integers(0, 20))
def test_numbers_are_exactly_the_decimals_they_are_written_as(digits: int, places: int) -> None:
    assert exact(digits) == digits
    value = float(f"{digits}e-{places}")
    assert exact(value) == Fraction(json.dumps(value))
    assert exact(0.1) * 3 == exact(0.3)
