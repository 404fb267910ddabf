"""Episodes over HTTP."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from app.client import Client, ServiceError
from tests.app.serving import episode, fresh


def test_an_episode_comes_back_graded(client: Client, task: str) -> None:
    passed = client.add_episode(episode(task))
    failed = client.add_episode(episode(task, completion="off"))
    errored = client.add_episode(episode(task, item={}))
    assert [e.grade and e.grade.status for e in (passed, failed, errored)] == [
        "passed",
        "failed",
        "errored",
    ]
    assert errored.grade is not None
    assert (errored.grade.score, errored.grade.error_kind) == (None, "item")
    assert client.episode(passed.id) == passed


def test_a_list_comes_back_in_its_order(client: Client, task: str) -> None:
    stored = client.add_episodes([episode(task, n) for n in range(5)])
    assert [e.completion for e in stored] == [f"on {n}" for n in range(5)]
    assert list(client.episodes(task)) == stored


def test_all_fields_come_back(client: Client, task: str) -> None:
    labels = {"group": "g", "model": "tiny", "client_id": "phone", "idempotency_key": "k"}
    stored = client.add_episode(episode(task, **labels))
    assert {name: getattr(stored, name) for name in labels} == labels


def test_pages_hold_everything_once(http: httpx.Client, client: Client, task: str) -> None:
    stored = client.add_episodes([episode(task, n) for n in range(5)])
    seen: list[str] = []
    query: dict[str, Any] = {"task": task, "limit": 2}
    sizes = []
    while True:
        page = http.get("/v1/episodes", params=query).json()
        sizes.append(len(page["data"]))
        seen += [e["id"] for e in page["data"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert sizes == [2, 2, 1]
    assert seen == [e.id for e in stored]


def test_a_repeated_key_stores_nothing_and_answers_the_same(
    http: httpx.Client, client: Client, task: str
) -> None:
    body = episode(task, idempotency_key="once")
    first = http.post("/v1/episodes", json=body)
    second = http.post("/v1/episodes", json=body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert client.task(task).episodes == 1


def test_a_key_with_other_content_is_a_conflict(client: Client, task: str) -> None:
    client.add_episode(episode(task, 0, idempotency_key="once"))
    with pytest.raises(ServiceError) as raised:
        client.add_episode(episode(task, 1, idempotency_key="once"))
    assert (raised.value.status, raised.value.param) == (409, "idempotency_key")


def test_the_same_key_from_many_threads_is_stored_once(client: Client, task: str) -> None:
    ids: list[str] = []
    start = threading.Barrier(8)

    def post() -> None:
        start.wait()
        ids.append(client.add_episode(episode(task, idempotency_key="race")).id)

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert client.task(task).episodes == 1


@pytest.mark.parametrize(
    ("bad", "status", "param"),
    [
        (lambda task: episode(fresh()), 404, "2.task"),
        (lambda task: episode(task, 9, idempotency_key="taken"), 409, "2.idempotency_key"),
        (lambda task: episode(task, item={"x": "\ud800"}), 400, "2"),
        (lambda task: episode(task, messages=[]), 400, "2.messages"),
        (lambda task: episode(task, completion=None), 400, "2.completion"),
    ],
)
def test_one_bad_episode_refuses_the_list_and_is_named(
    http: httpx.Client, client: Client, task: str, bad: Any, status: int, param: str
) -> None:
    client.add_episode(episode(task, idempotency_key="taken"))
    body = json.dumps([episode(task, 1), episode(task, 2), bad(task)])
    json_type = {"Content-Type": "application/json"}
    response = http.post("/v1/episodes", content=body, headers=json_type)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert client.task(task).episodes == 1


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hello", "messages"),
        ([], "messages"),
        ([{"content": "hi"}], "messages.0.role"),
        ([{"role": "robot", "content": "hi"}], "messages.0.role"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content"),
        ([{"role": "user", "content": "hi", "mood": "good"}], "messages.0.mood"),
        ([{"role": "user", "content": "hi", "tool_calls": []}, 7], "messages.1"),
    ],
)
def test_malformed_messages_are_named(client: Client, task: str, messages: Any, param: str) -> None:
    with pytest.raises(ServiceError) as raised:
        client.add_episode(episode(task, messages=messages))
    assert (raised.value.status, raised.value.param) == (400, param)


def test_messages_are_kept_as_templates_take_them(client: Client, task: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "on", "arguments": '{"a": 1}'}}
    stored = client.add_episode(
        episode(
            task,
            messages=[
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "turn on"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "done"},
            ],
        )
    )
    assert stored.messages[0] == {"role": "system", "content": "Be brief."}
    assert stored.messages[1] == {"role": "user", "content": "turn on"}
    assert stored.messages[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("depth", [65, 300, 900, 100_000])
def test_arguments_nested_inside_a_text_are_bounded_as_a_body_is(
    client: Client, task: str, depth: int
) -> None:
    arguments = '{"a":' * depth + "1" + "}" * depth
    call = {"id": "c1", "function": {"name": "on", "arguments": arguments}}
    with pytest.raises(ServiceError) as raised:
        client.add_episode(
            episode(task, messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
        )
    place = "messages.0.tool_calls.0.function.arguments"
    assert (raised.value.status, raised.value.param) == (400, place)
    assert list(client.episodes(task)) == []


def test_an_empty_or_overlong_list_is_refused(client: Client, task: str) -> None:
    for episodes in ([], [episode(task)] * 1001):
        with pytest.raises(ServiceError) as raised:
            client.add_episodes(episodes)
        assert raised.value.status == 400


@pytest.mark.parametrize("query", [{"cursor": "x"}, {"limit": 0}, {"limit": 1001}, {"limit": "a"}])
def test_a_malformed_page_is_refused(http: httpx.Client, query: dict[str, Any]) -> None:
    assert http.get("/v1/episodes", params=query).status_code == 400


def test_a_deleted_episode_is_gone(client: Client, task: str) -> None:
    stored = client.add_episode(episode(task))
    client.delete_episode(stored.id)
    for ask in (client.episode, client.delete_episode):
        with pytest.raises(ServiceError) as raised:
            ask(stored.id)
        assert raised.value.status == 404


def test_a_new_grader_has_not_graded_old_episodes(client: Client, task: str) -> None:
    stored = client.add_episode(episode(task))
    client.update_task(task, grader={"type": "string_check", "operation": "ne"})
    assert stored.grade is not None
    assert client.episode(stored.id).grade is None
