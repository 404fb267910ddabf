"""Start and stop of the service: what it refuses, what survives a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from app.client import Client, ServiceUnreachable
from app.engine.models import ModelError
from app.main import PortInUse, listen, running, url_of
from storage import jobs
from storage.db import Database
from storage.errors import Corrupt, FolderLocked
from storage.tables import JobStatus
from tests.app.serving import (
    GRADER,
    JOB,
    Service,
    add_expert,
    episode,
    serving,
    settings_of,
    until,
)

ENDLESS = JOB | {"iterations": 100_000, "patience": 100_000}
HI = [{"role": "user", "content": "hi"}]

SERVE = """
import sys
from pathlib import Path
from app.main import serve
from tests.app.serving import settings_of
serve(
    settings_of(Path(sys.argv[1]), Path(sys.argv[2]), port=0),
    ready=lambda url: print(url, flush=True),
)
"""


def start_job(client: Client) -> str:
    """A job that trains until it is stopped, and has begun to."""
    client.create_task("home", GRADER)
    client.add_episodes([episode("home", n) for n in range(60)])
    job = client.create_job("home", ENDLESS, seed=1)
    next(event for event in client.job_events(job.id) if event.type == "progress")
    return job.id


def status_of(database: Path, job_id: str) -> JobStatus:
    opened = Database(database)
    with opened.reading() as session:
        status = jobs.get(session, job_id).status
    opened.close()
    return status


def test_importing_the_service_sets_the_platform_up_before_mlx() -> None:
    program = "import app.main; from app.engine import platform; print(platform.STATUS.notes)"
    notes = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "imported before" not in notes


def test_everything_is_still_there_after_a_restart(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, tiny_model)
    with serving(settings) as first:
        token = first.parts.token
        first.client.create_task("home", GRADER)
        stored = first.client.add_episode(episode("home"))
        expert = add_expert(first.parts, "home")
        first.client.activate(expert.id)
        answer = first.client.chat("home", HI, max_tokens=8)
    with serving(settings) as second:
        assert second.parts.token == token
        assert second.client.episode(stored.id) == stored
        again = second.client.chat("home", HI, max_tokens=8)
        assert (again.model, again.choices) == ("home@1", answer.choices)


def test_a_running_job_is_interrupted_by_a_stop_and_goes_on_after_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, tiny_model)
    with serving(settings) as first:
        job_id = start_job(first.client)
    assert status_of(settings.db, job_id) is JobStatus.INTERRUPTED
    with serving(settings) as second:
        events = []
        for event in second.client.job_events(job_id):
            events.append(event)
            if event.type == "progress" and "interrupted" in [e.type for e in events[:-1]]:
                break
        second.client.cancel_job(job_id)
    iterations = [event.data["iteration"] for event in events if event.type == "progress"]
    assert iterations == list(range(iterations[0], iterations[0] + len(iterations)))


def test_sigterm_stops_the_process_in_order(tiny_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path / "data"), str(tiny_model)]
    settings = settings_of(tmp_path / "data", tiny_model)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with Client.of(settings, url) as client:
            job_id = start_job(client)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert status_of(settings.db, job_id) is JobStatus.INTERRUPTED


def test_the_grading_processes_end_with_the_service(tiny_model: Path, tmp_path: Path) -> None:
    with serving(settings_of(tmp_path, tiny_model)) as service:
        assert service.client.run_grader(GRADER, {"answer": "a"}, "a").passed
        supervisor = psutil.Process(service.parts.graders._supervisor._process.pid)
        running = [supervisor, *supervisor.children(recursive=True)]
    assert len(running) >= 3
    _, alive = psutil.wait_procs(running, timeout=60)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive)  # of nobody's, or gone


def test_open_event_streams_end_when_the_service_stops(tiny_model: Path, tmp_path: Path) -> None:
    failures: list[Exception] = []

    def follow(service: Service, job_id: str, started: threading.Event) -> None:
        try:
            for _ in service.client.job_events(job_id):
                started.set()
        except ServiceUnreachable as error:
            failures.append(error)

    with serving(settings_of(tmp_path, tiny_model)) as service:
        job_id = start_job(service.client)
        service.client.pause_job(job_id)
        started = threading.Event()
        follower = threading.Thread(target=follow, args=(service, job_id, started))
        follower.start()
        started.wait()
        service.server.should_exit = True
        follower.join()
    assert len(failures) == 1


def test_an_answer_under_way_is_finished_before_the_service_stops(
    tiny_model: Path, tmp_path: Path
) -> None:
    lengths: list[int] = []

    def ask(client: Client) -> None:
        lengths.append(client.chat("tiny", HI, max_tokens=200).usage.completion_tokens)

    with serving(settings_of(tmp_path, tiny_model)) as service:
        asker = threading.Thread(target=ask, args=(service.client,))
        asker.start()
        until(lambda: service.parts.engine.health()["active_rows"] > 0)
        service.server.should_exit = True
        asker.join()
    assert lengths == [200]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_ends_with_an_error_when_the_service_stops(
    tiny_model: Path, tmp_path: Path, stream: bool
) -> None:
    answers: list[httpx.Response] = []
    body = {"model": "tiny", "messages": HI, "max_tokens": 4000, "stream": stream}

    def ask(service: Service) -> None:
        url = f"{service.url}/v1/chat/completions"
        token = {"Authorization": f"Bearer {service.parts.token}"}
        answers.append(httpx.post(url, json=body, headers=token, timeout=None))

    with serving(settings_of(tmp_path, tiny_model), drain_s=0.0) as service:
        asker = threading.Thread(target=ask, args=(service,))
        asker.start()
        until(lambda: service.parts.engine.health()["active_rows"] > 0)
        service.server.should_exit = True
        asker.join()
    [answer] = answers
    last = answer.text.split("\n\n")[-2].removeprefix("data: ") if stream else answer.text
    error = json.loads(last)["error"]
    assert (error["message"], error["code"]) == ("the service is shutting down", "stopping")
    assert answer.status_code == (200 if stream else 503)


def test_a_second_service_on_the_same_folder_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, tiny_model)
    with (
        running(settings),
        pytest.raises(FolderLocked, match="another nightowl"),
        running(settings),
    ):
        pass


def test_a_start_that_fails_leaves_the_folder_free(tiny_model: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(ModelError, match="no model named"),
        running(settings_of(tmp_path, tmp_path / "missing")),
    ):
        pass
    with running(settings_of(tmp_path, tiny_model)) as parts:
        assert parts.engine.health()["status"] == "ok"


def test_a_file_that_is_no_database_is_named(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "nightowl.db").write_bytes(b"not a database, but long enough" * 100)
    with pytest.raises(Corrupt, match="damaged"), running(settings_of(tmp_path, tiny_model)):
        pass


def test_a_damaged_expert_does_not_keep_the_service_from_starting(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, tiny_model)
    with serving(settings) as first:
        first.client.create_task("home", GRADER)
        good, bad = (add_expert(first.parts, "home", seed) for seed in (1, 2))
    os.truncate(settings.experts / bad.id / "expert.safetensors", 100)
    with serving(settings) as second:
        assert second.parts.experts.ids() == [good.id]
        assert second.client.chat("home@1", HI, max_tokens=2).model == "home@1"
        assert len(list((settings.experts / "quarantine").iterdir())) == 1


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)


def test_the_address_of_a_listener_can_be_opened() -> None:
    with listen("127.0.0.1", 0) as four:
        assert url_of(four) == f"http://127.0.0.1:{four.getsockname()[1]}"
