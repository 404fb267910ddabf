"""Tasks over HTTP."""

from __future__ import annotations

import httpx
import pytest

from app.client import Client, ServiceError
from storage import jobs
from tests.app.serving import GRADER, Service, add_expert, episode, fresh

TOOL = {"type": "function", "function": {"name": "turn_on", "parameters": {"type": "object"}}}


def test_a_created_task_can_be_read_and_listed(client: Client) -> None:
    name = fresh()
    created = client.create_task(
        name, GRADER, system_prompt="Be brief.", tools=[TOOL], training={"sigma": 0.1}
    )
    assert created.system_prompt == "Be brief."
    assert created.tools == [TOOL]
    assert created.training == {"sigma": 0.1}
    assert created.base_model == "tiny"
    assert (created.active, created.episodes) == (None, 0)
    assert client.task(name) == created
    assert created in client.tasks()


def test_a_grader_is_stored_with_its_defaults(client: Client) -> None:
    created = client.create_task(fresh(), {"type": "function_call", "syntax": "call"})
    valid = client.validate_grader({"type": "function_call", "syntax": "call"})
    assert (created.grader, created.grader_hash) == (valid.grader, valid.grader_hash)


def test_a_taken_name_is_a_conflict(client: Client, task: str) -> None:
    with pytest.raises(ServiceError) as raised:
        client.create_task(task, GRADER)
    assert raised.value.status == 409


def test_the_base_models_name_is_no_task(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        client.create_task("tiny", GRADER)
    assert (raised.value.status, raised.value.param) == (409, "name")


def test_a_base_model_that_is_not_served_is_unknown(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        client.create_task(fresh(), GRADER, base_model="other-7b")
    assert (raised.value.status, raised.value.code) == (404, "model_not_found")


def test_an_update_changes_what_it_names_and_nothing_else(client: Client, task: str) -> None:
    before = client.task(task)
    after = client.update_task(task, grader=GRADER | {"operation": "ilike"}, tools=[TOOL])
    assert after.grader["operation"] == "ilike"
    assert after.grader_hash != before.grader_hash
    assert after.tools == [TOOL]
    assert after.system_prompt == before.system_prompt
    assert client.update_task(task, tools=None).tools is None


@pytest.mark.parametrize("changes", [{}, {"name": "other"}, {"grader": None}, {"training": 1}])
def test_an_update_that_makes_no_sense_is_refused(
    http: httpx.Client, client: Client, task: str, changes: dict[str, object]
) -> None:
    before = client.task(task)
    assert http.patch(f"/v1/tasks/{task}", json=changes).status_code == 400
    assert client.task(task) == before


def test_a_deleted_task_takes_episodes_and_expert_files_with_it(
    service: Service, client: Client, task: str
) -> None:
    stored = client.add_episode(episode(task))
    expert = add_expert(service.parts, task)
    client.activate(expert.id)
    client.delete_task(task)
    assert expert.id not in service.parts.experts.ids()
    for gone in (
        lambda: client.task(task),
        lambda: client.episode(stored.id),
        lambda: client.expert(expert.id),
        lambda: client.chat(task, [{"role": "user", "content": "hi"}]),
    ):
        with pytest.raises(ServiceError) as raised:
            gone()
        assert raised.value.status == 404


def test_a_task_that_is_being_trained_is_not_deleted(
    service: Service, client: Client, task: str
) -> None:
    with service.parts.database.session() as session:
        job = jobs.create(session, task=task, trainer="fura_s", config={}, seed=0, trigger="api")
        jobs.set_status(session, job.id, jobs.JobStatus.PAUSED)
    with pytest.raises(ServiceError) as raised:
        client.delete_task(task)
    assert (raised.value.status, raised.value.code) == (409, "conflict")
    assert job.id in raised.value.message


def test_rollback_walks_back_to_the_base(service: Service, client: Client, task: str) -> None:
    first, second = (add_expert(service.parts, task, seed) for seed in (1, 2))
    client.activate(first.id)
    client.activate(second.id)
    assert client.task(task).active == f"{task}@2"
    assert client.rollback(task).active == f"{task}@1"
    assert client.rollback(task).active is None
    with pytest.raises(ServiceError) as raised:
        client.rollback(task)
    assert raised.value.status == 409


def test_an_unknown_task_is_404_whatever_is_asked_of_it(client: Client) -> None:
    name = fresh()
    for ask in (
        lambda: client.task(name),
        lambda: client.update_task(name, system_prompt="x"),
        lambda: client.delete_task(name),
        lambda: client.rollback(name),
        lambda: client.experts(name),
        lambda: list(client.episodes(name)),
        lambda: list(client.jobs(name)),
        lambda: client.create_job(name),
    ):
        with pytest.raises(ServiceError) as raised:
            ask()
        assert raised.value.status == 404
        assert name in raised.value.message
