"""`string_check`: the completion's text against a reference text, in OpenAI's shape.

`eq` and `ne` compare the whole text; `like` and `ilike` ask whether the input contains the
reference, `ilike` ignoring case. The score is 0 or 1. Where the completion lacks what a template
reads, as one that is no JSON lacks `sample.output_json.city`, it fails under every operation.
Texts that look the same are the same. Numbers are compared as they are written: 1.0 is `1.0`.
Where a template reads a JSON value of the completion, 1 and 1.0 are the same on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from verifiers.base import (
    GraderConfig,
    GraderConfigError,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.templates import AnyTemplate, Bound, Template, parse_template
from verifiers.texts import normal


class StringCheckConfig(GraderConfig):
    """Configuration of `string_check`."""

    type: Literal["string_check"]
    input: AnyTemplate = Field(
        default="{{sample.output_text}}", description="Template of the text."
    )
    reference: AnyTemplate = Field(
        default="{{item.answer}}", description="Template of what it should be."
    )
    operation: Literal["eq", "ne", "like", "ilike"] = "eq"
    strip: bool = Field(default=True, description="Ignore white space at both ends of each.")


@dataclass(frozen=True)
class _Texts:
    """Both templates with the item filled in."""

    input: Bound
    reference: Bound


@dataclass(frozen=True)
class StringCheck(Judge[StringCheckConfig, _Texts]):
    """Compares two filled-in templates."""

    input: Template
    wanted: Template

    def expect(self, item: dict[str, Any]) -> _Texts:
        """Fill in the item."""
        json = self.input.reads_json or self.wanted.reads_json
        texts = _Texts(self.input.bind(item, json), self.wanted.bind(item, json))
        fixed = texts.reference.text
        if self.contains and fixed is not None and not normal(fixed).strip():
            raise ItemError("the reference is blank, and every text would contain it")
        return texts

    def compare(self, sample: Sample, expected: _Texts) -> Outcome:
        """The score is 1 if the operation holds, else 0."""
        text = self._trim(expected.input.render(sample))
        wanted = self._trim(expected.reference.render(sample))
        right = self._holds(text, wanted)
        return Outcome(right, float(right))

    def answers(self, item: dict[str, Any], expected: _Texts) -> tuple[str, ...]:
        """The text on the side that does not hold the completion; none for `ne`.

        Any text but one passes `ne`; to name one of them as right would be invented.
        """
        del item
        fixed = expected.input if expected.reference.text is None else expected.reference
        if self.config.operation == "ne" or fixed.text is None:
            return ()
        return (fixed.text.strip() if self.config.strip else fixed.text,)

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
        text = normal(text)
        return text.strip() if self.config.strip else text


def _make(config: StringCheckConfig) -> StringCheck:
    text, wanted = parse_template(config.input), parse_template(config.reference)
    if not text.uses_output and not wanted.uses_output:
        raise GraderConfigError("input", "the completion is not used: no sample.output_...")
    grader = StringCheck(config, text, wanted)
    if grader.contains and wanted.constant is not None and not normal(wanted.constant).strip():
        raise GraderConfigError("reference", "is blank, and every text would contain it")
    return grader


STRING_CHECK = family(StringCheckConfig, _make)
