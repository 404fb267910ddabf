"""`json_schema`: scores, surroundings, references. Validation has its own tests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON, KEYS
from verifiers import Grade, Grader, GraderConfigError, Sample, Status, build, grader_hash

LIGHT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "area": {"type": "string", "minLength": 1},
        "level": {"type": "integer", "minimum": 0, "maximum": 100},
        "color": {"enum": ["red", "green"]},
    },
    "required": ["area", "level"],
    "additionalProperties": False,
}


def grader(schema: Any = LIGHT, **config: Any) -> Grader:
    """Build a json_schema grader."""
    return build({"type": "json_schema", "schema": schema, **config})


def grade(output: Any, schema: Any = LIGHT, **config: Any) -> Grade:
    """Grade an output, as JSON unless it is text."""
    text = output if isinstance(output, str) else json.dumps(output)
    return grader(schema, **config).grade(Sample(output_text=text), {})


@given(st.text(min_size=1, max_size=5), st.integers(0, 100))
def test_a_valid_value_passes_with_every_subscore_full(area: str, level: int) -> None:
    result = grade({"area": area, "level": level})
    assert result.passed and result.score == 1
    assert result.subscores == {"parseable": 1.0, "fields": 1.0}


@pytest.mark.parametrize(
    ("output", "fields"),
    [
        ({"area": "den", "level": 101}, 1 / 2),
        ({"area": "den"}, 1 / 2),
        ({"area": 1, "level": "x"}, 0),
        ({"area": "den", "level": 5, "color": "blue"}, 2 / 3),
        ({"area": "den", "level": 5, "x": 1}, 2 / 3),
        ({"area": "den", "level": 5, "x": 1, "y": 2}, 2 / 4),
        ({"area": "", "color": "red", "x": 1}, 1 / 4),
        ({}, 0),
        ([], 0),
        (5, 0),
        ("null", 0),
    ],
)
def test_the_score_is_the_share_of_right_fields(output: Any, fields: float) -> None:
    result = grade(output)
    assert not result.passed
    assert result.subscores == {"parseable": 1.0, "fields": pytest.approx(fields)}
    assert result.score == pytest.approx(0.1 + 0.9 * fields)


@given(st.dictionaries(KEYS | st.sampled_from(sorted(LIGHT["properties"])), JSON, max_size=5))
def test_a_field_more_that_is_wrong_never_scores_more(value: dict[str, Any]) -> None:
    before = grade(value)
    for key, wrong in (("unexpected_key", 1), ("level", -1)):
        if key not in value:
            after = grade({**value, key: wrong})
            assert not after.passed
            assert after.score is not None and before.score is not None
            assert after.score <= before.score


def test_rules_about_the_whole_count_as_a_wrong_field_each() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "required": ["a"], "maxProperties": 1}
    assert grade({"a": 1, "b": 2}, schema).subscores["fields"] == pytest.approx(2 / 3)
    nameless = {"type": "array", "items": {"type": "integer"}}
    assert grade([1, "x"], nameless).subscores == {"parseable": 1.0, "fields": 0.0}


def test_surrounding_text_costs_half_of_parseable_unless_it_is_ignored() -> None:
    text = 'Sure [1]:\n```json\n{"area": "den", "level": 1}\n```'
    refused = grade(text)
    assert not refused.passed and refused.score == pytest.approx(0.95)
    assert grade(text, surrounding="ignore").passed
    assert grade('"{"', {"type": "string"}).passed
    assert grade("so: [1]", {"items": {}}, surrounding="ignore").passed
    assert not grade("so: 1", {"type": "integer"}, surrounding="ignore").passed


@pytest.mark.parametrize("text", ["", "{", '{"area": "a", "area": "b"}', "NaN", "1e999", "[" * 99])
def test_malformed_output_fails_with_zero(text: str) -> None:
    result = grade(text, {})
    assert (result.status, result.score) == (Status.FAILED, 0.0)


@given(HOSTILE_TEXT)
def test_every_json_value_is_valid_under_the_empty_schema(text: str) -> None:
    result = grade(text, {})
    assert result.passed == (result.subscores.get("parseable") == 1.0)


def test_a_value_that_takes_too_long_fails() -> None:
    doubling = {
        "anyOf": [
            {"properties": {"c": {"$ref": "#"}}, "required": ["x"]},
            {"properties": {"c": {"$ref": "#"}}, "required": ["y"]},
        ]
    }
    result = grade('{"c":' * 60 + "{}" + "}" * 60, doubling)
    assert result.status is Status.FAILED
    assert result.score == pytest.approx(0.1)


@given(JSON)
def test_the_example_is_the_reference_where_it_is_valid(value: Any) -> None:
    one = grader({"type": ["object", "integer"]}, example="{{item.wanted}}")
    text = one.reference({"wanted": value})
    valid = isinstance(value, dict | int) and not isinstance(value, bool)
    valid = valid or (isinstance(value, float) and value.is_integer())
    assert (text is not None) == valid
    if text is not None:
        assert one.grade(Sample(output_text=text), {"wanted": value}).passed


def test_there_is_no_reference_without_an_example() -> None:
    assert grader().reference({"wanted": {}}) is None
    assert grader({}, example="wanted").reference({}) is None
    assert grader({}, example="wanted").reference({"wanted": float("nan")}) is None


def test_the_hash_depends_on_the_schema_and_keeps_its_name() -> None:
    config = {"type": "json_schema", "schema": LIGHT}
    assert grader().describe()["schema"] == LIGHT
    assert grader_hash(config) != grader_hash({**config, "schema": {**LIGHT, "title": "Light"}})


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "schema"),
        ({"schema": []}, "schema"),
        ({"schema": True}, "schema"),
        ({"json_schema": {}}, "schema"),
        ({"schema": {"type": "text"}}, "schema.type"),
        ({"schema": {"properties": {"a": {"patern": "x"}}}}, "schema.properties.a.patern"),
        ({"schema": {"$ref": "http://example.com/"}}, "schema.$ref"),
        ({"schema": {"format": "uri"}}, "schema.format"),
        ({"schema": {"description": "x" * 70_000}}, "schema"),
        ({"schema": {}, "example": "a b"}, "example"),
        ({"schema": {}, "formats": True}, "formats"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "json_schema", **config})
    assert caught.value.path == path


def test_a_format_that_cannot_be_checked_can_be_ignored() -> None:
    assert grade('"x"', {"format": "uri"}, formats="ignore").passed
