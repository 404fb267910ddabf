"""Jobs whose engine is restarted, taken away, or not to be used before the night."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.engine.config import Manners
from app.engine.errors import EngineRestarting
from app.engine.pace import Pace
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine, EngineConfig
from app.night.jobs import MAX_RESTARTS, JobRunner
from storage.tables import JobStatus
from tests.app.night import nights
from tests.app.night.nights import CONFIG, TASK, Watch, job_of

LATER = datetime.now(UTC) + timedelta(hours=5)


class Scene:
    """A house with a runner; `acts` are called once, when so many iterations were reported."""

    def __init__(self, data, engine, opens=lambda: None):
        self.watch = Watch()
        self.acts = {}
        self._open = nights.house_in(data, engine, self.notify)
        self._opens = opens

    def notify(self, job_id):
        act = self.acts.pop(len(self.iterations(job_id)), None)
        if act is not None:
            act(job_id)
        self.watch(job_id)

    def iterations(self, job_id):
        events = nights.events_of(self.house, job_id)
        return [data["iteration"] for type, data in events if type == "progress"]

    def types(self, job_id):
        return [type for type, _ in nights.events_of(self.house, job_id)]

    def __enter__(self):
        house = self.house = self._open.__enter__()
        nights.add_task(house)
        nights.add_episodes(house, range(60))
        self.runner = JobRunner(
            house.database,
            house.store,
            house.engine,
            house.graders,
            house.settings,
            self.notify,
            self._opens,
        )
        return self

    def __exit__(self, *failure):
        self.runner.stop()
        self._open.__exit__(*failure)

    def finished(self, job_id):
        self.watch.until_final(self.house, job_id)
        return job_of(self.house, job_id)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, engine):
    """The expert that a run of `CONFIG` with seed 1 makes."""
    with Scene(tmp_path_factory.mktemp("undisturbed"), engine) as scene:
        job = scene.runner.enqueue(TASK, "api", CONFIG, 1)
        scene.runner.start()
        assert scene.finished(job.id).status is JobStatus.SUCCEEDED
        return nights.expert_bytes(scene.house, job.id)


def died(*_):
    raise RuntimeError("no memory")


def test_a_job_whose_engine_dies_goes_on_by_itself_to_the_same_bytes(
    tmp_path, model, undisturbed, caplog
):
    with nights.engine_of(model) as engine, Scene(tmp_path / "data", engine) as scene:
        scene.acts[3] = lambda _: setattr(engine._worker, "_step", died)
        job = scene.runner.enqueue(TASK, "api", CONFIG, 1)
        scene.runner.start()
        assert scene.finished(job.id).status is JobStatus.SUCCEEDED
        assert scene.iterations(job.id) == list(range(1, CONFIG["iterations"] + 1))
        assert scene.types(job.id).count("engine_restarting") == 1
        assert engine.health()["restarts"] == 1
        assert nights.expert_bytes(scene.house, job.id) == undisturbed


def test_a_job_that_breaks_the_engine_again_and_again_fails(tmp_path, engine, caplog):
    class Breaking(Engine):
        """The tests' engine, lost at every rollout."""

        def __init__(self):
            self.__dict__.update(engine.__dict__)

        def likelihood(self, *_):
            raise EngineRestarting("lost", 1)

        energies = generate = likelihood

    with Scene(tmp_path / "data", Breaking()) as scene:
        job_id = scene.runner.enqueue(TASK, "api", CONFIG, 1).id
        scene.runner.start()
        job = scene.finished(job_id)
        assert job.status is JobStatus.FAILED
        assert f"restarted {MAX_RESTARTS + 1} times" in job.error["message"]


def test_a_job_that_is_paused_in_the_middle_of_a_rollout_leaves_the_engine_at_once(
    tmp_path, model, undisturbed
):
    manners = Manners(when="idle", quiet_s=3600)
    engine = Engine(model, nights.no_expert, EngineConfig(manners=manners))
    engine.start()
    with Scene(tmp_path / "data", engine) as scene:

        def disturb(_):  # from now on no rollout gets on
            engine.submit([5, 6], Sampling(max_tokens=1)).result()

        scene.acts[3] = disturb
        job_id = scene.runner.enqueue(TASK, "api", CONFIG, 1).id
        scene.runner.start()
        scene.watch.until(lambda: len(scene.iterations(job_id)) == 3)
        scene.runner.pause(job_id)
        engine._worker._pace = Pace(Manners())  # quiet at last
        following = scene.runner.enqueue(TASK, "api", CONFIG, 1).id
        assert scene.finished(following).status is JobStatus.SUCCEEDED
        assert job_of(scene.house, job_id).status is JobStatus.PAUSED
        assert scene.types(job_id)[-1] == "paused"
    engine.close()


def test_a_job_waits_for_the_night_and_goes_on_in_the_next_one(tmp_path, engine, undisturbed):
    opens = [LATER]
    with Scene(tmp_path / "data", engine, lambda: opens[0]) as scene:

        def dawn(_):
            opens[0] = LATER

        scene.acts[3] = dawn
        job_id = scene.runner.enqueue(TASK, "api", CONFIG, 1).id
        scene.runner.start()
        scene.watch.until(lambda: job_of(scene.house, job_id).progress.get("phase") == "waiting")
        waiting = job_of(scene.house, job_id)
        assert waiting.status is JobStatus.QUEUED
        assert waiting.progress["until"] == LATER.isoformat()
        assert scene.iterations(job_id) == []
        opens[0] = None
        scene.runner.wake()
        scene.watch.until(lambda: len(scene.iterations(job_id)) == 3)
        scene.watch.until(lambda: job_of(scene.house, job_id).status is JobStatus.QUEUED)
        scene.watch.until(lambda: "until" in job_of(scene.house, job_id).progress)
        assert job_of(scene.house, job_id).progress["iteration"] == 3
        opens[0] = None
        scene.runner.wake()
        assert scene.finished(job_id).status is JobStatus.SUCCEEDED
        assert nights.expert_bytes(scene.house, job_id) == undisturbed
