"""Which JSON Schemas are accepted, and the place of the mistake in those that are not."""

from typing import Any

import pytest

from verifiers.schemas import (
    DIALECT,
    MAX_CHAIN,
    MAX_PATTERNS,
    MAX_SCHEMA_CHARS,
    SchemaProblem,
    check_schema,
)


def chain(length: int, width: int = 1) -> dict[str, Any]:
    """A schema whose definitions refer to the next one, so many times each."""
    definitions: dict[str, Any] = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * width}
        for number in range(length)
    }
    return {"$defs": {**definitions, f"d{length}": {}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": DIALECT, "type": "object"},
        {"properties": {"$ref": {"type": "string"}, "surprise": True, "not": False}},
        {"enum": [{"$ref": "http://example.com", "surprise": 1}]},
        {"properties": {"child": {"$ref": "#"}}},
        {
            "$defs": {"a/b": {}, "~": {}},
            "allOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/~0"}],
        },
        {"definitions": {"": {"type": "null"}}, "items": {"$ref": "#/definitions/"}},
        {"prefixItems": [{}, {"$ref": "#/prefixItems/0"}]},
        {"pattern": r"^\pL+$", "patternProperties": {"^x-": {}}},
        {"format": "date", "items": {"format": "uuid"}},
        chain(10),
        chain(6, 2),
    ],
)
def test_a_good_schema_is_accepted(schema: dict[str, Any]) -> None:
    check_schema(schema, check_formats=True)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "text"}, "type"),
        ({"properties": {"a": {"minimum": "1"}}}, "properties.a.minimum"),
        ({"properties": []}, "properties"),
        ({"required": "a"}, "required"),
        ({"items": [{}]}, "items"),
        ({"properties": {"a": {"requried": ["b"]}}}, "properties.a.requried"),
        ({"nullable": True}, "nullable"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$dynamicRef": "#x"}, "$dynamicRef"),
        ({"items": {"$id": "http://example.com/x"}}, "items.$id"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"pattern": "(a"}, "pattern"),
        ({"items": {"pattern": r"\pL{1000}"}}, "items.pattern"),
        ({"patternProperties": {"(": {}}}, "patternProperties"),
        ({"allOf": [{}, {"format": "uri"}]}, "allOf.1.format"),
        ({"description": "x" * MAX_SCHEMA_CHARS}, ""),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(SchemaProblem) as caught:
        check_schema(schema, check_formats=True)
    assert caught.value.path == path


def test_formats_that_are_to_be_ignored_can_be_any() -> None:
    check_schema({"format": "uri"}, check_formats=False)


@pytest.mark.parametrize(
    "reference",
    [
        "http://example.com/schema.json",
        "https://json-schema.org/draft/2020-12/schema",
        "file:///etc/passwd",
        "other.json#/x",
        "#anchor",
        "#/$defs/missing",
        "#/$defs",
        "#/properties/a/type",
        "#/$defs/b%20c",
        "",
        "/",
    ],
)
def test_a_reference_leads_to_a_schema_in_the_same_schema(reference: str) -> None:
    schema = {
        "$defs": {"b c": {}},
        "properties": {"a": {"type": "string"}, "b": {"$ref": reference}},
    }
    with pytest.raises(SchemaProblem, match="does not lead") as caught:
        check_schema(schema, check_formats=True)
    assert caught.value.path == "properties.b.$ref"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"if": {}, "else": {"not": {"$ref": "#"}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
        {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/a"}]}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        chain(MAX_CHAIN),
    ],
)
def test_a_schema_that_refers_to_itself_for_the_same_value_is_refused(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(SchemaProblem, match="itself"):
        check_schema(schema, check_formats=True)


def test_schemas_that_double_with_each_step_are_refused() -> None:
    with pytest.raises(SchemaProblem, match="too many"):
        check_schema(chain(15, 2), check_formats=True)


def test_a_schema_nested_as_deep_as_json_may_be_is_accepted_or_refused() -> None:
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(60):
        schema = {"items": schema}
    try:
        check_schema(schema, check_formats=True)
    except SchemaProblem as problem:
        assert "nested" in str(problem)


def test_more_patterns_than_compile_in_no_time_are_refused() -> None:
    patterns = [{"pattern": f"x{number}"} for number in range(MAX_PATTERNS)]
    check_schema({"allOf": patterns + patterns[:5]}, check_formats=True)
    with pytest.raises(SchemaProblem, match="patterns") as caught:
        check_schema({"allOf": patterns, "patternProperties": {"y": {}}}, check_formats=True)
    assert caught.value.path
