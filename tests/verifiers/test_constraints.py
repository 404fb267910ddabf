"""Each kind of constraint, kept and not kept, and the share in between."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.verifiers.strategies import HOSTILE_TEXT, JSON
from verifiers.constraints import Constraint
from verifiers.texts import count

ADAPTER: TypeAdapter[Any] = TypeAdapter(Constraint)
UNITS = ["characters", "words", "sentences", "lines", "paragraphs", "items"]


def share(text: str, kind: str, **fields: Any) -> float:
    """Check one constraint, given as in a configuration."""
    value: float = ADAPTER.validate_python({"kind": kind, **fields}).share(text)
    return value


@given(st.text("ab. \n-", min_size=1, max_size=40), st.sampled_from(UNITS), st.integers(0, 9))
def test_a_length_is_the_quotient_of_count_and_missed_bound(
    text: str, unit: Any, bound: int
) -> None:
    found = count(unit, text)
    least, most = (share(text, "length", unit=unit, **{b: bound}) for b in ("minimum", "maximum"))
    assert (least == 1.0) == (found >= bound) and (most == 1.0) == (found <= bound)
    assert least == pytest.approx(min(1.0, found / bound) if bound else 1.0)
    assert most == pytest.approx(min(1.0, bound / found) if found else 1.0)
    both = share(text, "length", unit=unit, minimum=bound, maximum=bound)
    assert both == min(least, most)
    assert (both == 1.0) == (found == bound)


WORDS = ["lamp", "Kitchen", "two words", "c++", "été"]


@given(
    st.lists(st.sampled_from([*WORDS, "lamps", "nothing"]), max_size=6),
    st.lists(st.sampled_from(WORDS), min_size=1, unique=True),
)
def test_contained_and_absent_texts_are_counted_as_whole_words(
    said: list[str], wanted: list[str]
) -> None:
    text = ", ".join(said).upper()
    there = sum(word in said for word in wanted) / len(wanted)
    assert share(text, "must_contain", texts=wanted) == pytest.approx(there)
    assert share(text, "must_not_contain", texts=wanted) == pytest.approx(1 - there)
    exact = share(text, "must_contain", texts=wanted, ignore_case=False)
    assert exact == 0.0


def test_parts_of_words_count_only_where_that_is_asked_for() -> None:
    assert share("two lamps", "must_contain", texts=["lamp"]) == 0.0
    assert share("two lamps", "must_contain", texts=["lamp"], whole_words=False) == 1.0
    assert share("two lamps", "must_not_contain", texts=["lamp"]) == 1.0
    assert share("a, b", "must_not_contain", texts=[","]) == 0.0


def test_beginnings_and_ends_are_those_of_the_text_without_blanks_around() -> None:
    text = "\n Yes, it is.  "
    assert share(text, "starts_with", texts=["no", "yes,"]) == 1.0
    assert share(text, "starts_with", texts=["yes"], ignore_case=False) == 0.0
    assert share(text, "ends_with", texts=["IS."]) == 1.0
    assert share(text, "ends_with", texts=["it", "is"]) == 0.0


def test_beginnings_and_ends_are_whole_words_unless_that_is_not_asked_for() -> None:
    for kind, text in (
        ("starts_with", "Category one"),
        ("ends_with", "a wildcat"),
        ("ends_with", "2cat"),
    ):
        assert share(text, kind, texts=["cat"]) == 0.0
        assert share(text, kind, texts=["cat"], whole_words=False) == 1.0
    assert share("Cat, yes", "starts_with", texts=["cat"]) == 1.0
    assert share("#cat", "ends_with", texts=["cat"]) == 1.0
    assert (
        share("cat", "ends_with", texts=["cat"]) == share("cat", "starts_with", texts=["cat"]) == 1
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s\u200borry", "sorry"),
        ("so\u00adrry\u2060", "sorry"),
        ("a cafe\u0301 here", "café"),
        ("a café here", "cafe\u0301"),
        ("the living\nroom is", "living room"),
        ("the living\u00a0 room", "Living\nroom"),
        ("I don’t", "don't"),
        ("I don't", "don’t"),
        ("“quoted”", '"quoted"'),
        ("twenty‑one", "twenty-one"),
    ],
)
def test_a_text_is_found_however_it_is_encoded_or_broken_over_lines(text: str, wanted: str) -> None:
    assert share(text, "must_contain", texts=[wanted]) == 1.0
    assert share(text, "must_not_contain", texts=[wanted], whole_words=False) == 0.0
    assert share(f"{wanted} it is", "starts_with", texts=[wanted]) == 1.0
    assert share(f"it is {text}", "ends_with", texts=[text]) == 1.0


def test_numbers_are_seen_through_what_nobody_sees() -> None:
    assert share("th\u200bree lamps, 3 doors", "numbers", written="digits") == 0.5


@given(JSON)
def test_json_is_recognised_with_its_type(value: Any) -> None:
    text = json.dumps(value)
    assert share(text, "format", form="json") == 1.0
    assert share(text, "format", form="json_object") == float(isinstance(value, dict))
    assert share(text, "format", form="json_array") == float(isinstance(value, list))
    assert share(text + " ok", "format", form="json") == 0.0


@pytest.mark.parametrize("text", ["NaN", '{"a": 1, "a": 2}', "[" * 1000, "{'a': 1}", "[1,]", "٣"])
def test_what_json_does_not_allow_is_not_json(text: str) -> None:
    assert share(text, "format", form="json") == 0.0


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("bullet_list", "- a\n\n* b\n  + c", 1.0),
        ("bullet_list", "Here:\n- a\n- b\n- c", 0.75),
        ("bullet_list", "1. a", 0.0),
        ("numbered_list", "1. a\n2) b\n\n3. c", 1.0),
        ("numbered_list", "1. a\n1. b", 0.5),
        ("numbered_list", "2. a", 0.0),
        ("numbered_list", "- a", 0.0),
        ("single_line", "\n one line \n", 1.0),
        ("single_line", "two\nlines", 0.0),
        ("single_line", "two\u2028lines", 0.0),
        ("lowercase", "all low, 3 of ß", 1.0),
        ("lowercase", "Not low", 0.0),
        ("lowercase", "123", 0.0),
        ("uppercase", "ALL UP!", 1.0),
        ("uppercase", "NOT Up", 0.0),
    ],
)
def test_forms(form: str, text: str, expected: float) -> None:
    assert share(text, "format", form=form) == expected


@pytest.mark.parametrize(
    ("written", "text", "minimum", "expected"),
    [
        ("digits", "3 lamps and 12 doors", 1, 1.0),
        ("digits", "three lamps", 1, 0.0),
        ("digits", "3 lamps, two doors", 1, 0.5),
        ("digits", "this one has 3", 1, 1.0),
        ("digits", "one lamp", 1, 0.0),
        ("digits", "٣ lamps", 1, 0.0),
        ("digits", "no number", 1, 0.0),
        ("digits", "no number", 0, 1.0),
        ("digits", "3 lamps", 2, 0.5),
        ("words", "three lamps", 1, 1.0),
        ("words", "one lamp", 1, 1.0),
        ("words", "twenty-one lamps, 3 doors", 1, 0.5),
        ("words", "three lamps, ² too", 1, 0.5),
        ("words", "the 1st of three", 1, 0.5),
    ],
)
def test_numbers_in_digits_or_in_words(
    written: str, text: str, minimum: int, expected: float
) -> None:
    assert share(text, "numbers", written=written, minimum=minimum) == expected


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "length", "unit": "words"},
        {"kind": "length", "unit": "words", "minimum": 2, "maximum": 1},
        {"kind": "length", "unit": "words", "minimum": -1},
        {"kind": "length", "unit": "words", "minimum": "1"},
        {"kind": "length", "unit": "syllables", "minimum": 1},
        {"kind": "must_contain", "texts": []},
        {"kind": "must_contain", "texts": [" "]},
        {"kind": "must_contain", "texts": ["\u200b\u00ad"]},
        {"kind": "must_contain", "texts": [1]},
        {"kind": "must_contain", "texts": "lamp"},
        {"kind": "must_contain", "texts": ["a"], "texst": ["b"]},
        {"kind": "format", "form": "yaml"},
        {"kind": "numbers", "written": "roman"},
        {"kind": "rhyme"},
        {},
    ],
)
def test_a_wrong_constraint_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(config)


EVERY_KIND: list[dict[str, Any]] = [
    *({"kind": "length", "unit": unit, "minimum": 2, "maximum": 3} for unit in UNITS),
    {"kind": "must_contain", "texts": ["a", "NaN"]},
    {"kind": "must_not_contain", "texts": ["a", "["], "whole_words": False},
    {"kind": "starts_with", "texts": ["{"]},
    {"kind": "ends_with", "texts": ["}"]},
    *(
        {"kind": "format", "form": form}
        for form in (
            *("json", "json_object", "json_array", "bullet_list"),
            *("numbered_list", "single_line", "lowercase", "uppercase"),
        )
    ),
    {"kind": "numbers", "written": "digits"},
    {"kind": "numbers", "written": "words", "minimum": 0},
]


@pytest.mark.parametrize("config", EVERY_KIND, ids=json.dumps)
@given(text=HOSTILE_TEXT.filter(str.strip))
def test_any_text_that_is_not_blank_has_a_share(config: dict[str, Any], text: str) -> None:
    assert 0 <= ADAPTER.validate_python(config).share(text) <= 1
