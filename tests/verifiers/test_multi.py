"""`multi` against its parts graded one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import GraderConfigError, Sample, Status, build

LIKE = {"type": "string_check", "operation": "like"}
WEIGHTS = st.lists(st.floats(0.001, 1000), min_size=3, max_size=3)


def contains(text: str) -> dict[str, Any]:
    """Configure a grader that passes what contains a text."""
    return {**LIKE, "reference": text}


@given(st.text(alphabet="abc", max_size=3), WEIGHTS)
def test_score_is_the_weighted_mean_and_all_must_pass(output: str, weights: list[float]) -> None:
    parts = {name: contains(name) for name in "abc"}
    grader = build(
        {"type": "multi", "graders": parts, "weights": dict(zip("abc", weights, strict=True))}
    )
    grade = grader.grade(Sample(output_text=output), {})
    held = [name in output for name in "abc"]
    mean = sum(w for w, one in zip(weights, held, strict=True) if one) / sum(weights)
    assert grade.score == pytest.approx(mean, abs=2e-6)
    assert grade.passed == all(held)
    assert (grade.score == 1.0) == all(held)
    assert grade.subscores == {name: float(name in output) for name in "abc"}


def test_a_failed_part_of_vanishing_weight_keeps_the_score_below_one() -> None:
    parts = {"big": contains("a"), "tiny": contains("b")}
    grader = build({"type": "multi", "graders": parts, "weights": {"big": 1e6, "tiny": 1e-300}})
    grade = grader.grade(Sample(output_text="a"), {})
    assert grade.status is Status.FAILED
    assert grade.score is not None and grade.score < 1


def test_subscores_carry_the_name_of_their_part_at_any_depth() -> None:
    inner = {"type": "multi", "graders": {"json": {"type": "json_match"}}}
    grader = build({"type": "multi", "graders": {"outer": inner}})
    grade = grader.grade(Sample(output_text='{"a": 1}'), {"answer": {"a": 1}})
    assert set(grade.subscores) == {
        "outer",
        "outer.json",
        "outer.json.parseable",
        "outer.json.fields",
    }


@pytest.mark.parametrize("output", ["", "a", "x" * 70_000])
def test_one_errored_part_makes_the_whole_errored_and_is_named(output: str) -> None:
    grader = build({"type": "multi", "graders": {"good": contains("a"), "bad": LIKE}})
    grade = grader.grade(Sample(output_text=output), {})
    assert (grade.status, grade.error_kind, grade.score) == (Status.ERRORED, "item", None)
    assert grade.error is not None and grade.error.startswith("bad: ")
    assert grade.subscores == {}


def test_the_reference_is_the_first_that_all_parts_pass() -> None:
    grader = build({"type": "multi", "graders": {"short": contains("a"), "long": contains("a b")}})
    assert grader.reference({}) == "a b"


def test_there_is_no_reference_if_the_parts_contradict_each_other() -> None:
    parts = {"yes": contains("a"), "no": {"type": "string_check", "reference": "b"}}
    assert build({"type": "multi", "graders": parts}).reference({}) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"graders": {}}, "graders"),
        ({"graders": {"a": {}}}, "graders.a.type"),
        ({"graders": {"a": {"type": "nope"}}}, "graders.a.type"),
        ({"graders": {"a": {**LIKE, "refernce": "x"}}}, "graders.a.refernce"),
        ({"graders": {"a": contains(" ")}}, "graders.a.reference"),
        (
            {"graders": {"a": {"type": "multi", "graders": {"b": {**LIKE, "strip": 1}}}}},
            "graders.a.graders.b.strip",
        ),
        ({"graders": {"a": LIKE}, "weights": {"b": 1}}, "weights"),
        ({"graders": {"a": LIKE}, "weights": {"a": 0}}, "weights.a"),
        ({"graders": {"a": LIKE}, "weights": {"a": "1"}}, "weights.a"),
        ({"graders": {"a.b": LIKE}}, "graders.a.b.[key]"),
        ({"graders": {f"g{n}": LIKE for n in range(33)}}, "graders"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "multi", **config})
    assert caught.value.path == path
