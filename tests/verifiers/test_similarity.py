"""Every metric against a slow and plain reckoning of the same."""

import math
import re
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.similarity import Metric, similarity

METRICS: tuple[Metric, ...] = get_args(Metric)
WORDS = st.lists(st.sampled_from(["a", "b", "c", "dé", "5"]), min_size=1, max_size=9)
SENTENCES = WORDS.map(" ".join)
TEXT = st.text(alphabet="abc é", max_size=9)


def longest_common(one: str | list[str], other: str | list[str]) -> int:
    """Length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(other) + 1)
    for x in one:
        row_above = row
        row = [0]
        for place, y in enumerate(other):
            row.append(row_above[place] + 1 if x == y else max(row_above[place + 1], row[place]))
    return row[-1]


def edits(one: str, other: str) -> int:
    """Levenshtein distance, by the textbook's table."""
    row = list(range(len(other) + 1))
    for x in one:
        above = row
        row = [above[0] + 1]
        for (left, middle), y in zip(pairwise(above), other, strict=True):
            row.append(min(left + (x != y), middle + 1, row[-1] + 1))
    return row[-1]


def runs(words: list[str], n: int) -> list[tuple[str, ...]]:
    """All runs of n words."""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def common(one: list[tuple[str, ...]], other: list[tuple[str, ...]]) -> int:
    """How many can be paired off."""
    left = list(other)
    for run in one:
        if run in left:
            left.remove(run)
    return len(other) - len(left)


def plain_bleu(found: list[str], wanted: list[str]) -> float:
    """BLEU as Papineni et al. (2002) and Chen and Cherry (2014, method 3) write it."""
    logs, smooth = [], 1.0
    for n in range(1, 5):
        if not runs(found, n):
            break
        right = common(runs(found, n), runs(wanted, n))
        if n == 1 and not right:
            return 0.0
        if not right:
            smooth *= 2
        logs.append(math.log((right or 1 / smooth) / len(runs(found, n))))
    brevity = min(1.0, math.exp(1 - len(wanted) / len(found)))
    return brevity * math.exp(sum(logs) / len(logs))


@given(TEXT, TEXT)
def test_character_metrics(text: str, wanted: str) -> None:
    some = bool(text and wanted)
    dice = 2 * longest_common(text, wanted) / (len(text) + len(wanted)) if some else 0
    assert similarity("fuzzy_match", text, wanted) == pytest.approx(dice)
    kept = 1 - edits(text, wanted) / max(len(text), len(wanted)) if some else 0
    assert similarity("levenshtein", text, wanted) == pytest.approx(kept)


@given(SENTENCES, SENTENCES)
def test_sorted_words(text: str, wanted: str) -> None:
    one, other = (" ".join(sorted(each.split())) for each in (text, wanted))
    expected = similarity("fuzzy_match", one, other)
    assert similarity("token_sort", text, wanted) == pytest.approx(expected)


@given(WORDS, WORDS)
def test_rouge(found: list[str], wanted: list[str]) -> None:
    text, reference = " ".join(found), ", ".join(wanted)
    for n, metric in enumerate(("rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5"), 1):
        one, other = runs(found, n), runs(wanted, n)
        f1 = 2 * common(one, other) / (len(one) + len(other)) if one and other else 0
        assert similarity(metric, text, reference) == pytest.approx(f1)  # type: ignore[arg-type]
    f1 = 2 * longest_common(found, wanted) / (len(found) + len(wanted))
    assert similarity("rouge_l", text, reference) == pytest.approx(f1)


@given(WORDS, WORDS)
def test_gleu(found: list[str], wanted: list[str]) -> None:
    one = [run for n in range(1, 5) for run in runs(found, n)]
    other = [run for n in range(1, 5) for run in runs(wanted, n)]
    right = common(one, other)
    expected = min(right / len(one), right / len(other))
    assert similarity("gleu", " ".join(found), " ".join(wanted)) == pytest.approx(expected)


@given(WORDS, WORDS)
def test_bleu(found: list[str], wanted: list[str]) -> None:
    result = similarity("bleu", " ".join(found), " ".join(wanted))
    assert result == pytest.approx(plain_bleu(found, wanted))


@pytest.mark.parametrize("metric", METRICS)
@given(st.text(max_size=12), st.text(max_size=12))
def test_a_similarity_is_a_share_and_full_only_for_what_is_counted_alike(
    metric: Metric, text: str, wanted: str
) -> None:
    assert 0 <= similarity(metric, text, wanted) <= 1
    assert similarity(metric, wanted, wanted) in (0, 1)
    assert similarity(metric, "", wanted) == similarity(metric, text, "") == 0
    if metric in ("fuzzy_match", "levenshtein"):
        assert (similarity(metric, text, wanted) == 1) == (text == wanted != "")
    if not re.search(r"\w", wanted) and metric.startswith(("rouge", "gleu", "token")):
        assert similarity(metric, text, wanted) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_all_words_of_the_language_are_not_like_a_sentence(metric: Metric) -> None:
    wanted = "turn on the light in the kitchen"
    text = " ".join(f"word{number}" for number in range(500)) + " " + wanted
    assert similarity(metric, text, wanted) < 0.2


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("text", ["\ud800 a", "\x00", "a\u0301\u0316" * 99, "🦉", "漢字", "٣"])
def test_odd_characters_are_characters(metric: Metric, text: str) -> None:
    assert similarity(metric, text, text) in (0, 1)
    assert similarity(metric, text, "owl") < 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("हिन्दी में", "हन द म"),
        ("தமிழ் மொழி", "தமழ மழ"),
        ("e\u0301te\u0301 la", "ete la"),
        ("नमस्ते", "नमस त"),
    ],
)
def test_combining_marks_are_parts_of_words(text: str, wanted: str) -> None:
    words = text.split()
    metrics: tuple[Metric, ...] = ("rouge_1", "rouge_l", "gleu", "bleu", "token_sort")
    for metric in metrics:
        assert similarity(metric, text, text) == 1
        assert similarity(metric, text, wanted) < 1
    assert similarity("rouge_1", text, words[0]) == pytest.approx(2 / (len(words) + 1))
