"""Experts over HTTP."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load

from app.client import Client, ServiceError
from storage import versions
from tests.app.serving import Service, add_expert, fresh


def test_versions_are_listed_by_task(service: Service, client: Client, task: str) -> None:
    added = [add_expert(service.parts, task, seed) for seed in (1, 2)]
    listed = client.experts(task)
    assert [(e.id, e.name, e.state) for e in listed] == [
        (added[0].id, f"{task}@1", "candidate"),
        (added[1].id, f"{task}@2", "candidate"),
    ]
    assert set(listed) == {e for e in client.experts() if e.task == task}
    assert client.expert(added[0].id).manifest["seed"] == 1


def test_activating_one_retires_the_other(service: Service, client: Client, task: str) -> None:
    first, second = (add_expert(service.parts, task, seed) for seed in (1, 2))
    client.activate(first.id)
    assert client.activate(second.id).state == "active"
    assert [e.state for e in client.experts(task)] == ["retired", "active"]
    assert client.task(task).active == f"{task}@2"


@pytest.mark.parametrize(
    ("foreign", "what"), [({"base_hash": "f" * 64}, "base model"), ({"basis_hash": "f"}, "basis")]
)
def test_a_foreign_expert_neither_activates_nor_answers(
    service: Service, client: Client, task: str, foreign: dict[str, str], what: str
) -> None:
    expert = add_expert(service.parts, task, **foreign)
    for ask in (
        lambda: client.activate(expert.id),
        lambda: client.chat(f"{task}@1", [{"role": "user", "content": "hi"}]),
    ):
        with pytest.raises(ServiceError) as raised:
            ask()
        assert (raised.value.status, raised.value.code) == (409, "foreign_expert")
        assert what in raised.value.message
    assert client.task(task).active is None


def test_a_damaged_file_is_refused_and_the_service_goes_on(
    service: Service, client: Client, task: str
) -> None:
    expert = add_expert(service.parts, task)
    file = service.parts.settings.experts / expert.id / "expert.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    for ask in (lambda: client.activate(expert.id), lambda: client.download(expert.id)):
        with pytest.raises(ServiceError) as raised:
            ask()
        assert (raised.value.status, raised.value.code) == (409, "corrupt")
    with pytest.raises(ServiceError) as raised:
        client.chat(f"{task}@1", [{"role": "user", "content": "hi"}], max_tokens=2)
    assert raised.value.status == 500
    assert "could not be loaded" in raised.value.message
    assert str(service.parts.settings.data_dir) not in raised.value.message
    assert client.chat("tiny", [{"role": "user", "content": "hi"}], max_tokens=2).choices


def test_a_deleted_expert_is_gone_with_its_files(
    service: Service, client: Client, task: str
) -> None:
    expert = add_expert(service.parts, task)
    client.delete_expert(expert.id)
    assert expert.id not in service.parts.experts.ids()
    with pytest.raises(ServiceError) as raised:
        client.expert(expert.id)
    assert raised.value.status == 404


def test_an_expert_without_files_can_still_be_deleted(
    service: Service, client: Client, task: str
) -> None:
    expert = add_expert(service.parts, task)
    service.parts.experts.delete(expert.id)
    assert client.delete_expert(expert.id).deleted
    assert client.experts(task) == []


def test_the_active_expert_is_not_deleted(service: Service, client: Client, task: str) -> None:
    expert = add_expert(service.parts, task)
    client.activate(expert.id)
    with pytest.raises(ServiceError) as raised:
        client.delete_expert(expert.id)
    assert raised.value.status == 409
    assert expert.id in service.parts.experts.ids()


def test_a_rejected_expert_is_not_activated(service: Service, client: Client, task: str) -> None:
    expert = add_expert(service.parts, task)
    with service.parts.database.session() as session:
        versions.reject(session, expert.id)
    with pytest.raises(ServiceError) as raised:
        client.activate(expert.id)
    assert (raised.value.status, raised.value.code) == (409, "conflict")


def test_downloads_are_the_stored_files(service: Service, client: Client, task: str) -> None:
    expert = add_expert(service.parts, task)
    stored = service.parts.experts.load(expert.id)
    tensors = load(client.download(expert.id))
    assert tensors.keys() == stored.tensors.keys()
    assert all(np.array_equal(tensors[name], stored.tensors[name]) for name in tensors)
    manifest = json.loads(client.download(expert.id, "manifest.json"))
    assert manifest == client.expert(expert.id).manifest
    with pytest.raises(ServiceError) as raised:
        client.download(expert.id, "../../token")
    assert raised.value.status == 400


def test_an_unknown_expert_is_404_whatever_is_asked_of_it(client: Client) -> None:
    for id in ("0" * 64, fresh(), "..%2f..%2ftoken"):
        for ask in (client.expert, client.activate, client.delete_expert, client.download):
            with pytest.raises(ServiceError) as raised:
                ask(id)
            assert raised.value.status == 404
