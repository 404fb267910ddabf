r"""`regex`: whether a regular expression is found in the completion's text, or matches all of it.

The expressions are RE2's: no look-around and no back-references, and a time that is linear in the
text, so that no completion can stall a training run. `.` leaves out line breaks (`(?s)` takes
them), `\d` and `\w` are ASCII, `\pL` is any letter. A text of more than 32 KiB fails.

`{{ item.x }}` in the pattern is the item's text, to be found as it stands; what repeats it, such as
a `+` after it, repeats all of it. In a class, as in `[{{ item.x }}]`, it is its characters. With
`item_text: pattern` it is an expression of its own, as if in `(?:...)`. Texts that look the same
are the same: the text and the item's are searched in one normal form, the pattern in composed
characters (NFC). The score is 0 or 1.
"""

from __future__ import annotations

import unicodedata
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
from verifiers.patterns import Pattern, TextTooLong, literal, parse_pattern, repeated
from verifiers.templates import (
    Bound,
    ItemTemplate,
    OutputPlace,
    OutputTemplate,
    Steps,
    Template,
    parse_template,
)
from verifiers.texts import normal


class RegexConfig(GraderConfig):
    """Configuration of `regex`."""

    type: Literal["regex"]
    pattern: ItemTemplate = Field(
        min_length=1, description="RE2 expression, a template of item fields."
    )
    input: OutputTemplate = Field(
        default="{{sample.output_text}}", description="Template of the text."
    )
    match: Literal["search", "whole"] = Field(
        default="search", description="The expression is somewhere in the text, or all of it."
    )
    expect: Literal["match", "no_match"] = "match"
    ignore_case: bool = False
    item_text: Literal["literal", "pattern"] = Field(
        default="literal", description="What the item's fields in the pattern are."
    )
    strip: bool = Field(
        default=True,
        description="Ignore white space at both ends of the text and of the item's fields.",
    )
    example: ItemTemplate | None = Field(
        default=None, description="Template of a completion that passes, to learn from."
    )


@dataclass(frozen=True)
class _Search:
    """The text's template with the item filled in, and what is looked for in it."""

    input: Bound
    pattern: Pattern


@dataclass(frozen=True)
class Regex(Judge[RegexConfig, _Search]):
    """Looks for an expression in a filled-in template."""

    input: Template
    pattern: Template
    example: Template | None
    repeated: tuple[bool, ...]

    def expect(self, item: dict[str, Any]) -> _Search:
        """Fill in the item."""
        pieces = zip(self.pattern.pieces, self.repeated, strict=True)
        source = "".join(self._source(piece, item, repeated) for piece, repeated in pieces)
        return _Search(self.input.bind(item), self._parsed(source))

    def compare(self, sample: Sample, expected: _Search) -> Outcome:
        """The score is 1 if the text matches as expected, else 0."""
        text = normal(expected.input.render(sample))
        text = text.strip() if self.config.strip else text
        try:
            whole = self.config.match == "whole"
            found = expected.pattern.is_all_of(text) if whole else expected.pattern.found_in(text)
        except TextTooLong:
            return Outcome(False, 0.0)
        right = found == (self.config.expect == "match")
        return Outcome(right, float(right))

    def answers(self, item: dict[str, Any], expected: _Search) -> tuple[str, ...]:
        """The configured example, if there is one: a pattern does not name its texts."""
        del expected
        text = None if self.example is None else self.example.bind(item).text
        return () if text is None else (text,)

    def _source(
        self, piece: str | Steps | OutputPlace, item: dict[str, Any], repeated: bool
    ) -> str:
        if isinstance(piece, str):
            return unicodedata.normalize("NFC", piece)
        text = Template((piece,)).bind(item, self.input.reads_json).text or ""
        text = normal(text).strip() if self.config.strip else normal(text)
        if not text.strip():
            raise ItemError("the item's field in the pattern is blank, and every text contains it")
        if self.config.item_text == "literal":
            return f"(?:{literal(text)})" if repeated else literal(text)
        self._parsed(text)  # By itself: brackets that it closes and opens are no expression.
        return f"(?:{text})"

    def _parsed(self, source: str) -> Pattern:
        try:
            return parse_pattern(source, self.config.ignore_case)
        except ValueError as error:
            raise ItemError(f"the pattern with the item's fields {error}") from error


def _make(config: RegexConfig) -> Regex:
    pattern = parse_template(config.pattern)
    if pattern.constant is not None:
        try:
            parse_pattern(pattern.constant, config.ignore_case)
        except ValueError as error:
            raise GraderConfigError("pattern", str(error)) from error
    example = None if config.example is None else parse_template(config.example)
    texts = [piece if isinstance(piece, str) else None for piece in pattern.pieces]
    return Regex(config, parse_template(config.input), pattern, example, repeated(texts))


REGEX = family(RegexConfig, _make)
