"""`json_schema`: a completion that is a JSON value, against a JSON Schema (draft 2020-12).

Score = `parseable_weight` * parseable + (1 - `parseable_weight`) * fields, where

* parseable is 1 for a JSON value alone, 0.5 for an object or array with other text around it that
  is not to be ignored, 0 for none;
* fields is 1 for a valid value. For an invalid object it is the share of its fields that are right:
  of those that the schema requires and those that it declares and the object has. Each field that
  is not allowed, and each other rule that the object breaks, is a wrong one more. It is 0 for any
  other invalid value, and where the schema declares no properties at its top.

Passes when the value is valid and nothing surrounds it. What is accepted as a schema, and which of
its keywords, `verifiers.schemas` says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field

from verifiers.base import GraderConfig, GraderConfigError, Judge, Outcome, Sample, family
from verifiers.parsing import Malformed, find_value
from verifiers.schemas import SchemaProblem, check_schema
from verifiers.templates import ItemPath, item_value
from verifiers.validation import Problem, TooComplex, problems


class JsonSchemaConfig(GraderConfig):
    """Configuration of `json_schema`."""

    model_config = ConfigDict(serialize_by_alias=True)

    type: Literal["json_schema"]
    # Named `schema` for users; pydantic's models have a method of that name.
    json_schema: dict[str, Any] = Field(alias="schema", description="A JSON Schema, 2020-12.")
    formats: Literal["check", "ignore"] = Field(
        default="check", description="The keyword `format`: one that cannot be checked is refused."
    )
    surrounding: Literal["refuse", "ignore"] = Field(
        default="refuse", description="Text before or after the value."
    )
    parseable_weight: float = Field(default=0.1, ge=0, lt=1)
    example: ItemPath | None = Field(
        default=None,
        description="Path in the item of a value that is valid, to learn from; {{item.x}} too.",
    )


@dataclass(frozen=True)
class JsonSchema(Judge[JsonSchemaConfig, None]):
    """Validates the completion against one schema."""

    def expect(self, item: dict[str, Any]) -> None:
        """Nothing: the schema is in the configuration."""
        del item

    def answers(self, item: dict[str, Any], expected: None) -> tuple[str, ...]:
        """The configured example as JSON, if there is one: a schema names no value."""
        del expected
        if self.config.example is None:
            return ()
        return (json.dumps(item_value(item, self.config.example), ensure_ascii=False),)

    def compare(self, sample: Sample, expected: None) -> Outcome:
        """Sub-scores are `parseable` and `fields`."""
        del expected
        try:
            found = find_value(sample.output_text, self._brackets)
        except Malformed:
            return Outcome(False, 0.0, {"parseable": 0.0, "fields": 0.0})
        whole = found.alone or self.config.surrounding == "ignore"
        fields = self._fields(found.value)
        subscores = {"parseable": 1.0 if whole else 0.5, "fields": fields}
        if whole and fields == 1.0:
            return Outcome(True, 1.0, subscores)
        weight = self.config.parseable_weight
        # min: rounding may carry the mean of ones just above one.
        score = min(1.0, weight * subscores["parseable"] + (1 - weight) * fields)
        return Outcome(False, score, subscores)

    @property
    def _brackets(self) -> str:
        """With what a value begins that is looked for in other text."""
        return "{" if self.config.json_schema.get("type") == "object" else "{["

    def _fields(self, value: Any) -> float:
        try:
            found = problems(self.config.json_schema, value, self.config.formats == "check")
        except TooComplex:
            return 0.0
        return _share(self.config.json_schema, value, found) if found else 1.0


def _share(schema: dict[str, Any], value: Any, found: Sequence[Problem]) -> float:
    """The share of right fields of an invalid value, below 1."""
    declared = schema.get("properties")
    if not isinstance(value, dict) or declared is None:
        return 0.0
    required = set(schema.get("required", ()))
    counted = required | (declared.keys() & value.keys())
    wrong = {problem.path[0] for problem in found if problem.path}
    bad = (wrong & counted) | (required - value.keys())
    others = sum(not problem.path and problem.keyword != "required" for problem in found)
    others += len(wrong - counted)
    total = len(counted) + others
    return (len(counted) - len(bad)) / total if total else 0.0


def _make(config: JsonSchemaConfig) -> JsonSchema:
    try:
        check_schema(config.json_schema, config.formats == "check")
    except SchemaProblem as problem:
        path = f"schema.{problem.path}" if problem.path else "schema"
        raise GraderConfigError(path, str(problem)) from problem
    return JsonSchema(config)


JSON_SCHEMA = family(JsonSchemaConfig, _make)
