"""Chat completions: OpenAI's shapes, who answers, what is refused, clients that go away."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from app.client import Client, ServiceError
from app.engine.sampling import Sampling
from app.night.data import conversation
from tests.app.serving import GRADER, Service, add_expert, fresh, until

SAY_HI = [{"role": "user", "content": "turn on the light"}]


def greedy(service: Service, prompt: list[dict[str, Any]], expert: str | None = None) -> str:
    """What the engine itself answers."""
    engine = service.parts.engine
    return engine.submit(engine.encode(prompt), Sampling(max_tokens=12), expert).result().text


def test_an_answer_has_openais_shape(openai: OpenAI, service: Service) -> None:
    answer = openai.chat.completions.create(model="tiny", messages=SAY_HI, max_tokens=12)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "tiny"
    [choice] = answer.choices
    assert (choice.index, choice.message.role, choice.logprobs) == (0, "assistant", None)
    assert choice.message.content == greedy(service, SAY_HI)
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == len(service.parts.engine.encode(SAY_HI))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_stream_says_the_same_as_a_whole_answer(openai: OpenAI) -> None:
    whole = openai.chat.completions.create(model="tiny", messages=SAY_HI, max_tokens=12)
    chunks = list(
        openai.chat.completions.create(
            model="tiny",
            messages=SAY_HI,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)
    assert [c.usage for c in chunks[:-1]] == [None] * (len(chunks) - 1)


def test_a_stream_without_options_carries_no_usage_and_ends_with_done(
    http: httpx.Client,
) -> None:
    body = {"model": "tiny", "messages": SAY_HI, "max_tokens": 3, "stream": True}
    response = http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)


def test_a_stop_string_ends_the_answer_and_is_not_in_it(openai: OpenAI) -> None:
    whole = openai.chat.completions.create(model="tiny", messages=SAY_HI, max_tokens=12)
    text = whole.choices[0].message.content or ""
    stop = text[4:7]
    cut = openai.chat.completions.create(
        model="tiny", messages=SAY_HI, max_tokens=12, stop=stop
    ).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.message.content == text[: text.index(stop)]


def test_a_seed_fixes_a_sampled_answer(client: Client) -> None:
    options = {"temperature": 1.5, "max_tokens": 12}
    same = {client.chat("tiny", SAY_HI, seed=7, **options).choices[0].message.content} | {
        client.chat("tiny", SAY_HI, seed=7, **options).choices[0].message.content
    }
    other = client.chat("tiny", SAY_HI, seed=-8, **options).choices[0].message.content
    assert len(same) == 1
    assert other not in same


def test_the_active_expert_answers_for_its_task(
    service: Service, client: Client, task: str
) -> None:
    def ask(model: str) -> tuple[str, str]:
        answer = client.chat(model, SAY_HI, max_tokens=12)
        return answer.model, answer.choices[0].message.content

    prompt = conversation(SAY_HI, "Answer briefly.")
    first, second = (add_expert(service.parts, task, seed) for seed in (1, 2))
    base = greedy(service, prompt)
    answers = [greedy(service, prompt, version.id) for version in (first, second)]
    assert len({base, *answers}) == 3
    assert ask(task) == ("tiny", base)
    client.activate(first.id)
    assert ask(task) == (f"{task}@1", answers[0])
    client.activate(second.id)
    assert ask(task) == (f"{task}@2", answers[1])
    assert ask(f"{task}@1") == (f"{task}@1", answers[0])
    client.rollback(task)
    assert ask(task) == (f"{task}@1", answers[0])


def test_experts_answer_at_the_same_time_without_mixing(
    service: Service, client: Client, task: str
) -> None:
    versions = [add_expert(service.parts, task, seed) for seed in range(4)]
    prompt = conversation(SAY_HI, "Answer briefly.")
    alone = {f"{task}@{v.number}": greedy(service, prompt, v.id) for v in versions}
    answers: list[tuple[str, str]] = []

    def ask(model: str) -> None:
        text = client.chat(model, SAY_HI, max_tokens=12).choices[0].message.content
        answers.append((model, text))

    threads = [threading.Thread(target=ask, args=(name,)) for name in list(alone) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(list(alone.items()) * 3)


def test_a_system_message_of_the_request_replaces_the_tasks(
    service: Service, client: Client, task: str
) -> None:
    for role in ("system", "developer"):
        own = [{"role": role, "content": "Sing."}, *SAY_HI]
        answer = client.chat(task, own, max_tokens=12)
        system = [{"role": "system", "content": "Sing."}, *SAY_HI]
        assert answer.choices[0].message.content == greedy(service, system)
        assert answer.usage.prompt_tokens == len(service.parts.engine.encode(system))


@pytest.mark.parametrize("model", ["gpt-4o", "tiny@1", "Tiny", "", "a@0", "../tiny", "x" * 129])
def test_an_unknown_model_is_an_error_and_never_the_base(client: Client, model: str) -> None:
    with pytest.raises(ServiceError) as raised:
        client.chat(model, SAY_HI)
    assert raised.value.status == (400 if len(model) in (0, 129) else 404)
    assert raised.value.param == "model"


def test_an_unknown_version_is_404(openai: OpenAI, task: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        openai.chat.completions.create(model=f"{task}@7", messages=SAY_HI)
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"5": 1}),
        ("n", 0),
        ("n", 9),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}),
        ("tool_choice", "required"),
        ("tool_choice", "sometimes"),
        ("tool_choice", {"type": "function", "function": {"name": "nobody"}}),
        ("tools", [{"type": "function", "function": {"name": "a b"}}]),
        ("tools", [{"type": "function", "function": {"name": "twice"}}] * 2),
        ("parallel_tool_calls", "maybe"),
        ("functions", []),
        ("modalities", ["audio"]),
        ("temperature", 3),
        ("temperature", "hot"),
        ("top_p", 0),
        ("max_tokens", 0),
        ("max_tokens", 2.5),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ""),
        ("seed", 2**63),
        ("messages", []),
        ("stream", "maybe"),
        ("stream", "true"),
        ("stream", 1),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("temperature", "0.5"),
        ("temperature", False),
        ("seed", "7"),
        ("n", 1.0),
        ("logprobs", "false"),
        ("frequency_penalty", False),
        ("metadata", {"a": "b"}),
        ("modalities", []),
        ("service_tier", "priority"),
        ("reasoning_effort", "low"),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "tool", "content": "done"}]),
        ("messages", [{"role": "tool", "content": "done", "tool_call_id": "nobodys"}]),
        ("messages", [{"role": "user", "content": "hi", "tool_call_id": "c"}]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    http: httpx.Client, field: str, value: Any
) -> None:
    body = {"model": "tiny", "messages": SAY_HI} | {field: value}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].split(".")[0] == field
    assert field in error["message"]


def test_values_that_change_nothing_are_taken(openai: OpenAI) -> None:
    answer = openai.chat.completions.create(
        model="tiny",
        messages=SAY_HI,
        max_completion_tokens=2,
        n=1,
        logprobs=False,
        frequency_penalty=0,
        presence_penalty=0.0,
        store=False,
        response_format={"type": "text"},
        tool_choice="auto",
        parallel_tool_calls=True,
        top_p=1,
        extra_body={"top_k": 1_000_000, "min_p": 0},
        stop=None,
        user="someone",
        safety_identifier="someone",
        prompt_cache_key="home",
        logit_bias={},
        metadata={},
        modalities=["text"],
        service_tier="auto",
        prediction=None,
        tools=[{"type": "function", "function": {"name": "now", "parameters": None}}],  # type: ignore[typeddict-item]
    )
    assert answer.choices[0].message.content is not None


def test_limits_that_contradict_each_other_are_refused(client: Client) -> None:
    for param, options in {
        "max_tokens": {"max_tokens": 1, "max_completion_tokens": 1},
        "stream_options": {"stream_options": {"include_usage": True}},
        "top_logprobs": {"top_logprobs": 2},
    }.items():
        with pytest.raises(ServiceError) as raised:
            client.chat("tiny", SAY_HI, **options)
        assert (raised.value.status, raised.value.param) == (400, param)


def test_a_tools_message_answers_a_call_made_before_it(http: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
    for messages, param in (
        ([*SAY_HI, asked, result], None),
        ([*SAY_HI, result, asked], "messages.1.tool_call_id"),
        ([*SAY_HI, asked, result | {"tool_call_id": "c2"}], "messages.2.tool_call_id"),
        ([*SAY_HI, asked, {"role": "tool", "content": "noon"}], "messages.2.tool_call_id"),
    ):
        body = {"model": "tiny", "messages": messages, "max_tokens": 1}
        response = http.post("/v1/chat/completions", json=body)
        assert response.status_code == (200 if param is None else 400)
        assert param is None or response.json()["error"]["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_400_with_the_numbers(
    service: Service, openai: OpenAI, stream: bool
) -> None:
    for text, limit in (("word " * 1000, None), ("hi", 5000)):
        with pytest.raises(BadRequestError) as raised:
            openai.chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": text}],
                max_tokens=limit,
                stream=stream,
            )
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")
        prompt = len(service.parts.engine.encode([{"role": "user", "content": text}]))
        for number in (prompt, limit or 1, service.parts.engine.max_context):
            assert str(number) in raised.value.message


def test_without_a_limit_the_answer_ends_inside_the_context(
    service: Service, client: Client
) -> None:
    limit = service.parts.engine.max_context
    words = 1
    while len(service.parts.engine.encode(asking(words + 1))) < limit - 20:
        words += 1
    answer = client.chat("tiny", asking(words))
    assert answer.usage.total_tokens <= limit


def asking(words: int) -> list[dict[str, Any]]:
    """A long message."""
    return [{"role": "user", "content": "turn on the light in the kitchen " * words}]


def test_messages_the_template_refuses_are_400(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        client.chat("tiny", [{"role": "user", "content": "refuse me"}])
    assert (raised.value.status, raised.value.param) == (400, "messages")


def test_a_damaged_expert_ends_a_stream_with_an_error(
    service: Service, client: Client, openai: OpenAI, task: str
) -> None:
    expert = add_expert(service.parts, task)
    service.parts.experts.delete(expert.id)
    with pytest.raises(ServiceError) as raised:
        list(client.chat_stream(f"{task}@1", SAY_HI))
    assert "could not be loaded" in raised.value.message


def rows(service: Service) -> int:
    health = service.parts.engine.health()
    return int(health["active_rows"]) + int(health["waiting_rows"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_takes_its_rows_with_it(service: Service, stream: bool) -> None:
    asked = {"model": "tiny", "messages": SAY_HI, "max_tokens": 4000, "stream": stream, "n": 3}
    body = json.dumps(asked)
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {service.parts.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )
    until(lambda: rows(service) == 0)
    before = service.parts.engine.health()["tokens_generated"]
    port = int(service.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(request.encode())
        until(lambda: rows(service) == 3)
    until(lambda: rows(service) == 0)
    assert service.parts.engine.health()["tokens_generated"] < before + 12_000


def test_tools_are_shown_to_the_model_unless_the_request_wants_none(
    service: Service, client: Client
) -> None:
    def prompt_tokens(model: str, **options: Any) -> int:
        return client.chat(model, SAY_HI, max_tokens=1, **options).usage.prompt_tokens

    tasks_tool, other_tool = (
        {"type": "function", "function": {"name": name, "parameters": {}}}
        for name in ("turn_on", "say_something_else")
    )
    name = client.create_task(fresh(), GRADER, tools=[tasks_tool]).name
    encode = service.parts.engine.encode
    bare, own, other = (len(encode(SAY_HI, tools)) for tools in (None, [tasks_tool], [other_tool]))
    assert len({bare, own, other}) == 3
    assert prompt_tokens(name) == own
    assert prompt_tokens(name, tools=[other_tool]) == other
    assert prompt_tokens("tiny", tools=[tasks_tool]) == own
    assert prompt_tokens(name, tool_choice="none") == bare
