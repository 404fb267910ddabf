"""`string_check`: the completion's text against a reference text, in OpenAI's shape.

`eq` and `ne` compare the whole text; `like` and `ilike` ask whether the input contains the
reference, `ilike` ignoring case. The score is 0 or 1. Where the completion lacks what a template
reads, as one that is no JSON lacks `sample.output_json.city`, it fails under every operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from verifiers.base import (
    BuildNested,
    Family,
    Grade,
    Grader,
    GraderConfig,
    GraderConfigError,
    ItemError,
    Outcome,
    Sample,
    checked_item,
    grade_with,
    passing,
)
from verifiers.templates import Bound, Template, parse_template


class StringCheckConfig(GraderConfig):
    """Configuration of `string_check`."""

    type: Literal["string_check"]
    input: str = Field(default="{{sample.output_text}}", description="Template of the text.")
    reference: str = Field(default="{{item.answer}}", description="Template of what it should be.")
    operation: Literal["eq", "ne", "like", "ilike"] = "eq"
    strip: bool = Field(default=True, description="Ignore white space at both ends of each.")

    @field_validator("input", "reference")
    @classmethod
    def _is_template(cls, text: str) -> str:
        parse_template(text)
        return text


@dataclass(frozen=True)
class _Texts:
    """Both templates with the item filled in."""

    input: Bound
    reference: Bound


@dataclass(frozen=True)
class StringCheck:
    """Compares two filled-in templates."""

    config: StringCheckConfig
    input: Template
    wanted: Template

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score 1 if the operation holds, else 0."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the text on the side that does not hold the completion; None for `ne`.

        Any text but one passes `ne`; to name one of them as right would be invented.
        """
        if self.config.operation == "ne":
            return None
        try:
            texts = self._expect(checked_item(item))
        except ItemError:
            return None  # The grade of any completion says what is wrong with the item.
        fixed = texts.input if texts.reference.text is None else texts.reference
        return None if fixed.text is None else passing(self, self._trim(fixed.text), item)

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def _expect(self, item: dict[str, Any]) -> _Texts:
        texts = _Texts(self.input.bind(item), self.wanted.bind(item))
        fixed = texts.reference.text
        if self.contains and fixed is not None and not fixed.strip():
            raise ItemError("the reference is blank, and every text would contain it")
        return texts

    def _compare(self, sample: Sample, texts: _Texts) -> Outcome:
        text = self._trim(texts.input.render(sample))
        wanted = self._trim(texts.reference.render(sample))
        right = self._holds(text, wanted)
        return Outcome(right, float(right))

    def _holds(self, text: str, wanted: str) -> bool:
        match self.config.operation:
            case "eq":
                return text == wanted
            case "ne":
                return text != wanted
            case "like":
                return bool(wanted) and wanted in text
            case "ilike":
                return bool(wanted) and wanted.casefold() in text.casefold()

    @property
    def contains(self) -> bool:
        """True when the operation asks whether one text contains the other."""
        return self.config.operation in ("like", "ilike")

    def _trim(self, text: str) -> str:
        return text.strip() if self.config.strip else text


def _make(config: StringCheckConfig, _build: BuildNested) -> Grader:
    text, wanted = parse_template(config.input), parse_template(config.reference)
    if not text.uses_output and not wanted.uses_output:
        raise GraderConfigError("input", "the completion is not used: no sample.output_...")
    grader = StringCheck(config, text, wanted)
    if grader.contains and wanted.constant is not None and not wanted.constant.strip():
        raise GraderConfigError("reference", "is blank, and every text would contain it")
    return grader


STRING_CHECK = Family(StringCheckConfig, _make)
