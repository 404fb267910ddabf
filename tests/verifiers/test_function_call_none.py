"""`function_call` where nothing is to be called."""

import pytest

from tests.verifiers.grading import called as grade
from verifiers import Sample, Status, ToolCall, build
from verifiers.calls import write_call


@pytest.mark.parametrize(
    ("syntax", "text", "passes"),
    [
        ("call", "none", True),
        ("call", "", True),
        ("call", "Sorry, I cannot do that (yet).", True),
        ("call", "unlock()", False),
        ("call", "unlock(door", False),
        ("call", "Sure, at once:\n unlock(door=front)", False),
        ("json", "none", True),
        ("json", '{"answer": 1}', True),
        ("json", '{"name": "unlock", "arguments": {}}', False),
        ("json", '{"name": "unlock", "ar', False),
        ("tools", "unlock()", True),
    ],
)
def test_when_nothing_is_to_be_called_any_begun_call_fails(
    syntax: str, text: str, passes: bool
) -> None:
    result = grade(text, None, syntax=syntax)
    assert result.passed == passes
    assert result.score == float(passes)


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("call", "Sure: unlock(door=front)"),
        ("call", "none; unlock (door=front)"),
        ("call", "none\r\u200bunlock(door=front)"),
        ("json", '{x} {"name": "unlock", "arguments": {}}'),
        ("json", '{"arguments": {}, "name": "unlock"'),
        ("json", '{"tool_calls": [{"function": {"name": "unlock", "arguments": "{}"}}]}'),
        ("json", "{'name': 'unlock', 'arguments': {}}"),
    ],
)
def test_an_unwanted_call_cannot_hide(syntax: str, text: str) -> None:
    assert grade(text, None, syntax=syntax).score == 0.0
    right = write_call("f", {"a": 1}, syntax)  # type: ignore[arg-type]
    assert grade(
        f"{right}\nDone (really).", {"f": {"a": 1}}, syntax=syntax, surrounding="ignore"
    ).passed
    for calls, wanted in (("one", {"f": {"a": 1}}), ("in_order", [{"f": {"a": 1}}])):
        config = {"syntax": syntax, "surrounding": "ignore", "calls": calls}
        assert grade(f"{right}", wanted, **config).passed
        assert not grade(f"{right}\n{text}", wanted, **config).passed


def test_a_stray_quote_before_a_bomb_is_no_error() -> None:
    assert grade('"' + '{"a":' * 10_000, None).status is Status.PASSED


def test_a_tool_call_fails_where_nothing_is_to_be_called() -> None:
    grader = build({"type": "function_call", "syntax": "tools"})
    sample = Sample(output_text="", output_tools=(ToolCall(name="f", arguments={}),))
    assert grader.grade(sample, {"call": None}).status is Status.FAILED


def test_a_no_call_text_that_is_a_call_is_no_reference() -> None:
    grader = build({"type": "function_call", "syntax": "call", "no_call_text": "nothing()"})
    assert grader.reference({"call": None}) is None
