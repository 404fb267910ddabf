"""The thread that runs jobs: their order and status words, stopping, going on, failing."""

import errno
import threading

import pytest
from pydantic import ValidationError

from app.engine.scheduler import Engine
from app.night.checkpoint import RunFolder
from storage import jobs, tasks
from storage.errors import Conflict, NoSpace, NotFound
from storage.tables import JobStatus
from tests.app.night import nights
from tests.app.night.nights import CONFIG, TASK, Watch, job_of
from trainers.state import FuraSConfig, State


class Held(Engine):
    """The tests' engine, whose background work waits while `open` is not set.

    `used` is released each time somebody starts to wait.
    """

    def __init__(self, engine):
        self.__dict__.update(engine.__dict__)  # one and the same thread behind both
        self.open = threading.Event()
        self.used = threading.Semaphore(0)

    def generate(self, *args):
        self._hold()
        return super().generate(*args)

    def likelihood(self, *args):
        self._hold()
        return super().likelihood(*args)

    def _hold(self):
        self.used.release()
        assert self.open.wait(timeout=300)


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def held(engine):
    return Held(engine)


@pytest.fixture
def house(tmp_path, held, watch):
    with nights.house_in(tmp_path / "data", held, watch) as house:
        nights.add_task(house)
        nights.add_episodes(house, range(60))
        yield house


@pytest.fixture
def runner(house, held, watch):
    runner = nights.runner_of(house, watch)
    yield runner
    held.open.set()
    runner.stop()


def wait_until_used(held):
    assert held.used.acquire(timeout=300)


def types(house, job_id):
    return [type for type, _ in nights.events_of(house, job_id)]


# queueing


def test_a_job_is_queued_with_the_whole_configuration_it_will_run_with(house, runner):
    with house.database.session() as session:
        tasks.update(session, TASK, {"training": {"lr": 0.5, "sigma": 0.2}})
    job = runner.enqueue(TASK, "api", {"lr": 0.25}, 7)
    stored = job_of(house, job.id)
    assert FuraSConfig.model_validate(stored.config) == FuraSConfig(lr=0.25, sigma=0.2)
    assert stored.config.keys() == FuraSConfig.model_fields.keys()
    assert (stored.status, stored.trigger, stored.seed) == (JobStatus.QUEUED, "api", 7)
    assert types(house, job.id) == ["queued"]


@pytest.mark.parametrize(
    ("config", "field"),
    [({"sigma": -1}, "sigma"), ({"unknown": 1}, "unknown"), ({"iterations": "many"}, "iterations")],
)
def test_a_configuration_the_trainer_refuses_is_an_error_that_names_the_field(
    house, runner, config, field
):
    with pytest.raises(ValidationError) as caught:
        runner.enqueue(TASK, "api", config)
    assert caught.value.errors()[0]["loc"] == (field,)
    with house.database.reading() as session:
        assert jobs.page(session, TASK, None, 10)[0] == []


def test_a_job_of_an_unknown_task_is_refused(runner):
    with pytest.raises(NotFound):
        runner.enqueue("unknown", "api", {})


def test_without_a_seed_each_job_has_its_own(runner):
    seeds = {runner.enqueue(TASK, "night", {}).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**31 for seed in seeds)


# running


def test_jobs_run_one_after_the_other_in_the_order_they_came(house, runner, held, watch):
    held.open.set()
    first = runner.enqueue(TASK, "api", CONFIG, 1).id
    second = runner.enqueue(TASK, "api", CONFIG, 2).id
    runner.start()
    watch.until_final(house, first, second)
    assert job_of(house, first).finished_at <= job_of(house, second).started_at
    assert job_of(house, first).status is JobStatus.SUCCEEDED


def test_a_job_queued_while_the_thread_sleeps_is_run(house, runner, held, watch):
    held.open.set()
    runner.start()
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    watch.until_final(house, job_id)
    assert job_of(house, job_id).status is JobStatus.SUCCEEDED


def test_a_failing_job_says_why_and_the_next_one_runs(house, runner, held, watch):
    held.open.set()
    with house.database.session() as session:
        other = tasks.create(
            session, name="other", grader=nights.GRADER, grader_hash="", base_model="large"
        )
    failing = runner.enqueue(other.name, "api", {}).id
    following = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    watch.until_final(house, failing, following)
    job = job_of(house, failing)
    assert job.status is JobStatus.FAILED
    assert job.error["type"] == "NightError"
    assert "'large'" in job.error["message"]
    assert nights.events_of(house, failing)[-1] == ("failed", job.error)
    assert job_of(house, following).status is JobStatus.SUCCEEDED


def test_a_bug_fails_its_job_without_telling_what_only_the_log_should_hold(
    house, runner, held, watch, monkeypatch, caplog
):
    held.open.set()

    def broken(*_):
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(RunFolder, "begin", broken)
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    watch.until_final(house, job_id)
    error = job_of(house, job_id).error
    assert error["type"] == "internal"
    assert "secret" not in error["message"]
    assert "secret" in caplog.text


def test_a_full_disk_pauses_the_job_and_it_goes_on_later(house, runner, held, watch, monkeypatch):
    held.open.set()
    save = RunFolder.save
    full = threading.Event()
    full.set()

    def no_space(folder, name, arrays):
        if full.is_set() and State.unpack(arrays).iteration == 3:
            raise NoSpace("no space left") from OSError(errno.ENOSPC, "")
        save(folder, name, arrays)

    monkeypatch.setattr(RunFolder, "save", no_space)
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    watch.until(lambda: job_of(house, job_id).status is JobStatus.PAUSED)
    assert "no space" in job_of(house, job_id).error["message"]
    full.clear()
    runner.resume(job_id)
    watch.until_final(house, job_id)
    done = [d["iteration"] for t, d in nights.events_of(house, job_id) if t == "progress"]
    assert done == list(range(1, nights.CONFIG["iterations"] + 1))
    assert job_of(house, job_id).error is None


# cancel, pause, resume


def test_a_cancelled_running_job_ends_at_once_and_makes_nothing(house, runner, held, watch):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    wait_until_used(held)
    assert runner.cancel(job_id).status is JobStatus.CANCELLED
    held.open.set()
    following = runner.enqueue(TASK, "api", CONFIG | {"iterations": 1}, 1).id
    watch.until_final(house, following)
    assert job_of(house, job_id).status is JobStatus.CANCELLED
    assert types(house, job_id)[-1] == "cancelled"
    assert not (house.settings.runs / job_id).exists()


def test_a_queued_job_can_be_cancelled_and_never_runs(house, runner, held, watch):
    held.open.set()
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    following = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.cancel(job_id)
    runner.start()
    watch.until_final(house, following)
    assert types(house, job_id) == ["queued", "cancelled"]


def test_a_job_that_has_ended_cannot_be_cancelled_paused_or_resumed(house, runner):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.cancel(job_id)
    for act in (runner.cancel, runner.pause, runner.resume):
        with pytest.raises(Conflict):
            act(job_id)
    with pytest.raises(NotFound):
        runner.cancel("job_unknown")


def test_a_paused_job_lets_others_run_and_goes_on_where_it_was(house, runner, held, watch):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    wait_until_used(held)
    runner.pause(job_id)
    held.open.set()
    other = runner.enqueue(TASK, "api", CONFIG | {"lr": 1e-6, "iterations": 1}, 1).id
    watch.until_final(house, other)
    assert job_of(house, job_id).status is JobStatus.PAUSED
    runner.resume(job_id)
    watch.until_final(house, job_id)
    done = [d["iteration"] for t, d in nights.events_of(house, job_id) if t == "progress"]
    # The first was under way when the job was paused: it is kept, but was not reported.
    assert done == list(range(2, nights.CONFIG["iterations"] + 1))
    resumed = [d["resumed"] for _, d in nights.events_of(house, job_id) if d.get("phase") == "plan"]
    assert resumed == [False, True]


def test_a_job_paused_and_resumed_within_one_step_is_run_on(house, runner, held, watch):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    wait_until_used(held)
    runner.pause(job_id)
    runner.resume(job_id)
    held.open.set()
    watch.until_final(house, job_id)
    assert job_of(house, job_id).status is JobStatus.SUCCEEDED


def test_a_task_deleted_under_its_cancelled_job_does_not_stop_the_thread(
    house, runner, held, watch
):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    wait_until_used(held)
    runner.cancel(job_id)
    with house.database.session() as session:
        tasks.delete(session, TASK)
    held.open.set()
    nights.add_task(house)
    following = runner.enqueue(TASK, "api", CONFIG, 1).id
    watch.until_final(house, following)
    assert job_of(house, following).outcome["reason"] == "too_few_episodes"


# stopping and starting


def restart(house, watch):
    runner = nights.runner_of(house, watch)
    runner.start()
    return runner


def test_stopping_interrupts_the_running_job_and_starting_runs_it_to_the_same_bytes(
    house, runner, held, watch, tmp_path, engine
):
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    wait_until_used(held)
    stopper = threading.Thread(target=runner.stop)
    stopper.start()
    watch_stopping(runner)
    held.open.set()
    stopper.join()
    assert job_of(house, job_id).status is JobStatus.INTERRUPTED
    assert types(house, job_id)[-1] == "interrupted"
    again = restart(house, watch)
    watch.until_final(house, job_id)
    again.stop()
    with nights.house_in(tmp_path / "other", engine, watch) as other:
        nights.add_task(other)
        nights.add_episodes(other, range(60))
        undisturbed = nights.add_job(other, JobStatus.QUEUED)
        whole = restart(other, watch)
        watch.until_final(other, undisturbed)
        whole.stop()
        assert nights.expert_bytes(other, undisturbed) == nights.expert_bytes(house, job_id)


def watch_stopping(runner):
    """Returns when `stop` has been asked for."""
    assert runner._stopping.wait(timeout=300)


def test_a_job_left_running_by_a_dead_process_is_run_again(house, runner, held, watch):
    held.open.set()
    job_id = nights.add_job(house, JobStatus.RUNNING)
    runner.start()
    watch.until_final(house, job_id)
    assert types(house, job_id)[:2] == ["queued", "running"]
    assert job_of(house, job_id).status is JobStatus.SUCCEEDED


def test_a_closed_engine_interrupts_the_running_job_and_leaves_the_queue(tmp_path, model, watch):
    with nights.engine_of(model) as engine:
        engine.close()
        with nights.house_in(tmp_path / "data", engine, watch) as house:
            nights.add_task(house)
            nights.add_episodes(house, range(60))
            job_id = nights.add_job(house, JobStatus.QUEUED)
            waiting = nights.add_job(house, JobStatus.QUEUED)
            runner = restart(house, watch)
            watch.until(lambda: job_of(house, job_id).status is JobStatus.INTERRUPTED)
            runner.stop()
            assert job_of(house, waiting).status is JobStatus.QUEUED


def test_stopping_a_runner_that_was_never_started_does_nothing(runner):
    runner.stop()


def test_folders_of_ended_jobs_are_deleted_and_no_others(house, runner, held, watch):
    held.open.set()
    ended = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.cancel(ended)
    paused = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.pause(paused)
    runs = house.settings.runs
    names = [ended, paused, "job_" + "0" * 24, "not-a-job"]
    for name in names:
        (runs / name).mkdir(parents=True)
    job_id = runner.enqueue(TASK, "api", CONFIG, 1).id
    runner.start()
    watch.until_final(house, job_id)
    watch.until(lambda: not (runs / ended).exists())
    assert (runs / paused).is_dir()
    assert (runs / "not-a-job").is_dir()
    assert not (runs / names[2]).exists()
