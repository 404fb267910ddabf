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


def formula(text: str, *names: str) -> Any:
    """Build a multi of graders that pass what contains their name."""
    parts = {name: contains(name) for name in names}
    return build({"type": "multi", "graders": parts, "calculate_output": text})


@given(st.text(alphabet="abc", max_size=3))
def test_a_formula_gives_the_score_and_all_must_still_pass(output: str) -> None:
    grade = formula("0.5 * a + 0.5 * min(b, c)", "a", "b", "c").grade(
        Sample(output_text=output), {}
    )
    a, b, c = (float(name in output) for name in "abc")
    assert grade.score == pytest.approx(0.5 * a + 0.5 * min(b, c), abs=2e-6)
    assert grade.passed == all((a, b, c)) == (grade.score == 1)


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.text(alphabet="abc", max_size=3))
def test_a_formula_of_weights_is_the_weighted_mean(weights: list[float], output: str) -> None:
    terms = " + ".join(f"{w!r} * {name}" for name, w in zip("abc", weights, strict=True))
    by_formula = formula(f"({terms}) / {sum(weights)!r}", "a", "b", "c")
    by_weights = build(
        {
            "type": "multi",
            "graders": {name: contains(name) for name in "abc"},
            "weights": dict(zip("abc", weights, strict=True)),
        }
    )
    one, other = (g.grade(Sample(output_text=output), {}) for g in (by_formula, by_weights))
    assert one.score == pytest.approx(other.score, abs=1e-9)
    assert (one.status, one.subscores) == (other.status, other.subscores)


@pytest.mark.parametrize(
    ("text", "output", "score"),
    [("a - 0.5 * (1 - b)", "", 0.0), ("4 * a * b", "a", 0.0), ("2 * a + b", "a", 1 - 1e-6)],
)
def test_a_formula_is_kept_between_zero_and_what_a_failure_can_score(
    text: str, output: str, score: float
) -> None:
    grade = formula(text, "a", "b").grade(Sample(output_text=output), {})
    assert (grade.status, grade.score) == (Status.FAILED, score)


@pytest.mark.parametrize("text", ["a / b", "1 + log(b)", "b ^ (0 - 1)", "sqrt(2 * b - 1)"])
def test_a_completion_for_which_the_formula_has_no_value_fails(text: str) -> None:
    grader = formula(text, "a", "b")
    grade = grader.grade(Sample(output_text="a"), {})
    assert (grade.status, grade.score) == (Status.FAILED, 0.0)
    assert grade.subscores == {"a": 1.0, "b": 0.0, "calculate_output": 0.0}
    assert grader.grade(Sample(output_text="a b"), {}).passed


def test_openais_example_of_a_multi_grader_works_as_it_stands() -> None:
    grader = build(
        {
            "type": "multi",
            "graders": {
                "function_name": {
                    "name": "function_name",
                    "type": "string_check",
                    "input": "get_acceptors",
                    "reference": "{{sample.output_tools[0].function.name}}",
                    "operation": "eq",
                },
                "arguments": {
                    "name": "arguments",
                    "type": "string_check",
                    "input": '{"smiles": "{{item.smiles}}"}',
                    "reference": "{{sample.output_tools[0].function.arguments}}",
                    "operation": "eq",
                },
            },
            "calculate_output": "0.5 * function_name + 0.5 * arguments",
        }
    )
    item = {"smiles": "CCO"}
    for smiles, score in (("CCO", 1.0), ("CCC", 0.5)):
        text = f'{{"name": "get_acceptors", "arguments": {{"smiles": "{smiles}"}}}}'
        assert grader.grade(Sample(output_text=text), item).score == score
    assert grader.grade(Sample(output_text="none"), item).score == 0.0


@pytest.mark.parametrize(
    ("config", "path", "message"),
    [
        ({"calculate_output": "a +"}, "calculate_output", "ends where"),
        ({"calculate_output": "a + c"}, "calculate_output", "no grader: 'c'"),
        ({"calculate_output": "0.5 * a"}, "calculate_output", "gives 0.5 instead of 1"),
        ({"calculate_output": "1 - a"}, "calculate_output", "gives 0 instead"),
        ({"calculate_output": "a / (a - b)"}, "calculate_output", "divides by zero"),
        ({"calculate_output": "a" * 2000}, "calculate_output", "at most 1000"),
        ({"calculate_output": "a", "weights": {"a": 1}}, "weights", "beside"),
        ({"calculate_output": "a", "graders": {"a": LIKE, "b-c": LIKE}}, "graders.b-c", "name"),
        ({"calculate_output": "a", "graders": {"a": LIKE, "1b": LIKE}}, "graders.1b", "name"),
        ({"calculate_output": "a", "graders": {"a": LIKE, "min": LIKE}}, "graders.min", "name"),
        (
            {"calculate_output": "a", "graders": {"a": LIKE, "calculate_output": LIKE}},
            "graders.calculate_output",
            "name",
        ),
    ],
)
def test_a_wrong_formula_is_refused_with_its_place(
    config: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "multi", "graders": {"a": LIKE, "b": LIKE}, **config})
    assert caught.value.path == path
    assert message in caught.value.message


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
        ({"graders": {"a.b": LIKE}}, "graders.a.b"),
        ({"graders": {f"g{n}": LIKE for n in range(33)}}, "graders"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "multi", **config})
    assert caught.value.path == path
