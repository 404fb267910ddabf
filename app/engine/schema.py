"""What of JSON Schema can be enforced while a model writes, and how large a schema may be.

llguidance ignores keywords it has never heard of and names those it knows without saying where.
Schemas come from API clients, so every keyword is looked at here first: what is neither enforced
nor a mere annotation is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

MAX_NODES = 4000
"""Values in a schema, keywords and names included."""
MAX_DEPTH = 32
MAX_CHARS = 128 << 10
MAX_INTERSECTED = 12
"""Patterns in a schema that intersects any: whether twenty of them together can be met takes
seconds to tell, and twice as long with each more."""

# fmt: off
_ENFORCED = frozenset({
    "type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref",
    "properties", "patternProperties", "additionalProperties", "required", "minProperties",
    "maxProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "minLength", "maxLength", "pattern", "format",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
})
_ANNOTATIONS = frozenset({
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
    "examples", "deprecated", "readOnly", "writeOnly",
})
# fmt: on
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_LISTED = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_COMBINED = frozenset({"$ref", "anyOf", "oneOf"})
_PATTERNS = ("pattern", "format", "patternProperties")
_NESTED = frozenset({"items", "additionalItems", "additionalProperties"})


class GrammarError(ValueError):
    """A schema or grammar that cannot be followed; the message names what and where."""


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ``GrammarError`` for a schema that is broken, too large or not fully enforceable."""
    _check_size(schema)
    subschemas = dict(_subschemas(schema, "#"))
    for place, part in subschemas.items():
        if isinstance(part, dict):
            _check_keywords(part, place, subschemas)
    _check_patterns([part for part in subschemas.values() if isinstance(part, dict)])
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        place = "/".join(["#", *(str(part) for part in error.absolute_path)])
        raise GrammarError(f"{place}: {error.message[:300]}") from error


def _check_size(schema: Mapping[str, Any]) -> None:
    """Refuses what is too large or too deep before anything recursive looks at it."""
    nodes = chars = 0
    level: list[Any] = [schema]
    for _ in range(MAX_DEPTH):
        if not level:
            return
        below: list[Any] = []
        for value in level:
            nodes += 1
            if isinstance(value, Mapping):
                chars += sum(len(str(name)) for name in value)
                below += value.values()
            elif isinstance(value, list):
                below += value
            else:
                chars += len(str(value))
        if nodes > MAX_NODES or chars > MAX_CHARS:
            raise GrammarError(
                f"the schema is too large: at most {MAX_NODES} values and {MAX_CHARS} characters"
            )
        level = below
    if level:
        raise GrammarError(f"the schema is nested more than {MAX_DEPTH} deep")


def _subschemas(schema: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The schema and all schemas within it, by where they stand (a JSON pointer)."""
    yield place, schema
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        at = f"{place}/{keyword}"
        if keyword in _NAMED and isinstance(value, Mapping):
            for name, part in value.items():
                yield from _subschemas(part, f"{at}/{_escaped(name)}")
        elif isinstance(value, list) and (keyword in _LISTED or keyword == "items"):
            for index, part in enumerate(value):
                yield from _subschemas(part, f"{at}/{index}")
        elif keyword in _NESTED:
            yield from _subschemas(value, at)


def _check_keywords(schema: Mapping[str, Any], place: str, known: Mapping[str, Any]) -> None:
    for keyword, value in schema.items():
        if keyword not in _ENFORCED and keyword not in _ANNOTATIONS:
            raise GrammarError(f"{place}: the keyword {keyword!r} is not supported")
        if keyword == "$ref" and value not in known:
            raise GrammarError(f"{place}: $ref {value!r} is not a schema within this one")


def _check_patterns(schemas: Sequence[Mapping[str, Any]]) -> None:
    intersects = any(
        "allOf" in schema or (_COMBINED & schema.keys() and len(_ENFORCED & schema.keys()) > 1)
        for schema in schemas
    )
    patterns = sum(
        len(schema[keyword]) if keyword == "patternProperties" else 1
        for schema in schemas
        for keyword in _PATTERNS
        if keyword in schema
    )
    if intersects and patterns > MAX_INTERSECTED:
        raise GrammarError(
            f"the schema is too complex: one that combines schemas by allOf, or by $ref, anyOf or"
            f" oneOf beside other keywords, may hold {MAX_INTERSECTED} patterns and formats"
        )


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
