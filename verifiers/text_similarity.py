"""`text_similarity`: how alike the completion is to a reference text, in OpenAI's shape.

The score is the similarity by `evaluation_metric`; the completion passes from `pass_threshold` on,
where 1e-9 below it is still on it. Texts that look the same are the same.

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

from pydantic import Field

from verifiers.base import (
    NOTHING_RIGHT,
    GraderConfig,
    GraderConfigError,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.similarity import Metric, similarity
from verifiers.templates import Bound, ItemTemplate, OutputTemplate, Template, parse_template
from verifiers.texts import normal

MAX_CHARS = 16_384
"""A longer text fails: the metrics over characters take quadratic time, some 10 ms for this."""

ROUNDING = 1e-9
"""So much below the threshold passes: 1 - 1/5 is less than 0.8 in the machine's numbers."""


class TextSimilarityConfig(GraderConfig):
    """Configuration of `text_similarity`."""

    type: Literal["text_similarity"]
    input: OutputTemplate = Field(
        default="{{sample.output_text}}", description="Template of the text."
    )
    reference: ItemTemplate = Field(
        default="{{item.answer}}", description="Template of what it should be."
    )
    evaluation_metric: Metric
    pass_threshold: float = Field(gt=0, le=1, description="The least similarity that passes.")
    ignore_case: bool = True


@dataclass(frozen=True)
class _Texts:
    """The text's template with the item filled in, and the normalised reference."""

    input: Bound
    wanted: str


@dataclass(frozen=True)
class TextSimilarity(Judge[TextSimilarityConfig, _Texts]):
    """Compares two filled-in templates by one metric."""

    input: Template
    wanted: Template

    def expect(self, item: dict[str, Any]) -> _Texts:
        """Fill in the item."""
        return _Texts(self.input.bind(item), self.check(self.wanted.bind(item).text or ""))

    def compare(self, sample: Sample, expected: _Texts) -> Outcome:
        """The score is the similarity."""
        text = self._normalised(expected.input.render(sample))
        if len(text) > MAX_CHARS:
            return NOTHING_RIGHT
        score = similarity(self.config.evaluation_metric, text, expected.wanted)
        return Outcome(score >= self.config.pass_threshold - ROUNDING, score)

    def answers(self, item: dict[str, Any], expected: _Texts) -> tuple[str, ...]:
        """The reference text."""
        del expected
        return ((self.wanted.bind(item).text or "").strip(),)

    def check(self, reference: str) -> str:
        """Return the reference as it is compared; raises ItemError if nothing can be like it."""
        wanted = self._normalised(reference)
        if len(wanted) > MAX_CHARS:
            raise ItemError(f"the reference is longer than {MAX_CHARS} characters")
        metric = self.config.evaluation_metric
        if similarity(metric, wanted, wanted) < 1:
            raise ItemError(f"the reference has nothing that {metric} counts")
        return wanted

    def _normalised(self, text: str) -> str:
        text = normal(text).strip()
        return text.casefold() if self.config.ignore_case else text


def _make(config: TextSimilarityConfig) -> TextSimilarity:
    grader = TextSimilarity(config, parse_template(config.input), parse_template(config.reference))
    if grader.wanted.constant is not None:
        try:
            grader.check(grader.wanted.constant)
        except ItemError as error:
            raise GraderConfigError("reference", str(error)) from error
    return grader


TEXT_SIMILARITY = family(TextSimilarityConfig, _make, imports=("sacrebleu.metrics.bleu",))
