"""JSON Schema as graders take it: draft 2020-12, of which all that is accepted is also checked.

A keyword that is unknown is refused, as it is more likely misspelled than meant to be ignored, and
so is what would be looked at by nothing here. `$ref` leads to places in the same schema, never
elsewhere, and never back to itself without going deeper into the value. Patterns are RE2's.

A schema is JSON within the bounds of `verifiers.values`, as all configurations are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import best_match

from verifiers.base import MAX_ERROR_CHARS
from verifiers.formats import FORMATS
from verifiers.patterns import parse_pattern

MAX_SCHEMA_CHARS = 65_536
MAX_CHAIN = 32
MAX_EXPANSION = 1_000
"""So many schemas, each counted as often as it is referred to, may apply to one and the same value.

Schemas that refer to each other twice over double with each step.
"""

MAX_PATTERNS = 100
"""Different regular expressions; compiling one takes up to some milliseconds."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_ANNOTATIONS = frozenset(
    {
        "$schema", "$comment", "title", "description", "default", "examples", "deprecated",
        "readOnly", "writeOnly",
    }
)  # fmt: skip
_ASSERTIONS = frozenset(
    {
        "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum",
        "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems",
        "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties", "required",
        "dependentRequired", "format", "$ref",
    }
)  # fmt: skip
# Keywords that hold a schema, a list of them, or one for each name.
_ONE = frozenset(
    {"items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"}
)
_LIST = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_KNOWN = _ANNOTATIONS | _ASSERTIONS | _ONE | _LIST | _NAMED
# Those of them whose schemas apply to the very value that the schema around them applies to.
_SAME = frozenset({"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas"})

Schema = dict[str, Any] | bool
Path = tuple[str, ...]


class SchemaProblem(ValueError):
    """A schema is wrong at `path`, a dotted place in it."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = ".".join(path)


@dataclass
class _Place:
    """A schema in the schema, and those that apply to the same value when it does."""

    path: Path
    schema: Schema
    same: list[_Place] = field(default_factory=list)


def check_schema(schema: Mapping[str, Any], check_formats: bool) -> None:
    """Raise SchemaProblem with the place of the first mistake in a schema."""
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise SchemaProblem((), f"is longer than {MAX_SCHEMA_CHARS} characters")
    if schema.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
        raise SchemaProblem(("$schema",), f"is not {DIALECT}")
    _check_form(schema)
    root = _Place((), dict(schema))
    places: dict[Path, _Place] = {}
    _collect(root, places)
    _count_patterns(places.values())
    for place in places.values():
        _check_keywords(place, check_formats)
    for place in places.values():
        _link(place, places)
    sizes: dict[Path, int] = {}
    for place in places.values():
        _expansion(place, sizes, 0)


def _check_form(schema: Mapping[str, Any]) -> None:
    """Check against the schema of schemas, without its formats: they would run user patterns."""
    validator = Draft202012Validator(
        Draft202012Validator.META_SCHEMA, format_checker=FormatChecker(formats=())
    )
    try:
        error = best_match(validator.iter_errors(schema))
    except RecursionError as problem:
        raise SchemaProblem((), "is nested too deep") from problem
    if error is not None:
        raise SchemaProblem(tuple(map(str, error.absolute_path)), error.message[:MAX_ERROR_CHARS])


def _collect(place: _Place, places: dict[Path, _Place]) -> None:
    places[place.path] = place
    for keyword, path, schema in _below(place):
        below = _Place(path, schema)
        if keyword in _SAME:
            place.same.append(below)
        _collect(below, places)


def _below(place: _Place) -> Iterator[tuple[str, Path, Schema]]:
    """The schemas directly in a schema, with their keywords and places."""
    if isinstance(place.schema, bool):
        return
    for keyword, value in place.schema.items():
        here = (*place.path, keyword)
        if keyword in _ONE:
            yield keyword, here, value
        elif keyword in _LIST:
            for number, one in enumerate(value):
                yield keyword, (*here, str(number)), one
        elif keyword in _NAMED:
            for name, one in value.items():
                yield keyword, (*here, name), one


def _check_keywords(place: _Place, check_formats: bool) -> None:
    if isinstance(place.schema, bool):
        return
    for keyword, value in place.schema.items():
        here = (*place.path, keyword)
        if keyword not in _KNOWN:
            raise SchemaProblem(here, "is not a keyword that is checked")
        if keyword == "format" and check_formats and value not in FORMATS:
            known = ", ".join(FORMATS)
            raise SchemaProblem(here, f"{value!r} is not checked; what is: {known}")
        for pattern in _patterns(keyword, value):
            try:
                parse_pattern(pattern)
            except ValueError as error:
                raise SchemaProblem(here, str(error)) from error


def _patterns(keyword: str, value: Any) -> list[str]:
    """The regular expressions that a keyword has."""
    if keyword == "patternProperties":
        return list(value)
    return [value] if keyword == "pattern" else []


def _count_patterns(places: Iterable[_Place]) -> None:
    """Refuse more patterns than can be compiled in no time, before any is."""
    found: set[str] = set()
    for place in places:
        for keyword, value in ({} if isinstance(place.schema, bool) else place.schema).items():
            found.update(_patterns(keyword, value))
            if len(found) > MAX_PATTERNS:
                raise SchemaProblem(
                    (*place.path, keyword), f"is one of more than {MAX_PATTERNS} patterns"
                )


def _link(place: _Place, places: Mapping[Path, _Place]) -> None:
    """Note where a schema's `$ref` leads; raises SchemaProblem where that is nowhere here."""
    if isinstance(place.schema, bool) or "$ref" not in place.schema:
        return
    reference = place.schema["$ref"]
    root, *steps = reference.split("/")
    target = tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)
    # Escaped characters would be one more way to write the same place.
    if root != "#" or "%" in reference or target not in places:
        message = f"{reference!r} does not lead to a schema in this one, as '#/$defs/x' would"
        raise SchemaProblem((*place.path, "$ref"), message)
    place.same.append(places[target])


def _expansion(place: _Place, sizes: dict[Path, int], depth: int) -> int:
    """Count the schemas that apply to a value with this one, itself included."""
    if depth > MAX_CHAIN:
        raise SchemaProblem(place.path, "refers to itself, or through too many schemas")
    if place.path not in sizes:
        size = 1 + sum(_expansion(other, sizes, depth + 1) for other in place.same)
        if size > MAX_EXPANSION:
            raise SchemaProblem(place.path, "has one value checked by too many schemas")
        sizes[place.path] = size
    return sizes[place.path]
