"""The `python` grader: scores of the user's own function, and what can be wrong with it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, OBJECTS
from verifiers import Grade, GraderConfigError, Sample, Status, ToolCall, build, sandbox
from verifiers.base import BEST_FAILED_SCORE

pytestmark = pytest.mark.usefixtures("patient")

TIMEOUT_S = 30.0


def returning(expression: str, **fields: Any) -> dict[str, Any]:
    """A configuration of which `grade` returns the value of an expression."""
    source = f"def grade(sample, item):\n    return {expression}\n"
    return {"type": "python", "source": source, "timeout_s": TIMEOUT_S, **fields}


def graded(expression: str, text: str = "", item: Any = None, **fields: Any) -> Grade:
    return build(returning(expression, **fields)).grade(Sample(output_text=text), item or {})


@given(HOSTILE_TEXT, OBJECTS)
def test_the_function_sees_the_completion_and_the_item(text: str, item: dict[str, Any]) -> None:
    seen = "float(sample['output_text'] == item['text'] and item['item'] == item['same'])"
    assert graded(seen, text, {"text": text, "item": item, "same": item}).passed
    assert graded(seen, text, {"text": text + "x", "item": item, "same": item}).score == 0


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_the_score_is_what_it_returns_and_passes_from_the_threshold_on(
    score: float, threshold: float
) -> None:
    grade = graded("item['score']", item={"score": score}, pass_threshold=threshold)
    assert grade.passed == (score >= threshold)
    assert grade.score == (score if grade.passed else min(score, BEST_FAILED_SCORE))


@pytest.mark.parametrize(("value", "score"), [("True", 1), ("False", 0), ("1", 1), ("0.25", 0.25)])
def test_booleans_and_integers_are_numbers(value: str, score: float) -> None:
    assert graded(value).score == score


@pytest.mark.parametrize(
    "value",
    [
        *("None", "'1'", "[1]", "(1,)", "print", "lambda: 1", "sample", "1j", "b'1'", "type(1)"),
        *("2", "-0.1", "1.0000001", "float('nan')", "float('inf')", "10 ** 400"),
    ],
)
def test_anything_else_is_the_configurations_error(value: str) -> None:
    grade = graded(value)
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "config")
    assert grade.error is not None and grade.error.startswith("grade returned a")


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("item['answer']", "the source raised KeyError: answer (line 2)"),
        ("1 / 0", "the source raised ZeroDivisionError: division by zero (line 2)"),
        ("undefined", "the source raised NameError: name 'undefined' is not defined (line 2)"),
        ("open('/etc/passwd')", "Permission denied"),
        ("(yield)", "the sandbox does not have yield expressions"),
        ("grade(sample, item)", "RecursionError"),
    ],
)
def test_what_it_raises_is_the_configurations_error_with_the_line(
    expression: str, error: str
) -> None:
    grade = graded(expression)
    assert grade.error_kind == "config"
    assert grade.error is not None and error in grade.error


def test_code_around_the_function_that_raises_is_the_configurations_error() -> None:
    source = "def grade(sample, item):\n    return 1.0\nx = 1 / 0"
    grade = build({"type": "python", "source": source}).grade(Sample(output_text=""), {})
    assert (grade.error_kind, grade.error) == (
        "config",
        "the source raised ZeroDivisionError: division by zero (line 3)",
    )


def test_overrunning_is_a_timeout_and_no_memory_the_sandbox_s_error() -> None:
    late = graded("sum(range(10 ** 12))", timeout_s=0.1)
    assert (late.score, late.error_kind) == (None, "timeout")
    big = graded("[0] * 10 ** 9", timeout_s=TIMEOUT_S)
    assert (big.score, big.error_kind) == (None, "sandbox")


def test_json_completions_and_tool_calls_are_there_to_be_read() -> None:
    assert graded("sample['output_json']['a'][0]", '{"a": [0.5]}').score == 0.5
    for text in ("no json", '{"a": 1, "a": 2}', "NaN", "[" * 60_000, "", '{"\\ud800": 1}'):
        assert graded("sample['output_json'] is None", text).passed
    grader = build(returning("sample['output_tools'] == [{'name': 'f', 'arguments': {'x': 1}}]"))
    calls = (ToolCall(name="f", arguments={"x": 1}),)
    assert grader.grade(Sample(output_text="", output_tools=calls), {}).passed


@pytest.mark.parametrize(
    "sample",
    [
        Sample(output_text="\ud800"),
        Sample(output_text="", output_tools=(ToolCall(name="f", arguments={"x": float("nan")}),)),
        Sample(output_text="", output_tools=(ToolCall(name="f", arguments={"x": {1}}),)),
    ],
)
def test_what_no_model_can_have_said_fails(sample: Sample) -> None:
    grade = build(returning("1.0")).grade(sample, {})
    assert (grade.status, grade.score) == (Status.FAILED, 0)


@given(HOSTILE_TEXT)
def test_no_completion_reaches_the_source(text: str) -> None:
    grade = graded("len(sample['output_text']) == item['length']", text, {"length": len(text)})
    assert grade.passed


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "does not define a function grade"),
        ("x = 1", "does not define a function grade"),
        ("grade = lambda sample, item: 1", "does not define a function grade"),
        ("async def grade(sample, item): return 1", "does not define a function grade"),
        ("if True:\n    def grade(sample, item): return 1", "does not define a function grade"),
        ("def grade(sample): return 1", "line 1: grade takes two arguments"),
        ("\ndef grade(a, b, c): return 1", "line 2: grade takes two arguments"),
        ("def grade(a, b, *, c): return 1", "line 1: grade takes two arguments"),
        ("def grade(*, a, b): return 1", "line 1: grade takes two arguments"),
        ("def grade(sample, item):\nreturn 1", "is not Python: line 2: "),
        ("def grade(sample, item): return 1\x00", "is not Python: "),
        ("x = " + "-" * 60_000 + "1", "is not Python: nested too deep"),
        ("x = " + "(" * 60_000, "is not Python: line 1: too many nested parentheses"),
        ("x" * 70_000, "String should have at most 65536 characters"),
    ],
)
def test_a_source_without_the_function_is_refused(source: str, message: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "python", "source": source})
    assert caught.value.path == "source"
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "signature",
    ["sample, item", "a, b=None", "*args", "a, *rest", "a, b, c=3", "a, /, b", "a, b, **k"],
)
def test_any_function_of_two_arguments_will_do(signature: str) -> None:
    source = f"def grade({signature}):\n    return 1.0"
    assert build({"type": "python", "source": source}).grade(Sample(output_text=""), {}).passed


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("return item['answer']", "yes"),
        ("return 'no'", None),  # which does not pass
        ("return None", None),
        ("return 1", None),
        ("return item['unknown']", None),
        ("while True: pass", None),
    ],
)
def test_a_reference_is_what_the_source_says_if_it_passes(reference: str, text: str | None) -> None:
    source = (
        "def grade(sample, item):\n    return sample['output_text'] == item['answer']\n"
        f"def reference(item):\n    {reference}\n"
    )
    grader = build(
        {"type": "python", "source": source, "timeout_s": 1 if "while" in source else TIMEOUT_S}
    )
    assert grader.reference({"answer": "yes"}) == text
    assert grader.reference({"answer": float("nan")}) is None


def test_without_a_function_for_it_there_is_no_reference() -> None:
    assert build(returning("1.0")).reference({}) is None


@given(st.text())
def test_of_what_it_raises_one_short_line_is_shown(text: str) -> None:
    for long in (text, text * 50 + "\x1b[2J\n" * 50):
        error = graded("int(item['text'])", item={"text": f"x{long}"}).error
        assert error is not None and error.startswith("the source raised ValueError")
        assert len(error) < 250 and error.isprintable()


def test_more_time_than_the_service_has_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "MAX_TIMEOUT_S", 1.5)
    with pytest.raises(GraderConfigError, match=r"is at most 1\.5, because .* lower it") as caught:
        build(returning("1.0", timeout_s=2.0))
    assert caught.value.path == "timeout_s"
