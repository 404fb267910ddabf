"""Jobs that are stopped, changed under or killed, and go on."""

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import verifiers
from app.night.context import Stopped
from app.night.run import run_job
from storage import episodes, jobs, tasks
from storage.tables import JobStatus
from tests.app.night import nights
from tests.app.night.nights import COUNT, TASK, Watch, never, ready, training_prompts

ROOT = Path(__file__).parents[3]


def stop_after(house, job_id, iterations):
    """Runs a job until its trainer has done so many iterations."""

    def should_stop():
        progress = nights.job_of(house, job_id).progress
        return "interrupted" if progress.get("iteration", 0) >= iterations else None

    with pytest.raises(Stopped, match="interrupted"):
        run_job(house, job_id, should_stop)


def test_a_cancelled_job_stores_nothing_more(house):
    job_id = nights.add_job(ready(house))

    def cancel(_):
        with house.database.session() as session:
            if jobs.get(session, job_id).progress.get("iteration") == 2:
                jobs.set_status(session, job_id, JobStatus.CANCELLED)

    with pytest.raises(Stopped, match="cancelled"):
        run_job(replace(house, notify=cancel), job_id, never)
    assert nights.events_of(house, job_id)[-1][1]["iteration"] == 2
    assert house.store.ids() == []


def test_a_stopped_job_goes_on_with_its_old_prompts_when_episodes_have_come_in(house):
    job_id = nights.add_job(ready(house))
    stop_after(house, job_id, 3)
    nights.add_episodes(house, range(COUNT, 100))
    run_job(house, job_id, never)
    done = [d["iteration"] for type, d in nights.events_of(house, job_id) if type == "progress"]
    assert done == list(range(1, nights.CONFIG["iterations"] + 1))
    manifest = house.store.load(nights.job_of(house, job_id).version_id).manifest
    assert len(manifest.data.episode_ids) == COUNT


def test_a_stopped_job_whose_episode_was_deleted_starts_over_and_says_so(house):
    job_id = nights.add_job(ready(house))
    stop_after(house, job_id, 3)
    with house.database.session() as session:
        episodes.delete(session, training_prompts(house)[0])
    run_job(house, job_id, never)
    events = nights.events_of(house, job_id)
    assert [d["reason"] for t, d in events if t == "restarted"] == [
        "1 episodes of this job have been deleted"
    ]
    done = [d["iteration"] for type, d in events if type == "progress"]
    assert done == [1, 2, 3, *range(1, nights.CONFIG["iterations"] + 1)]


def test_a_stopped_job_whose_grader_was_changed_starts_over_and_says_so(house):
    job_id = nights.add_job(ready(house))
    stop_after(house, job_id, 3)
    changed = {"type": "string_check", "operation": "like"}
    with house.database.session() as session:
        changes = {"grader": changed, "grader_hash": verifiers.grader_hash(changed)}
        tasks.update(session, TASK, changes)
    run_job(house, job_id, never)
    assert [t for t, _ in nights.events_of(house, job_id)].count("restarted") == 1
    manifest = house.store.load(nights.job_of(house, job_id).version_id).manifest
    assert manifest.gate["grader_hash"] == verifiers.grader_hash(changed)


def kill_points(seed):
    """Steps at which the process is killed, one after the other, in one and the same job.

    In the middle of writing the job's first files, after a checkpoint, within an iteration, in the
    second half of the gate, between storing the expert and publishing it.
    """
    chance = random.Random(seed)
    return [
        ("rename", chance.randint(1, 3)),
        ("write", chance.randint(3, 4)),
        ("likelihood", chance.randint(1, 2)),
        ("generate", 2),
        ("put", 1),
    ]


def test_a_job_killed_at_any_step_ends_in_the_same_bytes(tmp_path, engine, model):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with nights.house_in(whole, engine) as house:
        ready(house)
        job_id = nights.add_job(house, JobStatus.QUEUED)
    shutil.copytree(whole, killed)
    for step, count in kill_points(seed=0):
        child = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from tests.app.night import nights;"
                " nights.run_and_die(*sys.argv[1:4], int(sys.argv[4]))",
                *map(str, (model, killed, step, count)),
            ],
            cwd=ROOT,
            check=False,
            capture_output=True,
            timeout=300,
        )
        assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    made = []
    for folder in (whole, killed):
        watch = Watch()
        with nights.house_in(folder, engine) as house:
            runner = nights.runner_of(house, watch)
            runner.start()
            watch.until_final(house, job_id)
            runner.stop()
            assert nights.job_of(house, job_id).status is JobStatus.SUCCEEDED
            assert len(house.store.ids()) == 1
            made.append(nights.expert_bytes(house, job_id))
    assert made[0] == made[1]
