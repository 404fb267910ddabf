"""The grader types by name: building a grader from its configuration, its identity, the schemas.

A new type is one file with a `Family` and one line in `FAMILIES`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from verifiers.arithmetic import ARITHMETIC
from verifiers.base import Family, Grader, GraderConfigError
from verifiers.function_call import FUNCTION_CALL
from verifiers.instruction import INSTRUCTION
from verifiers.json_match import JSON_MATCH
from verifiers.json_schema import JSON_SCHEMA
from verifiers.mathematics import MATH
from verifiers.mistakes import first_mistake
from verifiers.multi import MULTI
from verifiers.numeric import NUMERIC
from verifiers.python import PYTHON
from verifiers.regex import REGEX
from verifiers.state import STATE
from verifiers.string_check import STRING_CHECK
from verifiers.text_similarity import TEXT_SIMILARITY
from verifiers.unit_tests import UNIT_TESTS
from verifiers.values import json_problem

FAMILIES: dict[str, Family] = {
    "string_check": STRING_CHECK,
    "regex": REGEX,
    "text_similarity": TEXT_SIMILARITY,
    "json_schema": JSON_SCHEMA,
    "json_match": JSON_MATCH,
    "numeric": NUMERIC,
    "math": MATH,
    "arithmetic": ARITHMETIC,
    "function_call": FUNCTION_CALL,
    "instruction": INSTRUCTION,
    "state": STATE,
    "python": PYTHON,
    "unit_tests": UNIT_TESTS,
    "multi": MULTI,
}


def build(config: dict[str, Any]) -> Grader:
    """Build a grader; raises GraderConfigError with the place of the first mistake."""
    problem = json_problem(config)
    if problem is not None:
        raise GraderConfigError("", f"the configuration {problem}")
    return _build(config)


def grader_hash(config: dict[str, Any]) -> str:
    """Identify a grader: sha256 hex of its validated configuration with defaults filled in.

    Raises GraderConfigError. Two configurations that differ only in what they leave to the
    defaults, or in the order of their keys, have the same hash.
    """
    text = json.dumps(
        build(config).describe(),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of every grader type's configuration."""
    return {name: family.config.model_json_schema() for name, family in FAMILIES.items()}


def _build(config: Any) -> Grader:
    """Build a grader; the paths of errors are relative to this configuration."""
    if not isinstance(config, dict):
        raise GraderConfigError("", "a grader's configuration is a JSON object")
    family = _family(config.get("type"))
    try:
        validated = family.config.model_validate(config)
    except ValidationError as error:
        raise GraderConfigError(*first_mistake(error, config)) from error
    return family.make(validated, _build_nested)


def _build_nested(config: Any, place: tuple[str, ...]) -> Grader:
    try:
        return _build(config)
    except GraderConfigError as error:
        path = ".".join((*place, error.path) if error.path else place)
        raise GraderConfigError(path, error.message) from error


def _family(name: object) -> Family:
    if not isinstance(name, str) or name not in FAMILIES:
        raise GraderConfigError("type", f"is not a grader type; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]
