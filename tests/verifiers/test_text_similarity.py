"""`text_similarity`: thresholds, normalisation, refusals. The metrics have their own tests."""

import unicodedata
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers import Grade, GraderConfigError, Sample, Status, build
from verifiers.similarity import Metric, similarity
from verifiers.text_similarity import MAX_CHARS, ROUNDING
from verifiers.texts import normal

METRICS = get_args(Metric)
SENTENCE = "Turn on the light in the kitchen, please"


def grade(text: str, answer: Any, metric: str = "fuzzy_match", **config: Any) -> Grade:
    """Grade a text against an answer."""
    config = {"evaluation_metric": metric, "pass_threshold": 0.8, **config}
    grader = build({"type": "text_similarity", **config})
    return grader.grade(Sample(output_text=text), {"answer": answer})


@pytest.mark.parametrize("metric", METRICS)
@given(text=HOSTILE_TEXT, threshold=st.floats(0.01, 1))
def test_the_score_is_the_similarity_and_passes_from_the_threshold_on(
    metric: Metric, text: str, threshold: float
) -> None:
    result = grade(text, SENTENCE, metric, pass_threshold=threshold, ignore_case=False)
    expected = 0.0 if len(text) > MAX_CHARS else similarity(metric, normal(text).strip(), SENTENCE)
    assert result.passed == (expected >= threshold - ROUNDING)
    assert result.score == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("metric", METRICS)
@given(answer=st.text(alphabet="abc, é.", max_size=12))
def test_the_reference_passes_and_is_only_missing_where_the_item_is_errored(
    metric: str, answer: str
) -> None:
    config = {"type": "text_similarity", "evaluation_metric": metric, "pass_threshold": 1.0}
    grader = build(config)
    text = grader.reference({"answer": answer})
    errored = grader.grade(Sample(output_text="x"), {"answer": answer}).status is Status.ERRORED
    assert (text is None) == errored
    if text is not None:
        result = grader.grade(Sample(output_text=text), {"answer": answer})
        assert result.passed and result.score == 1


@pytest.mark.parametrize("metric", METRICS)
def test_case_and_outer_white_space_do_not_count_unless_asked(metric: str) -> None:
    assert grade(f"  {SENTENCE.upper()}\n", SENTENCE, metric).score == 1
    strict = grade(SENTENCE.upper(), SENTENCE, metric, ignore_case=False)
    assert strict.score is not None and strict.score < 0.3


@pytest.mark.parametrize(
    ("answer", "metric"),
    [
        ("", "fuzzy_match"),
        (" \n", "levenshtein"),
        (None, "bleu"),
        ("?!", "rouge_l"),
        ("...", "token_sort"),
        ("two words", "rouge_3"),
        ("x" * (MAX_CHARS + 1), "fuzzy_match"),
    ],
)
def test_a_reference_that_nothing_is_like_is_errored(answer: Any, metric: str) -> None:
    result = grade("?!", answer, metric)
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    if isinstance(answer, str):
        with pytest.raises(GraderConfigError) as caught:
            grade("", "", metric, reference=answer)
        assert caught.value.path == "reference"


@pytest.mark.parametrize("metric", METRICS)
def test_a_text_that_is_too_long_fails(metric: str) -> None:
    answer = "a b c d e " * 100
    for text in ("a b c d e " * 2000, "x" * 1_000_000, "a" * (MAX_CHARS + 1)):
        result = grade(text, answer, metric, pass_threshold=0.01)
        assert (result.status, result.score) == (Status.FAILED, 0.0)


@pytest.mark.parametrize("metric", METRICS)
def test_the_longest_texts_end(metric: str) -> None:
    answer = "ab " * (MAX_CHARS // 3)
    for text in ("ba " * (MAX_CHARS // 3), "b" * MAX_CHARS, " a" * (MAX_CHARS // 2)):
        assert grade(text, answer, metric).status in (Status.PASSED, Status.FAILED)


def test_a_part_of_the_completion_can_be_compared() -> None:
    place = "{{sample.output_json.say}}"
    assert grade('{"say": "good night"}', "good night", input=place).passed
    assert grade("good night", "good night", input=place).status is Status.FAILED


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"pass_threshold": 0.5}, "evaluation_metric"),
        ({"evaluation_metric": "bleu"}, "pass_threshold"),
        ({"evaluation_metric": "meteor", "pass_threshold": 0.5}, "evaluation_metric"),
        ({"evaluation_metric": "bleu", "pass_threshold": 0}, "pass_threshold"),
        ({"evaluation_metric": "bleu", "pass_threshold": 1.1}, "pass_threshold"),
        ({"evaluation_metric": "bleu", "pass_threshold": 0.5, "input": "x"}, "input"),
        (
            {
                "evaluation_metric": "bleu",
                "pass_threshold": 0.5,
                "reference": "{{sample.output_text}}",
            },
            "reference",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "text_similarity", **config})
    assert caught.value.path == path


@pytest.mark.parametrize("metric", ["fuzzy_match", "levenshtein", "rouge_1", "gleu"])
def test_a_similarity_that_is_the_threshold_but_for_rounding_passes(metric: str) -> None:
    for total in range(2, 30):
        answer, text = "a" * total, "a" * (total - 1) + "b"
        if metric in ("rouge_1", "gleu"):
            answer, text = " ".join(answer), " ".join(text)
        score = grade(text, answer, metric).score
        assert score is not None
        for near in (score, score + 5e-10):
            assert grade(text, answer, metric, pass_threshold=near).passed
        assert not grade(text, answer, metric, pass_threshold=score + 1e-8).passed


@pytest.mark.parametrize("metric", METRICS)
def test_texts_that_look_the_same_are_the_same(metric: str) -> None:
    sentence = SENTENCE.replace("e", "\u00e9")
    result = grade(unicodedata.normalize("NFD", sentence), sentence, metric, pass_threshold=1.0)
    assert result.passed and result.score == 1
