"""The names a chat request can ask for."""

from __future__ import annotations

import httpx
import pytest
from openai import NotFoundError, OpenAI

from app.client import Client, ServiceError
from storage import tasks
from tests.app.serving import Service, add_expert


def test_names_stand_on_each_other(service: Service, client: Client, task: str) -> None:
    first = add_expert(service.parts, task, 1)
    add_expert(service.parts, task, 2, parent=first.id)
    before = {model.id: model for model in client.models()}
    client.activate(first.id)
    after = {model.id: model for model in client.models()}
    assert (after["tiny"].parent, after["tiny"].root) == (None, "tiny")
    assert (before[task].parent, after[task].parent) == ("tiny", f"{task}@1")
    assert after[f"{task}@1"].parent == "tiny"
    assert after[f"{task}@2"].parent == f"{task}@1"
    assert {after[name].root for name in (task, f"{task}@1", f"{task}@2")} == {"tiny"}


def test_a_foreign_expert_is_not_listed(service: Service, client: Client, task: str) -> None:
    add_expert(service.parts, task, base_hash="f" * 64)
    assert f"{task}@1" not in {model.id for model in client.models()}


def test_a_task_of_another_base_model_answers_once_it_is_moved(
    service: Service, client: Client, task: str
) -> None:
    hi = [{"role": "user", "content": "hi"}]
    with service.parts.database.session() as session:
        tasks.update(session, task, {"base_model": "other"})
    assert task not in {model.id for model in client.models()}
    with pytest.raises(ServiceError) as raised:
        client.chat(task, hi)
    assert (raised.value.status, raised.value.code) == (409, "foreign_task")
    with pytest.raises(ServiceError) as raised:
        client.update_task(task, base_model="other")
    assert raised.value.param == "base_model"
    client.update_task(task, base_model="tiny")
    assert task in {model.id for model in client.models()}
    assert client.chat(task, hi, max_tokens=2).model == "tiny"


def test_openai_client_reads_the_list_and_one_model(service: Service, task: str) -> None:
    with OpenAI(base_url=f"{service.url}/v1", api_key=service.parts.token) as openai:
        listed = {model.id: model for model in openai.models.list()}
        assert listed[task] == openai.models.retrieve(task)
        assert listed[task].owned_by == "nightowl"
        with pytest.raises(NotFoundError) as raised:
            openai.models.retrieve("nothing")
        assert raised.value.code == "model_not_found"


@pytest.mark.parametrize("name", ["nothing", "tiny@1", "@1", "a@0", "a@01", "a@b", "..", "a%2Fb"])
def test_an_unknown_name_is_404(http: httpx.Client, name: str) -> None:
    response = http.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
