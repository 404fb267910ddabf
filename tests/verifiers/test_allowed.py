"""Allowed values against the list of everything that they allow."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.allowed import accept_object, example_object, parse_object
from verifiers.base import ItemError
from verifiers.values import Normalise

EXACT = Normalise(casefold=False, strip=False, numbers=False)
MISSING = object()

FEW_KEYS = st.sampled_from(["a", "b"])
SIMPLE = st.sampled_from([0, 1, "x", "", None, True])
VALUE: st.SearchStrategy[Any] = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(FEW_KEYS, st.lists(inner, min_size=1, max_size=2), max_size=2)
    ),
    max_leaves=4,
)
POSSIBLE = st.dictionaries(FEW_KEYS, st.lists(VALUE, min_size=1, max_size=2), max_size=2)


def every_value(choice: Any) -> list[Any]:
    """List what one allowed value stands for."""
    if isinstance(choice, dict):
        return every_object(choice)
    if isinstance(choice, list):
        return [list(values) for values in product(*map(every_value, choice))]
    return [choice]


def every_object(possible: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """List every object that is accepted."""
    columns = [
        [value for choice in choices for value in every_value(choice)]
        + ([MISSING] if "" in choices else [])
        for choices in possible.values()
    ]
    return [
        {key: value for key, value in zip(possible, values, strict=True) if value is not MISSING}
        for values in product(*columns)
    ]


def spelled(value: Any) -> str:
    """Write a value so that 1 and true differ and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)


@given(POSSIBLE, st.data())
def test_exactly_what_is_listed_is_accepted(possible: dict[str, Any], data: st.DataObject) -> None:
    listed = every_object(possible)
    other = data.draw(st.dictionaries(FEW_KEYS, VALUE, max_size=3))
    tried = [*listed[:20], other, *({**one, "b": 1} for one in listed[:3])]
    allowed = parse_object(possible, "call", EXACT)
    spellings = {spelled(one) for one in listed}
    for value in tried:
        assert accept_object(allowed, value, EXACT) == (spelled(value) in spellings)


@given(POSSIBLE)
def test_the_example_is_accepted_and_leaves_out_what_it_may(possible: dict[str, Any]) -> None:
    allowed = parse_object(possible, "call", EXACT)
    example = example_object(allowed)
    assert accept_object(allowed, example, EXACT)
    assert set(example) == {key for key, choices in possible.items() if "" not in choices}


@given(st.dictionaries(FEW_KEYS, SIMPLE, max_size=2))
def test_a_value_without_its_list_is_the_only_allowed_one(value: dict[str, Any]) -> None:
    wrapped = {key: [one] for key, one in value.items() if one != ""}
    bare = {key: one for key, one in value.items() if one != ""}
    assert parse_object(bare, "", EXACT) == parse_object(wrapped, "", EXACT)


def test_normalisation_reaches_every_depth() -> None:
    allowed = parse_object({"a": [{"b": [["New  York", 1]]}]}, "call", Normalise())
    assert accept_object(allowed, {"a": {"b": ["new york ", "1.0"]}}, Normalise())
    assert not accept_object(allowed, {"a": {"b": ["new york ", "1.0"]}}, EXACT)
    assert not accept_object(allowed, {"A": {"b": ["new york", 1]}}, Normalise())


@pytest.mark.parametrize(
    ("possible", "place"),
    [({"a": []}, r"call\.a"), ({"a": [{"b": []}]}, r"call\.a\.b"), ({"a": [[{"b": []}]]}, r"a\.b")],
)
def test_a_place_that_allows_nothing_is_an_item_error(possible: dict[str, Any], place: str) -> None:
    with pytest.raises(ItemError, match=place):
        parse_object(possible, "call", EXACT)
