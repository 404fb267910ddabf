"""Reading tool calls out of answers: whole, piece by piece, in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.tool_calls import MAX_CALLS, CallReader, Reading, read_whole
from app.engine.tool_form import ToolForm
from verifiers import ToolCall

BARE = ToolForm()
MARKED = ToolForm(in_template=True, start="<tool_call>", end="</tool_call>")
OPEN = ToolForm(in_template=True, start="[CALL]", end="")
ON = '{"name": "turn_on", "arguments": {"area": "kitchen"}}'
ON_CALL = ToolCall(name="turn_on", arguments={"area": "kitchen"})
MARKED_ON = f"<tool_call>\n{ON}\n</tool_call>"


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


TOOLS = [tool("turn_on"), tool("say")]


def read(text: str, form: ToolForm = BARE) -> Reading:
    return read_whole(CallReader(form, TOOLS), text)


@pytest.mark.parametrize("form", [BARE, MARKED], ids=["bare", "marked"])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        (ON, 1),
        (f"\n {ON} \n", 1),
        (f"[{ON}, {ON}]", 2),
        (ON.replace("arguments", "parameters"), 1),
        (json.dumps({"name": "turn_on", "arguments": '{"area": "kitchen"}'}), 1),
    ],
)
def test_an_answer_that_is_json_of_calls_is_calls(form: ToolForm, text: str, count: int) -> None:
    assert read(text, form) == Reading("", (ON_CALL,) * count)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "Hello.",
        f"Sure: {ON}",
        f"{ON} done",
        '{"name": "rob_the_bank", "arguments": {}}',
        '{"name": "turn_on"}',
        '{"name": "turn_on", "arguments": [1]}',
        '{"name": "turn_on", "arguments": "{"}',
        '{"name": 3, "arguments": {}}',
        '{"name": "turn_on", "arguments": {"a": 1, "a": 2}}',
        '{"name": "turn_on", "arguments": {"a": NaN}}',
        f"[{ON}, 3]",
        "[]",
        "[" * 500,
        f"[{', '.join([ON] * (MAX_CALLS + 1))}]",
        MARKED_ON,
    ],
)
def test_what_is_no_call_is_text_to_the_letter(text: str) -> None:
    assert read(text) == Reading(text, ())


def test_calls_between_markers_leave_the_text_around_them() -> None:
    said = read(f"I turn it on.\n{MARKED_ON}\n{MARKED_ON}\nDone.", MARKED)
    assert said == Reading("I turn it on.\nDone.", (ON_CALL, ON_CALL))
    assert read(f"{MARKED_ON}\n", MARKED) == Reading("", (ON_CALL,))


@pytest.mark.parametrize("text", ["<tool_call>{</tool_call>", "a <tool_call> b", "x <tool", "<"])
def test_a_broken_call_between_markers_is_text(text: str) -> None:
    assert read(text, MARKED) == Reading(text, ())


def test_a_call_without_an_end_marker_ends_with_the_answer() -> None:
    assert read(f"<tool_call>\n{ON}", MARKED) == Reading("", (ON_CALL,))
    assert read(f"Fine. [CALL]{ON}", OPEN) == Reading("Fine.", (ON_CALL,))


def test_a_models_own_parser_reads_what_is_between_markers_and_may_raise() -> None:
    def parse(text: str, _tools: Any) -> Any:
        name, key, value = text.split()
        return {"name": name, "arguments": {key: value}}

    own = ToolForm(in_template=True, start="<f>", end="</f>", parse=parse)
    assert read("<f>turn_on area kitchen</f>", own) == Reading("", (ON_CALL,))
    assert read("<f>turn_on</f>", own) == Reading("<f>turn_on</f>", ())


def test_a_call_that_does_not_fit_is_text() -> None:
    reader = CallReader(BARE, TOOLS, lambda call: "level" in call.arguments)
    assert read_whole(reader, ON) == Reading(ON, ())


PIECES = st.lists(
    st.sampled_from(
        [ON, MARKED_ON, f"[{ON}]", "Well", " ", "\n", "{", "<tool_call>", "</tool_call>", "<", "é"]
    ),
    max_size=6,
)


@given(PIECES, st.randoms(use_true_random=False), st.sampled_from([BARE, MARKED, OPEN]))
def test_cutting_an_answer_into_pieces_changes_nothing(
    parts: list[str], random: Any, form: ToolForm
) -> None:
    text = "".join(parts)
    reader = CallReader(form, TOOLS)
    pieces: list[str | ToolCall] = []
    rest = text
    while rest:
        size = random.randint(1, 4)
        pieces += reader.push(rest[:size])
        rest = rest[size:]
    pieces += reader.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
    assert Reading(content, calls) == read(text, form)
    if not calls:
        assert content == text


def test_plain_text_is_handed_on_at_once() -> None:
    reader = CallReader(MARKED, TOOLS)
    assert reader.push("Hello") == ["Hello"]
    assert reader.push(" you <") == [" you"]
    assert reader.push("3") == [" <3"]
    assert reader.push(f" {MARKED_ON}") == [ON_CALL]
