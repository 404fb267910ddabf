"""`text_similarity`: how alike the completion is to a reference text, in OpenAI's shape.

The score is the similarity by `evaluation_metric`; the completion passes from `pass_threshold` on.

* fuzzy_match, levenshtein: over characters. Twice the common subsequence over both lengths; and 1
  minus the edits over the longer length.
* token_sort: fuzzy_match of the words in alphabetical order.
* bleu, gleu, rouge_1 ... rouge_5, rouge_l: over words in order, `verifiers.similarity` says how.

OpenAI's `meteor` and `cosine` are not here: the one needs a dictionary of English, the other a
model. Metrics that forgive all surplus words are left out too: listing every word would score 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from verifiers.base import (
    NOTHING_RIGHT,
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
from verifiers.similarity import Metric, similarity
from verifiers.templates import Bound, Template, parse_template

MAX_CHARS = 16_384
"""A longer text fails: the metrics over characters take quadratic time, some 10 ms for this."""


class TextSimilarityConfig(GraderConfig):
    """Configuration of `text_similarity`."""

    type: Literal["text_similarity"]
    input: str = Field(default="{{sample.output_text}}", description="Template of the text.")
    reference: str = Field(default="{{item.answer}}", description="Template of what it should be.")
    evaluation_metric: Metric
    pass_threshold: float = Field(gt=0, le=1, description="The least similarity that passes.")
    ignore_case: bool = True

    @field_validator("input", "reference")
    @classmethod
    def _is_template(cls, text: str) -> str:
        parse_template(text)
        return text


@dataclass(frozen=True)
class _Texts:
    """The text's template with the item filled in, and the normalised reference."""

    input: Bound
    wanted: str


@dataclass(frozen=True)
class TextSimilarity:
    """Measures how alike a filled-in template is to a reference."""

    config: TextSimilarityConfig
    input: Template
    wanted: Template

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Score by similarity."""
        return grade_with(self._expect, self._compare, sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the reference text."""
        try:
            item = checked_item(item)
            self._expect(item)
        except ItemError:
            return None  # The grade of any completion says what is wrong with the item.
        text = self.wanted.bind(item).text
        return None if text is None else passing(self, text.strip(), item)

    def describe(self) -> dict[str, Any]:
        """Return the configuration with its defaults."""
        return self.config.model_dump(mode="json")

    def check(self, reference: str) -> str:
        """Return the reference as it is compared; raises ItemError if nothing can be like it."""
        wanted = self._normalised(reference)
        if len(wanted) > MAX_CHARS:
            raise ItemError(f"the reference is longer than {MAX_CHARS} characters")
        metric = self.config.evaluation_metric
        if similarity(metric, wanted, wanted) < 1:
            raise ItemError(f"the reference has nothing that {metric} counts")
        return wanted

    def _expect(self, item: dict[str, Any]) -> _Texts:
        return _Texts(self.input.bind(item), self.check(self.wanted.bind(item).text or ""))

    def _compare(self, sample: Sample, texts: _Texts) -> Outcome:
        text = self._normalised(texts.input.render(sample))
        if len(text) > MAX_CHARS:
            return NOTHING_RIGHT
        score = similarity(self.config.evaluation_metric, text, texts.wanted)
        return Outcome(score >= self.config.pass_threshold, score)

    def _normalised(self, text: str) -> str:
        text = text.strip()
        return text.casefold() if self.config.ignore_case else text


def _make(config: TextSimilarityConfig, _build: BuildNested) -> Grader:
    text, wanted = parse_template(config.input), parse_template(config.reference)
    if not text.uses_output:
        raise GraderConfigError("input", "the completion is not used: no sample.output_...")
    if wanted.uses_output:
        raise GraderConfigError("reference", "has a place for the completion")
    grader = TextSimilarity(config, text, wanted)
    if wanted.constant is not None:
        try:
            grader.check(wanted.constant)
        except ItemError as error:
            raise GraderConfigError("reference", str(error)) from error
    return grader


TEXT_SIMILARITY = Family(TextSimilarityConfig, _make, imports=("sacrebleu.metrics.bleu",))
