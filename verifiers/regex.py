r"""`regex`: whether a regular expression is found in the completion's text, or matches all of it.

The expressions are RE2's: no look-around and no back-references, and a time that is linear in the
text, so that no completion can stall a training run. `.` leaves out line breaks (`(?s)` takes
them), `\d` and `\w` are ASCII, `\pL` is any letter. A text of more than 32 KiB fails.

`{{ item.x }}` in the pattern is the item's text, to be found as it stands; with
`item_text: pattern` it is a part of the expression. The score is 0 or 1.
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
from verifiers.patterns import Pattern, TextTooLong, literal, parse_pattern
from verifiers.templates import Bound, OutputPlace, Steps, Template, parse_template


class RegexConfig(GraderConfig):
    """Configuration of `regex`."""

    type: Literal["regex"]
    pattern: str = Field(min_length=1, description="RE2 expression, a template of item fields.")
    input: str = Field(default="{{sample.output_text}}", description="Template of the text.")
    match: Literal["search", "whole"] = Field(
        default="search", description="The expression is somewhere in the text, or all of it."
    )
    expect: Literal["match", "no_match"] = "match"
    ignore_case: bool = False
    item_text: Literal["literal", "pattern"] = Field(
        default="literal", description="What the item's fields in the pattern are."
    )
    strip: bool = Field(default=True, description="Ignore white space at both ends of the text.")
    example: str | None = Field(
        default=None, description="Template of a completion that passes, to learn from."
    )

    @field_validator("input", "pattern", "example")
    @classmethod
    def _is_template(cls, text: str | None) -> str | None:
        if text is not None:
            parse_template(text)
        return text


@dataclass(frozen=True)
class _Search:
    """The text's template with the item filled in, and what is looked for in it."""

    input: Bound
    pattern: Pattern


@dataclass(frozen=True)
class Regex:
    """Looks for an expression in a filled-in template."""

    config: RegexConfig
    input: Template
    pattern: Template
    example: Template | None

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score 1 if the text matches as expected, else 0."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the configured example, None without one: a pattern does not name its texts."""
        if self.example is None:
            return None
        try:
            text = self.example.bind(checked_item(item)).text
        except ItemError:
            return None  # The item lacks the example's field, or its grade says what is wrong.
        return None if text is None else passing(self, text, item)

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def _expect(self, item: dict[str, Any]) -> _Search:
        source = "".join(self._source(piece, item) for piece in self.pattern.pieces)
        try:
            pattern = parse_pattern(source, self.config.ignore_case)
        except ValueError as error:
            raise ItemError(f"the pattern with the item's fields {error}") from error
        return _Search(self.input.bind(item), pattern)

    def _source(self, piece: str | Steps | OutputPlace, item: dict[str, Any]) -> str:
        if isinstance(piece, str):
            return piece
        text = Template((piece,)).bind(item).text or ""
        if not text.strip():
            raise ItemError("the item's field in the pattern is blank, and every text contains it")
        return literal(text) if self.config.item_text == "literal" else text

    def _compare(self, sample: Sample, search: _Search) -> Outcome:
        text = search.input.render(sample)
        text = text.strip() if self.config.strip else text
        try:
            whole = self.config.match == "whole"
            found = search.pattern.is_all_of(text) if whole else search.pattern.found_in(text)
        except TextTooLong:
            return Outcome(False, 0.0)
        right = found == (self.config.expect == "match")
        return Outcome(right, float(right))


def _make(config: RegexConfig, _build: BuildNested) -> Grader:
    text, pattern = parse_template(config.input), parse_template(config.pattern)
    example = None if config.example is None else parse_template(config.example)
    if not text.uses_output:
        raise GraderConfigError("input", "the completion is not used: no sample.output_...")
    if pattern.uses_output:
        raise GraderConfigError("pattern", "has a place for the completion")
    if example is not None and example.uses_output:
        raise GraderConfigError("example", "has a place for the completion")
    if pattern.constant is not None:
        try:
            parse_pattern(pattern.constant, config.ignore_case)
        except ValueError as error:
            raise GraderConfigError("pattern", str(error)) from error
    return Regex(config, text, pattern, example)


REGEX = Family(RegexConfig, _make)
