"""Training jobs over HTTP: queued, watched, paused, resumed, cancelled, while users are served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app.api import training
from app.client import Client, ServiceError
from app.events import parse_events
from tests.app.serving import GRADER, JOB, Service, episode, fresh

ENDLESS = JOB | {"iterations": 100_000, "patience": 100_000}


@pytest.fixture
def full_task(client: Client) -> str:
    """A task with enough episodes for a night."""
    name = client.create_task(fresh(), GRADER).name
    client.add_episodes([episode(name, n) for n in range(60)])
    return name


@pytest.fixture
def running_job(client: Client, full_task: str) -> Iterator[str]:
    """A job that trains until it is cancelled."""
    job = client.create_job(full_task, ENDLESS, seed=1)
    next(event for event in client.job_events(job.id) if event.type == "progress")
    yield job.id
    if client.job(job.id).finished_at is None:
        client.cancel_job(job.id)
    list(client.job_events(job.id))


def test_a_job_runs_to_its_end_and_tells_how_it_ended(client: Client, full_task: str) -> None:
    queued = client.create_job(full_task, JOB, seed=7, trigger="cli")
    assert (queued.seed, queued.trigger, queued.trainer) == (7, "cli", "fura_s")
    assert queued.config["iterations"] == 2
    events = list(client.job_events(queued.id))
    ended = client.job(queued.id)
    assert ended.status in ("succeeded", "rejected")
    assert ended.started_at is not None
    assert ended.finished_at is not None
    assert ended.outcome is not None
    assert {"queued", "running", "progress"} <= {event.type for event in events}
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert ended in list(client.jobs(full_task))


def test_too_few_episodes_are_an_outcome_and_no_failure(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n) for n in range(3)])
    job = client.create_job(task, JOB)
    list(client.job_events(job.id))
    ended = client.job(job.id)
    assert (ended.status, ended.error) == ("rejected", None)
    assert ended.outcome is not None
    assert ended.outcome["reason"] == "too_few_episodes"
    assert client.experts(task) == []


def test_the_tasks_overrides_hold_unless_the_job_has_its_own(client: Client) -> None:
    name = client.create_task(fresh(), GRADER, training={"sigma": 0.2, "lr": 0.3}).name
    job = client.create_job(name, {"lr": 0.4})
    assert (job.config["sigma"], job.config["lr"]) == (0.2, 0.4)
    list(client.job_events(job.id))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"config": {"sigma": -1}}, "config.sigma"),
        ({"config": {"colour": 1}}, "config.colour"),
        ({"config": {"population": 3}}, "config"),
        ({"config": 5}, "config"),
        ({"seed": -1}, "seed"),
        ({"trigger": "night"}, "trigger"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_bad_job_is_refused_by_name_and_not_queued(
    http: httpx.Client, client: Client, task: str, body: dict[str, Any], param: str
) -> None:
    response = http.post("/v1/training/jobs", json={"task": task} | body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert list(client.jobs(task)) == []


def test_events_are_replayed_from_the_last_one_seen(
    http: httpx.Client, client: Client, task: str
) -> None:
    job = client.create_job(task, JOB)
    events = list(client.job_events(job.id))
    assert list(client.job_events(job.id, after=2)) == events[2:]
    response = http.get(
        f"/v1/training/jobs/{job.id}/events", headers={"Last-Event-ID": str(events[-1].seq)}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    [end] = parse_events(response.text.splitlines())
    assert (end.type, end.id) == ("end", None)
    assert client.job(job.id).model_dump_json() == end.data


@pytest.mark.parametrize("last", ["x", "-1", "1.5"])
def test_a_malformed_last_event_id_is_400(
    http: httpx.Client, client: Client, task: str, last: str
) -> None:
    job = client.create_job(task, JOB)
    response = http.get(f"/v1/training/jobs/{job.id}/events", headers={"Last-Event-ID": last})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "last-event-id"


def test_a_paused_job_stands_still_until_it_is_resumed(client: Client, running_job: str) -> None:
    assert client.pause_job(running_job).status == "paused"
    seen = _until(client, running_job, "paused")
    assert client.job(running_job).status == "paused"
    assert client.resume_job(running_job).status == "queued"
    following = client.job_events(running_job, after=seen[-1].seq)
    again = next(event for event in following if event.type == "progress")
    before = [event for event in seen if event.type == "progress"]
    # The iteration that was being reported when the pause came is stored, but has no event.
    assert again.data["iteration"] - before[-1].data["iteration"] in (1, 2)


def test_cancelling_ends_a_running_job_and_its_stream(client: Client, running_job: str) -> None:
    types: list[str] = []
    follower = threading.Thread(
        target=lambda: types.extend(event.type for event in client.job_events(running_job))
    )
    follower.start()
    assert client.cancel_job(running_job).status == "cancelled"
    follower.join()
    assert types[-1] == "cancelled"
    for ask in (client.cancel_job, client.pause_job, client.resume_job):
        with pytest.raises(ServiceError) as raised:
            ask(running_job)
        assert (raised.value.status, raised.value.code) == (409, "conflict")


def test_a_quiet_stream_is_kept_alive(
    http: httpx.Client, client: Client, running_job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "KEEP_ALIVE_S", 0.0)
    client.pause_job(running_job)
    seen = _until(client, running_job, "paused")
    last = {"Last-Event-ID": str(seen[-1].seq)}
    with http.stream("GET", f"/v1/training/jobs/{running_job}/events", headers=last) as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(6)] == [": keep-alive", ""] * 3


def test_users_are_answered_while_a_job_runs(
    service: Service, client: Client, running_job: str
) -> None:
    answer = client.chat("tiny", [{"role": "user", "content": "hi"}], max_tokens=8)
    assert answer.usage.completion_tokens > 0
    assert client.job(running_job).status == "running"


def test_jobs_are_paged_newest_first(http: httpx.Client, client: Client, task: str) -> None:
    ids = [client.create_job(task, JOB).id for _ in range(3)]
    first = http.get("/v1/training/jobs", params={"task": task, "limit": 2}).json()
    assert [job["id"] for job in first["data"]] == [ids[2], ids[1]]
    assert [job.id for job in client.jobs(task)] == ids[::-1]
    for id in ids:
        list(client.job_events(id))


def test_an_unknown_job_is_404_whatever_is_asked_of_it(client: Client) -> None:
    for ask in (
        client.job,
        client.cancel_job,
        client.pause_job,
        client.resume_job,
        lambda id: list(client.job_events(id)),
    ):
        with pytest.raises(ServiceError) as raised:
            ask("job_000000000000000000000000")
        assert raised.value.status == 404


def _until(client: Client, job_id: str, type: str) -> list[Any]:
    """The job's events up to the first of that type."""
    seen = []
    for event in client.job_events(job_id):
        seen.append(event)
        if event.type == type:
            return seen
    raise AssertionError(f"the job ended without an event {type}")
