"""Tools: shown, called, required, held to their schemas; and calls graded as calls."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai as official
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from app.client import Client, ServiceError
from tests.app.serving import fresh

SAY_HI: list[Any] = [{"role": "user", "content": "turn on the light"}]


class TurnOn(BaseModel):
    """Turns something on."""

    area: Literal["kitchen", "hall"]
    bright: bool


class TurnOff(BaseModel):
    """Turns something off."""

    area: Literal["kitchen", "hall"]


TOOLS: list[Any] = [official.pydantic_function_tool(model) for model in (TurnOn, TurnOff)]
NAMED: Any = {"type": "function", "function": {"name": "TurnOff"}}
GRADER = {"type": "function_call", "syntax": "tools"}
LAX: list[Any] = [{"type": "function", "function": {"name": "TurnOff", "parameters": {}}}]


def call_format(name: str) -> Any:
    """A response format that leaves no other answer than one call."""
    schema = {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": {"const": {"area": "hall"}}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_is_required_is_made_and_fits(openai: OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": SAY_HI, "tools": TOOLS}
    asked |= {"tool_choice": choice, "parallel_tool_calls": False}
    [whole] = openai.chat.completions.parse(**asked).choices
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    [call] = whole.message.tool_calls or []
    assert call.id.startswith("call_")
    assert isinstance(call.function.parsed_arguments, TurnOn | TurnOff)
    if choice is NAMED:
        assert call.function.name == "TurnOff"
    with openai.chat.completions.stream(**asked) as stream:
        [streamed] = stream.get_final_completion().choices
    [again] = streamed.message.tool_calls or []
    assert streamed.finish_reason == "tool_calls"
    assert (again.type, again.function.name) == ("function", call.function.name)
    assert again.function.parsed_arguments == call.function.parsed_arguments


def test_several_choices_each_call_with_ids_of_their_own(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, tools=TOOLS, tool_choice=NAMED, n=3, temperature=2, seed=3
    )
    calls = [call for choice in answer.choices for call in choice.message.tool_calls or []]
    assert len({call.id for call in calls}) == 3
    for call in calls:
        assert call.type == "function"
        TurnOff.model_validate_json(call.function.arguments)


def test_a_call_that_was_cut_off_is_no_call(openai: OpenAI) -> None:
    [choice] = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, tools=TOOLS, tool_choice="required", max_tokens=5
    ).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)


@pytest.mark.parametrize("tools", [TOOLS, LAX], ids=["strict", "lax"])
def test_words_are_an_answer_where_calling_is_optional(openai: OpenAI, tools: Any) -> None:
    [choice] = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, tools=tools, max_tokens=8
    ).choices
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_reads_as_a_call_is_one(openai: OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": SAY_HI, "stream": stream}
    asked |= {"tools": TOOLS[1:], "parallel_tool_calls": False}
    asked |= {"response_format": call_format("TurnOff")}
    answer = openai.chat.completions.create(**asked)
    if stream:
        parts = [chunk.choices[0] for chunk in answer]
        calls = [call for part in parts for call in part.delta.tool_calls or []]
        assert [call.index for call in calls] == [0]
        assert all(not part.delta.content for part in parts)
        reason = parts[-1].finish_reason
    else:
        calls = answer.choices[0].message.tool_calls
        reason = answer.choices[0].finish_reason
    assert reason == "tool_calls"
    [call] = calls
    assert call.function.name == "TurnOff"
    TurnOff.model_validate_json(call.function.arguments)


def test_what_is_called_but_not_offered_is_text(openai: OpenAI) -> None:
    [choice] = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, tool_choice="none", tools=TOOLS,
        response_format=call_format("TurnOff"),
    ).choices  # fmt: skip
    assert choice.finish_reason == "stop"
    assert json.loads(choice.message.content or "")["name"] == "TurnOff"


def test_parameters_that_cannot_be_kept_to_are_refused_only_where_they_would_have_to_be(
    openai: OpenAI,
) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}
    tools: Any = [{"type": "function", "function": function}]
    asked: dict[str, Any] = {"model": "tiny", "messages": SAY_HI, "max_tokens": 2, "tools": tools}
    assert openai.chat.completions.create(**asked).choices
    with pytest.raises(BadRequestError) as raised:
        openai.chat.completions.create(**asked, tool_choice="required")
    assert (raised.value.code, raised.value.param) == ("invalid_schema", "tools")
    assert "tool f: parameters" in raised.value.message


def test_a_conversation_goes_on_after_a_call_and_its_result(openai: OpenAI) -> None:
    first = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, tools=TOOLS, tool_choice=NAMED
    ).choices[0].message  # fmt: skip
    assert first.tool_calls
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"}
    messages: Any = [*SAY_HI, first.model_dump(include={"role", "content", "tool_calls"}), result]
    answer = openai.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, max_tokens=2
    )
    assert answer.choices[0].finish_reason == "length"


# Tasks, episodes and grades


def turn_off(area: str) -> dict[str, Any]:
    """What is right, or an episode's item."""
    return {"call": {"name": "TurnOff", "arguments": {"area": area}}}


def test_a_chat_answer_with_calls_is_an_episode_and_graded_as_calls(
    client: Client, openai: OpenAI
) -> None:
    name = client.create_task(fresh(), GRADER, tools=TOOLS).name
    message = openai.chat.completions.create(
        model=name, messages=SAY_HI, tool_choice=NAMED, temperature=0
    ).choices[0].message  # fmt: skip
    assert message.tool_calls
    call = message.tool_calls[0]
    assert call.type == "function"
    area = json.loads(call.function.arguments)["area"]
    completion = message.model_dump(include={"role", "content", "tool_calls"})
    for right, passed in ((area, True), ("attic", False)):
        body = {"task": name, "messages": SAY_HI, "item": turn_off(right)}
        stored = client.add_episode(body | {"completion": completion})
        assert stored.grade is not None
        assert stored.grade.passed is passed
        [kept] = client.episode(stored.id).tool_calls or []
        assert kept["function"] == {"name": "TurnOff", "arguments": {"area": area}}
        assert kept["id"] == call.id


def test_a_call_that_an_episode_tells_as_text_is_read_as_chat_reads_it(client: Client) -> None:
    name = client.create_task(fresh(), GRADER, tools=LAX).name
    text = json.dumps({"name": "TurnOff", "arguments": {"area": "hall"}})
    for completion, passed in ((text, True), (f"Well: {text}", False)):
        stored = client.add_episode(
            {"task": name, "messages": SAY_HI, "completion": completion, "item": turn_off("hall")}
        )
        assert stored.grade is not None
        assert stored.grade.passed is passed
        assert (stored.completion, stored.tool_calls) == (completion, None)
    run = client.validate_grader(GRADER, task=name).dry_run
    assert run is not None
    assert (run.passed, run.failed, run.changed) == (1, 1, 0)


def test_a_grader_of_calls_needs_a_task_with_tools(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        client.create_task(fresh(), {"type": "multi", "graders": {"calls": GRADER}})
    assert (raised.value.status, raised.value.param) == (400, "tools")
    name = client.create_task(fresh(), GRADER, tools=LAX).name
    with pytest.raises(ServiceError):
        client.update_task(name, tools=None)
    assert client.task(name).tools == LAX


def test_a_grader_can_be_tried_on_a_message_with_calls(client: Client) -> None:
    call = {"id": "c", "function": {"name": "TurnOff", "arguments": '{"area": "hall"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert client.run_grader(GRADER, turn_off("hall"), message).passed
    assert not client.run_grader(GRADER, turn_off("attic"), message).passed
