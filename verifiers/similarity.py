"""How alike two texts are, as a share: the metrics of `text_similarity`.

Every metric is 1 for a text and itself wherever it counts anything in it at all, and 0 where the
texts have nothing in common that it counts.

Words are runs of letters, digits and underscores of any script, with the combining marks and
joiners that belong to them. A script without spaces is one long word to them; the metrics over
characters suit it better.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from rapidfuzz import fuzz
from rapidfuzz.distance import Indel, LCSseq, Levenshtein

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU

Metric: TypeAlias = Literal[
    "fuzzy_match",
    "levenshtein",
    "token_sort",
    "bleu",
    "gleu",
    "rouge_1",
    "rouge_2",
    "rouge_3",
    "rouge_4",
    "rouge_5",
    "rouge_l",
]

_WORD = re.compile(r"\w+")
_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")
_JOINERS = "\u200c\u200d"
_GLEU_ORDERS = range(1, 5)


def similarity(metric: Metric, text: str, wanted: str) -> float:
    """Return how alike a text is to the wanted one, in [0, 1]."""
    return min(1.0, _METRICS[metric](text, wanted))


def rouge_n(text: str, wanted: str, n: int) -> float:
    """F1 over runs of n words (Lin, 2004: ROUGE-N), each counted as often as both have it."""
    found, expected = _runs(_words(text), n), _runs(_words(wanted), n)
    return _f1((found & expected).total(), found.total(), expected.total())


def rouge_l(text: str, wanted: str) -> float:
    """F1 over the longest common subsequence of words (Lin, 2004: ROUGE-L)."""
    found, expected = _words(text), _words(wanted)
    return _f1(int(LCSseq.similarity(found, expected)), len(found), len(expected))


def gleu(text: str, wanted: str) -> float:
    """The lesser of precision and recall over runs of 1 to 4 words (Wu et al., 2016: GLEU)."""
    found, expected = _up_to_four(_words(text)), _up_to_four(_words(wanted))
    most = max(found.total(), expected.total())
    return (found & expected).total() / most if most else 0.0


def bleu(text: str, wanted: str) -> float:
    """BLEU of one sentence over words and punctuation marks, by sacrebleu.

    With its defaults for sentences: exponential smoothing, orders that the text is too short for
    left out.
    """
    found, expected = (" ".join(_pieces(_WORD_OR_MARK, one)) for one in (text, wanted))
    return _sacrebleu().sentence_score(found, [expected]).score / 100


@lru_cache(maxsize=1)
def _sacrebleu() -> BLEU:
    # Imported when first needed: it takes longer than all else that grades text. Its own tokenizers
    # are not used, as they keep the last 65,536 texts.
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", effective_order=True)


def _token_sort(text: str, wanted: str) -> float:
    found, expected = (" ".join(sorted(_words(one))) for one in (text, wanted))
    return fuzz.ratio(found, expected) / 100 if found and expected else 0.0


def _characters(
    distance: Callable[[str, str], float],
) -> Callable[[str, str], float]:
    # Two empty texts have nothing in common that could be counted.
    return lambda text, wanted: distance(text, wanted) if text and wanted else 0.0


def _words(text: str) -> list[str]:
    return [word for word in _pieces(_WORD, text) if any(c.isalnum() or c == "_" for c in word)]


def _pieces(pattern: re.Pattern[str], text: str) -> list[str]:
    r"""What a pattern finds where combining marks count as letters, which `\w` leaves out."""
    if text.isascii():
        return pattern.findall(text)
    letters = "".join("_" if _is_combining(one) else one for one in text)
    return [text[match.start() : match.end()] for match in pattern.finditer(letters)]


def _is_combining(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character).startswith("M")


def _runs(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _up_to_four(words: Sequence[str]) -> Counter[tuple[str, ...]]:
    return sum((_runs(words, n) for n in _GLEU_ORDERS), Counter())


def _f1(common: int, found: int, expected: int) -> float:
    return 2 * common / (found + expected) if found and expected else 0.0


_METRICS: dict[Metric, Callable[[str, str], float]] = {
    "fuzzy_match": _characters(Indel.normalized_similarity),
    "levenshtein": _characters(Levenshtein.normalized_similarity),
    "token_sort": _token_sort,
    "bleu": bleu,
    "gleu": gleu,
    "rouge_1": lambda text, wanted: rouge_n(text, wanted, 1),
    "rouge_2": lambda text, wanted: rouge_n(text, wanted, 2),
    "rouge_3": lambda text, wanted: rouge_n(text, wanted, 3),
    "rouge_4": lambda text, wanted: rouge_n(text, wanted, 4),
    "rouge_5": lambda text, wanted: rouge_n(text, wanted, 5),
    "rouge_l": rouge_l,
}
