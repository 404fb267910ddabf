"""The gradient trainers over HTTP: chosen by name, run beside the service, outlived by it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.client import Client
from tests.app.serving import GRADER, Service, episode, fresh, serving, settings_of

SMALL = {"iterations": 3, "batch": 4, "max_tokens": 2, "cosine_every": 2}
ENDLESS = {"trainer": "lcsb", "iterations": 100_000, "batch": 2, "max_tokens": 2}


def full_task(client: Client, **fields: Any) -> str:
    """A task with enough episodes for a night."""
    name = client.create_task(fresh(), GRADER, **fields).name
    client.add_episodes([episode(name, n) for n in range(60)])
    return name


def processes(service: Service) -> list[psutil.Process]:
    """The trainers' processes of a service that runs in this process."""
    runs = str(service.parts.settings.runs)
    found = psutil.Process().children(recursive=True)
    return [child for child in found if runs in " ".join(child.cmdline())]


@pytest.mark.parametrize("trainer", ["lcsb", "absignsgd"])
def test_a_job_of_a_gradient_trainer_runs_to_the_gate(client: Client, trainer: str) -> None:
    name = full_task(client, training={"trainer": trainer, "lr": 0.01})
    config = {key: SMALL[key] for key in SMALL if trainer == "lcsb" or key != "cosine_every"}
    job = client.create_job(name, config, seed=1)
    assert (job.trainer, job.config["lr"], job.config["batch"]) == (trainer, 0.01, 4)
    events = list(client.job_events(job.id))
    ended = client.job(job.id)
    assert ended.status in ("succeeded", "rejected")
    assert ended.outcome is not None
    assert ended.outcome["reason"] in ("better", "not_better")
    assert ended.outcome["training"]["iterations"] == 3
    progress = [event.data for event in events if event.type == "progress"]
    assert [data["iteration"] for data in progress] == [1, 2, 3]
    assert all(data["loss"] > 0 for data in progress)
    [version] = client.experts(name)
    assert client.expert(version.id).kind == "spectral"


def test_a_process_that_is_killed_costs_its_job_and_nothing_else(
    service: Service, client: Client
) -> None:
    job = client.create_job(full_task(client), ENDLESS, seed=1)
    next(event for event in client.job_events(job.id) if event.type == "progress")
    for process in processes(service):
        process.send_signal(signal.SIGKILL)
    list(client.job_events(job.id))
    ended = client.job(job.id)
    assert ended.status == "failed"
    assert ended.error is not None
    assert ended.error["message"] == ("the trainer's process was killed: probably out of memory")
    answer = client.chat("tiny", [{"role": "user", "content": "hi"}], max_tokens=4)
    assert answer.usage.completion_tokens > 0


def test_a_service_that_is_stopped_goes_on_where_it_was(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "data", tiny_model)
    with serving(settings) as service:
        client = service.client
        job = client.create_job(full_task(client), ENDLESS, seed=1)
        events = (event for event in client.job_events(job.id) if event.type == "progress")
        seen = [next(events).data["iteration"] for _ in range(3)]
        assert processes(service)
    assert seen == [1, 2, 3]
    assert processes(service) == []
    with serving(settings) as service:
        client = service.client
        again = client.job_events(job.id, after=0)
        types = []
        for event in again:
            types.append(event.type)
            if event.type == "progress" and "interrupted" in types:
                break
        assert event.data["iteration"] > 3
        assert client.cancel_job(job.id).status == "cancelled"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"trainer": "sgd"}, "trainer"),
        ({"trainer": "lcsb", "r": 2}, "r"),
        ({"trainer": "lcsb", "sigma": 0.1}, "sigma"),
        ({"trainer": "absignsgd", "batch": 0}, "batch"),
    ],
)
def test_a_wrong_setting_is_named_in_tasks_and_jobs(
    http: httpx.Client, task: str, settings: dict[str, Any], field: str
) -> None:
    refused = http.post("/v1/training/jobs", json={"task": task, "config": settings})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"config.{field}"
    refused = http.patch(f"/v1/tasks/{task}", json={"training": settings})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == f"training.{field}"
