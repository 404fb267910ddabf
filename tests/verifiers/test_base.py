"""The grade itself, and the turning of what breaks into errored grades."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from verifiers.base import (
    BEST_FAILED_SCORE,
    MAX_ERROR_CHARS,
    MAX_OUTPUT_CHARS,
    Broken,
    Grade,
    ItemError,
    Outcome,
    OutputError,
    Sample,
    Status,
    ToolCall,
    grade_with,
)


def nothing_expected(item: dict[str, Any]) -> None:
    """Accept any item."""


def always(outcome: Outcome) -> Any:
    """Return a `compare` that gives this outcome."""
    return lambda sample, expected: outcome


def test_a_grade_has_a_score_exactly_when_it_is_not_errored() -> None:
    with pytest.raises(ValidationError, match="no score exactly when"):
        Grade(status=Status.FAILED, score=None, seconds=0)
    with pytest.raises(ValidationError, match="no score exactly when"):
        Grade(status=Status.ERRORED, score=0.0, error_kind="item", error="x", seconds=0)


def test_a_grade_has_an_error_exactly_when_it_is_errored() -> None:
    with pytest.raises(ValidationError, match="an error exactly when"):
        Grade(status=Status.ERRORED, score=None, seconds=0)
    with pytest.raises(ValidationError, match="an error exactly when"):
        Grade(status=Status.PASSED, score=1.0, error="x", seconds=0)


@pytest.mark.parametrize("score", [-0.1, 1.1, float("nan"), float("inf")])
def test_scores_outside_the_unit_interval_are_refused(score: float) -> None:
    with pytest.raises(ValidationError):
        Grade(status=Status.FAILED, score=score, seconds=0)
    with pytest.raises(ValidationError):
        Grade(status=Status.FAILED, score=0.0, subscores={"a": score}, seconds=0)


def test_no_score_is_a_negative_zero() -> None:
    outcome = Outcome(False, -0.0, {"a": -0.0})
    grade = grade_with(nothing_expected, always(outcome), Sample(output_text=""), {})
    assert "-0.0" not in grade.model_dump_json()
    assert [str(grade.score), str(grade.subscores["a"])] == ["0.0", "0.0"]


def test_wire_data_is_frozen() -> None:
    for value in (Sample(output_text=""), ToolCall(name="f", arguments={})):
        with pytest.raises(ValidationError):
            setattr(value, next(iter(type(value).model_fields)), "other")


@given(st.floats(0, 1))
def test_a_failure_scores_below_one_and_a_pass_keeps_its_score(score: float) -> None:
    failed = grade_with(nothing_expected, always(Outcome(False, score)), Sample(output_text=""), {})
    passed = grade_with(nothing_expected, always(Outcome(True, score)), Sample(output_text=""), {})
    assert failed.score == min(score, BEST_FAILED_SCORE) < 1
    assert not failed.passed
    assert passed.score == score
    assert passed.passed


@pytest.mark.parametrize("item", [None, [], "x", {"a": float("nan")}, {1: 2}, {"a": {1, 2}}])
def test_an_item_that_is_not_json_is_errored(item: Any) -> None:
    grade = grade_with(nothing_expected, always(Outcome(True, 1.0)), Sample(output_text=""), item)
    assert (grade.status, grade.score, grade.error_kind) == (Status.ERRORED, None, "item")


def test_an_item_error_is_errored_even_if_the_completion_is_too_long() -> None:
    def broken(item: dict[str, Any]) -> None:
        raise ItemError("no answer")

    sample = Sample(output_text="x" * (MAX_OUTPUT_CHARS + 1))
    grade = grade_with(broken, always(Outcome(True, 1.0)), sample, {})
    assert (grade.status, grade.error_kind, grade.error) == (Status.ERRORED, "item", "no answer")


def test_a_too_long_completion_fails_without_being_compared() -> None:
    def untouched(sample: Sample, expected: None) -> Outcome:
        raise AssertionError("compared")

    sample = Sample(output_text="x" * (MAX_OUTPUT_CHARS + 1))
    grade = grade_with(nothing_expected, untouched, sample, {})
    assert (grade.status, grade.score, grade.error) == (Status.FAILED, 0.0, None)


def test_a_completion_without_what_is_compared_fails_with_score_zero() -> None:
    def empty(sample: Sample, expected: None) -> Outcome:
        raise OutputError

    grade = grade_with(nothing_expected, empty, Sample(output_text="x"), {})
    assert (grade.status, grade.score, grade.error) == (Status.FAILED, 0.0, None)


def test_a_bug_is_errored_and_tells_place_but_no_content(caplog: pytest.LogCaptureFixture) -> None:
    def buggy(sample: Sample, expected: None) -> Outcome:
        raise ValueError("the user's secret in /home/someone")

    with caplog.at_level(logging.ERROR):
        grade = grade_with(nothing_expected, buggy, Sample(output_text=""), {})
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "internal")
    assert grade.error is not None and "ValueError at test_base.py:" in grade.error
    for text in (grade.error, caplog.text):
        assert "secret" not in text and "/home" not in text
    assert "ValueError" in caplog.text


def test_error_messages_are_bounded() -> None:
    def broken(item: dict[str, Any]) -> None:
        raise ItemError("x" * 10_000)

    grade = grade_with(broken, always(Outcome(True, 1.0)), Sample(output_text=""), {})
    assert grade.error is not None and len(grade.error) == MAX_ERROR_CHARS


def test_a_grader_that_gives_up_says_what_broke() -> None:
    def late(sample: Sample, expected: None) -> Outcome:
        raise Broken("timeout", "too slow")

    grade = grade_with(nothing_expected, late, Sample(output_text=""), {})
    assert (grade.status, grade.error_kind, grade.error) == (Status.ERRORED, "timeout", "too slow")


def test_running_out_of_memory_is_the_sandbox_s_error() -> None:
    def greedy(sample: Sample, expected: None) -> Outcome:
        raise MemoryError

    grade = grade_with(nothing_expected, greedy, Sample(output_text=""), {})
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "sandbox")
