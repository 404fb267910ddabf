"""Validation against plain jsonschema where that is safe, and its bounds where it is not."""

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.verifiers.strategies import JSON
from verifiers.schemas import check_schema
from verifiers.validation import Problem, TooComplex, problems

SMALL = st.integers(0, 4)
NAMES = st.sampled_from(["a", "b", "ab"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 6) | st.sampled_from([0.5, 1.0, "a", "ab", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
# Patterns that Python and RE2 read alike.
PATTERNS = st.sampled_from(["^a", "b$", "a|b", ".", "^ab*$"])
ASSERTIONS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minimum": SMALL,
    "exclusiveMaximum": SMALL,
    "minLength": SMALL,
    "maxLength": SMALL,
    "pattern": PATTERNS,
    "minItems": SMALL,
    "maxItems": SMALL,
    "uniqueItems": st.booleans(),
    "minProperties": SMALL,
    "maxProperties": SMALL,
    "required": st.lists(NAMES, unique=True, max_size=2),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True), max_size=1),
}


def applicators(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas around schemas."""
    some = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            **ASSERTIONS,
            "items": inner,
            "prefixItems": some,
            "contains": inner,
            "properties": named,
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependentSchemas": named,
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
        },
    )


SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.booleans() | st.fixed_dictionaries({}, optional=ASSERTIONS), applicators, max_leaves=4
).map(lambda schema: schema if isinstance(schema, dict) else {"not": {}} if not schema else {})


@given(SCHEMAS, VALUES)
def test_a_value_is_valid_exactly_when_jsonschema_says_so(
    schema: dict[str, Any], value: Any
) -> None:
    check_schema(schema, check_formats=True)
    assert (problems(schema, value, True) == []) == Draft202012Validator(schema).is_valid(value)


@given(JSON)
def test_a_reference_applies_what_it_leads_to(value: Any) -> None:
    tree = {"$defs": {"t": {"type": "object"}}, "additionalProperties": {"$ref": "#"}}
    tree["$ref"] = "#/$defs/t"

    def only_objects(inner: Any) -> bool:
        return isinstance(inner, dict) and all(map(only_objects, inner.values()))

    check_schema(tree, check_formats=True)
    assert (problems(tree, value, True) == []) == only_objects(value)


@given(st.lists(JSON, max_size=4))
def test_items_are_unique_when_no_two_are_written_the_same(items: list[Any]) -> None:
    # JSON's numbers are equal by value, so that 1 and 1.0 must be written alike here.
    texts = {json.dumps(_same_numbers(item), sort_keys=True) for item in items}
    expected = len(texts) == len(items)
    assert (problems({"uniqueItems": True}, items, True) == []) == expected


def _same_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _same_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_same_numbers(one) for one in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"number": str(Fraction(repr(value)))}
    return value


@pytest.mark.parametrize(
    ("value", "divisor", "valid"),
    [
        (0.3, 0.1, True),
        (4.35, 0.01, True),
        (0.35, 0.1, False),
        (10**900, 0.3, False),
        (10**900, 1e-300, True),
        (1e308, 1e-300, True),
        (True, 2, True),
        ("x", 2, True),
    ],
)
def test_multiples_are_exact(value: Any, divisor: float, valid: bool) -> None:
    assert (problems({"multipleOf": divisor}, value, True) == []) == valid


def test_problems_name_the_keyword_and_the_place_in_the_value() -> None:
    schema = {
        "properties": {"a": {"items": {"type": "integer"}}},
        "required": ["b"],
        "additionalProperties": False,
    }
    found = problems(schema, {"a": [1, "x"], "c": 1, "d": 2}, True)
    assert sorted(found, key=repr) == [
        Problem("additionalProperties", ()),
        Problem("additionalProperties", ()),
        Problem("required", ()),
        Problem("type", ("a", 1)),
    ]


def test_formats_are_checked_or_not() -> None:
    assert problems({"format": "date"}, "2024-02-30", True) == [Problem("format", ())]
    assert problems({"format": "date"}, "2024-02-30", False) == []
    assert problems({"format": "date"}, 5, True) == []


def nested(depth: int) -> Any:
    """An object in an object ... `depth` times."""
    value: Any = {}
    for _ in range(depth):
        value = {"c": value}
    return value


DOUBLING = {
    "anyOf": [
        {"properties": {"c": {"$ref": "#"}}, "required": ["x"]},
        {"properties": {"c": {"$ref": "#"}}, "required": ["y"]},
    ]
}
LONG = {"allOf": [{"minimum": number} for number in range(900)]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (DOUBLING, nested(60)),
        ({"items": LONG}, list(range(900, 9_000))),
        ({"additionalProperties": {"enum": list(range(5000))}}, {str(i): -1 for i in range(9000)}),
        ({"pattern": "a"}, "é" * 40_000),
        ({"patternProperties": {"^a{500}$": {}}}, {"é" * 40_000: 1}),
    ],
)
def test_what_would_take_too_long_is_too_complex(schema: dict[str, Any], value: Any) -> None:
    check_schema(schema, check_formats=True)
    with pytest.raises(TooComplex):
        problems(schema, value, True)


def test_many_items_that_cannot_be_sorted_are_compared_in_linear_time() -> None:
    items = [{"a": number} if number % 2 else [number] for number in range(20_000)]
    assert problems({"uniqueItems": True}, items, True) == []
    assert problems({"uniqueItems": True}, [*items, {"a": 1}], True) != []


def test_catastrophic_patterns_end() -> None:
    schema = {"pattern": "^(a+)+$", "patternProperties": {"^(a|aa)+$": False}}
    assert problems(schema, "a" * 30_000 + "!", True) != []
    assert problems({**schema, "additionalProperties": True}, {"a" * 30_000 + "!": 1}, True) == []
