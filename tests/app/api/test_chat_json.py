"""Answers that have to be JSON: a request's schema, a task's, and what cannot be kept to."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from app.client import Client, ServiceError
from tests.app.serving import GRADER, fresh

SAY_HI: list[Any] = [{"role": "user", "content": "turn on the light"}]
MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


class Level(BaseModel):
    """A part, so that the schema refers to itself."""

    unit: Literal["percent", "degrees"]
    high: bool


class Light(BaseModel):
    """What the model has to answer with."""

    area: Literal["kitchen", "hall"]
    level: Level | None
    on: bool


def json_schema(schema: dict[str, Any]) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}


def test_a_pydantic_model_is_answered_whole_and_streamed(openai: OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": SAY_HI, "response_format": Light}
    parsed = openai.chat.completions.parse(**asked).choices[0]
    assert parsed.finish_reason == "stop"
    assert isinstance(parsed.message.parsed, Light)
    with openai.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.parsed == parsed.message.parsed


def test_every_choice_fits_the_schema(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, response_format=json_schema(MOOD), n=4, temperature=2, seed=1
    )
    said = [json.loads(choice.message.content or "") for choice in answer.choices]
    assert all(one in ({"mood": "good"}, {"mood": "bad"}) for one in said)


def test_an_object_is_an_object_or_says_that_it_was_cut_off(openai: OpenAI) -> None:
    [choice] = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, response_format={"type": "json_object"}, max_tokens=40
    ).choices
    text = choice.message.content or ""
    assert text.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(text), dict)
    else:
        assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    "cut", [{"max_tokens": 4}, {"stop": "mood"}], ids=["by the limit", "by a stop string"]
)
def test_what_was_cut_off_is_not_claimed_to_fit(openai: OpenAI, cut: dict[str, Any]) -> None:
    [choice] = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, response_format=json_schema(MOOD), **cut
    ).choices
    assert choice.finish_reason == ("length" if "max_tokens" in cut else "stop")
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice.message.content or "")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, "not"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "https://example.org/schema"}, "example.org"),
        ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_kept_to_is_refused_and_says_why(
    openai: OpenAI, schema: dict[str, Any], said: str, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as raised:
        openai.chat.completions.create(
            model="tiny", messages=SAY_HI, response_format=json_schema(schema), stream=stream
        )
    assert raised.value.code == "invalid_schema"
    assert raised.value.param == "response_format.json_schema.schema"
    assert said in raised.value.message


def test_a_tasks_schema_holds_unless_the_request_has_another_form(client: Client) -> None:
    name = client.create_task(fresh(), GRADER, response_schema=MOOD).name

    def ask(**options: Any) -> str:
        return client.chat(name, SAY_HI, max_tokens=24, **options).choices[0].message.content or ""

    free = client.chat("tiny", SAY_HI, max_tokens=24).choices[0].message.content
    own = json_schema({"const": "own"})
    assert json.loads(ask())["mood"] in ("good", "bad")
    assert ask(response_format={"type": "text"}) == free
    assert ask(response_format=own) == '"own"'
    assert client.update_task(name, response_schema=None).response_schema is None
    assert ask() == free


def test_a_task_with_a_schema_that_cannot_be_kept_to_is_refused(client: Client, task: str) -> None:
    broken = {"properties": {"a": {"not": {}}}}
    for change in (
        lambda: client.create_task(fresh(), GRADER, response_schema=broken),
        lambda: client.update_task(task, response_schema=broken),
    ):
        with pytest.raises(ServiceError) as raised:
            change()
        assert (raised.value.status, raised.value.param) == (400, "response_schema")
    assert client.task(task).response_schema is None
