"""Nights of the gradient trainers: a process of its own that is stopped, killed, and goes on."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from app.night import process
from app.night.configs import LcsbSettings
from app.night.context import NightError, open_night
from app.night.data import Prompt
from app.night.gradient import Gradient
from app.night.jobs import JobRunner
from app.night.plan import make_plan
from app.night.run import run_job
from storage.errors import NoSpace
from storage.tables import JobStatus
from tests.app.night import nights
from tests.app.night.nights import COUNT, Watch, job_of

ROOT = Path(__file__).parents[3]
TRAINERS = ("lcsb", "absignsgd")


class Scene:
    """A house with a running runner; `acts` are called when so many iterations were reported."""

    def __init__(self, data, engine):
        self.watch, self.acts = Watch(), {}
        self._open = nights.house_in(data, engine, self.notify)

    def notify(self, job_id):
        """Called from the thread that stored something."""
        done = job_of(self.house, job_id).progress.get("iteration", 0)
        if done in self.acts:
            self.acts.pop(done)(job_id)
        self.watch(job_id)

    def __enter__(self):
        house = self.house = self._open.__enter__()
        self.runner = JobRunner(
            house.database, house.store, house.engine, house.graders, house.settings, self.notify
        )
        return self

    def __exit__(self, *failure):
        self.runner.stop()
        self._open.__exit__(*failure)

    def begun(self, trainer):
        """The id of a job of the house's task, running."""
        job_id = nights.add_job(nights.ready(self.house), JobStatus.QUEUED, trainer)
        self.runner.start()
        return job_id

    def ended(self, job_id):
        self.watch.until_final(self.house, job_id)
        return job_of(self.house, job_id)

    def progress(self, job_id):
        return [data for type, data in nights.events_of(self.house, job_id) if type == "progress"]


def children(data):
    """The trainers' processes that work on a data folder."""
    found = []
    for running in psutil.process_iter():
        try:
            if str(data / "runs") in " ".join(running.cmdline()):
                found.append(running)
        except psutil.Error:  # it has ended, or is being started
            continue
    return found


@pytest.fixture(scope="module", params=TRAINERS)
def undisturbed(request, tmp_path_factory, engine):
    """A trainer, the data folder before its job, the ended job, its progress and its expert."""
    data = tmp_path_factory.mktemp(request.param) / "data"
    with Scene(data, engine) as scene:
        job_id = nights.add_job(nights.ready(scene.house), JobStatus.QUEUED, request.param)
        before = data.parent / "before"
        shutil.copytree(data, before)
        scene.runner.start()
        job = scene.ended(job_id)
        return before, job, scene.progress(job_id), nights.expert_bytes(scene.house, job_id)


def test_the_expert_is_published_under_the_trainers_name(undisturbed):
    _, job, _, _ = undisturbed
    assert (job.status, job.outcome["reason"]) == (JobStatus.SUCCEEDED, "better")
    assert job.outcome["training"]["ended"] == "iterations"
    assert job.outcome["training"]["non_finite"] == 0


def test_every_iteration_is_reported_and_the_loss_falls(undisturbed):
    _, _, progress, _ = undisturbed
    assert [data["iteration"] for data in progress] == list(range(1, 17))
    assert all(data["layers"] for data in progress)
    first, last = ([data["loss"] for data in part] for part in (progress[:4], progress[-4:]))
    assert max(last) < 0.5 * min(first)


def test_a_paused_job_goes_on_to_the_same_bytes(undisturbed, tmp_path, engine):
    before, job, _, expert = undisturbed
    data = tmp_path / "data"
    shutil.copytree(before, data)
    with Scene(data, engine) as scene:
        paused = threading.Event()

        def pause(job_id):
            scene.runner.pause(job_id)
            paused.set()

        scene.acts[3] = pause
        scene.runner.start()
        assert paused.wait(300)
        scene.watch.until(lambda: not children(data))
        assert job_of(scene.house, job.id).status is JobStatus.PAUSED
        scene.runner.resume(job.id)
        assert scene.ended(job.id).status is JobStatus.SUCCEEDED
        assert nights.expert_bytes(scene.house, job.id) == expert
        seen = [d["iteration"] for d in scene.progress(job.id)]
    assert seen == sorted(set(seen))


RUN_AND_DIE = """
import os, signal, sys
from tests.app.night import nights
from pathlib import Path
model, data = map(Path, sys.argv[1:])
watch = nights.Watch()
def notify(job_id):
    if nights.job_of(house, job_id).progress.get("iteration") == 3:
        os.kill(os.getpid(), signal.SIGKILL)
with nights.engine_of(model) as engine, nights.house_in(data, engine, notify) as house:
    nights.runner_of(house, notify).start()
    watch.until(lambda: False)
"""


def test_a_killed_service_takes_the_process_along_and_goes_on_to_the_same_bytes(
    undisturbed, tmp_path, engine, model
):
    before, job, _, expert = undisturbed
    data = tmp_path / "data"
    shutil.copytree(before, data)
    service = subprocess.run(
        [sys.executable, "-c", RUN_AND_DIE, str(model), str(data)],
        cwd=ROOT,
        check=False,
        capture_output=True,  # ends when the trainer's process has let go of it, too
        timeout=300,
    )
    assert service.returncode == -signal.SIGKILL, service.stderr.decode()
    assert children(data) == []
    with Scene(data, engine) as scene:
        scene.runner.start()
        assert scene.ended(job.id).status is JobStatus.SUCCEEDED
        assert nights.expert_bytes(scene.house, job.id) == expert


def test_the_manifest_names_trainer_settings_and_the_parent_that_training_went_on_from(
    tmp_path, engine
):
    with Scene(tmp_path / "data", engine) as scene:
        first = scene.begun("lcsb")
        parent = scene.ended(first).version_id
        small = {"trainer": "absignsgd", "iterations": 2, "lr": 1e-6, "max_tokens": 1}
        job = scene.runner.enqueue(nights.TASK, "api", small, 1)
        ended = scene.ended(job.id)
        version = scene.house.store.load(ended.version_id)
        assert ended.trainer == version.manifest.trainer == "absignsgd"
        assert version.manifest.config == ended.config
        assert version.manifest.parent == parent
        layout = scene.house.engine.coordinates
        start = layout.join(scene.house.store.load(parent).tensors)
        moved = layout.join(version.tensors) - start
        assert abs(moved).max() < 1e-3 < abs(start).max()


@pytest.mark.parametrize("status", [JobStatus.CANCELLED, JobStatus.INTERRUPTED])
def test_a_job_that_is_cancelled_or_whose_service_ends_leaves_no_process(tmp_path, engine, status):
    with Scene(tmp_path / "data", engine) as scene:
        stopped = threading.Event()
        scene.acts[2] = lambda job_id: stopped.set()
        job_id = scene.begun("lcsb")
        assert stopped.wait(300)
        if status is JobStatus.CANCELLED:
            scene.runner.cancel(job_id)
        scene.runner.stop()
        assert children(tmp_path / "data") == []
        assert job_of(scene.house, job_id).status is status


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (signal.SIGKILL, "the trainer's process was killed: probably out of memory"),
        (signal.SIGSEGV, "the trainer's process crashed (SIGSEGV)"),
    ],
)
def test_a_process_that_dies_fails_the_job_and_says_how(tmp_path, engine, caplog, number, message):
    data = tmp_path / "data"
    with Scene(data, engine) as scene:
        scene.acts[2] = lambda _: [child.send_signal(number) for child in children(data)]
        job = scene.ended(scene.begun("lcsb"))
        assert job.status is JobStatus.FAILED
        assert job.error == {"type": "NightError", "message": message}
        again = nights.add_job(scene.house, JobStatus.QUEUED, "lcsb", iterations=1)
        scene.runner.wake()
        assert scene.ended(again).status is JobStatus.REJECTED


@pytest.fixture
def ordered(house):
    """The folder of a job that has begun, with its order, and nothing running."""
    job_id = nights.add_job(nights.ready(house), trainer="lcsb", iterations=1)
    night = open_night(house, job_id, lambda: None)
    work = make_plan(night)
    way = Gradient(night.config)
    night.folder.save_order(way._order(night, way.usable(work.data.training)))
    return night.folder.path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis_hash": "0" * 64}, "the base model's files have changed"),
        ({"trainer": "fura_s", "config": {}}, "is not one of gradients"),
        ({"examples": 5}, "order.json is damaged"),
    ],
)
def test_what_the_process_refuses_is_told_in_its_words(ordered, change, message):
    path = ordered / "order.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(NightError, match=message):
        process.run(ordered, lambda _: None, nights.never)


def test_a_full_disk_in_the_process_pauses_the_job(tmp_path, engine, monkeypatch):
    def full(*_):
        raise NoSpace("the disk is full")

    monkeypatch.setattr(process, "run", full)
    with Scene(tmp_path / "data", engine) as scene:
        job_id = scene.begun("lcsb")
        scene.watch.until(lambda: job_of(scene.house, job_id).status is JobStatus.PAUSED)


def test_examples_are_prompts_with_an_answer_that_fit_together():
    def prompt(tokens, reference):
        return Prompt("ep", tokens, {}, None, reference)

    fits, without, long = prompt((1, 2), (3,)), prompt((1, 2), None), prompt((1, 2), (3, 4))
    way = Gradient(LcsbSettings(max_sequence=3))
    assert way.usable((fits, without, long)) == (fits,)


def test_a_task_without_references_ends_with_that_reason(house):
    nights.add_task(house, {"type": "regex", "pattern": "L+"})
    nights.add_episodes(house, range(COUNT))
    job_id = nights.add_job(house, trainer="lcsb")
    run_job(house, job_id, nights.never)
    outcome = job_of(house, job_id).outcome
    assert outcome["reason"] == "no_reference"
    assert "imitate right answers" in outcome["message"]
