"""A small house for tests of the night: tiny random model, real database, store and graders.

Its task asks for the same answer to every prompt; a few iterations teach it to the random model.
"""

import atexit
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import verifiers
from app.config import Settings
from app.engine.scheduler import Engine
from app.night import data as night_data
from app.night.context import House
from app.night.jobs import JobRunner
from storage import atomic, episodes, jobs, tasks
from storage.db import Database
from storage.episodes import EpisodeDraft
from storage.experts import TENSORS, ExpertStore
from storage.jobs import FINAL
from storage.tables import Job, JobStatus, Task
from verifiers import GraderPool, Sample

TASK = "letters"
GRADER: dict[str, Any] = {"type": "string_check"}
ANSWER = "L"  # the random model says it to few prompts
CONFIG: dict[str, Any] = {
    "population": 16,
    "prompts": 8,
    "sigma": 0.1,
    "lr": 0.6,
    "lr_end": 0.25,
    "whitening": 0.5,
    "fitness": "likelihood",
    "iterations": 10,
    "max_tokens": 1,
    "probe_every": 100,  # so that only the gate generates
}
IMITATION = {"batch": 8, "max_tokens": 1, "iterations": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "fura_s": CONFIG,
    "lcsb": {"lr": 0.02, "r": 0.5, "cosine_every": 4} | IMITATION,
    "absignsgd": {"lr": 0.05} | IMITATION,
}
COUNT = 60  # episodes
WORDS = ("light", "kitchen", "door", "window", "garage", "bedroom", "open", "close", "on", "off")


def settings_for(data: Path, **changes: Any) -> Settings:
    """Settings that fit so few prompts, and a task whose right answer is always the same."""
    fitting: dict[str, Any] = {
        "heldout_fraction": 0.4,
        "min_heldout": 12,
        "max_trivial_share": 1.0,
    }
    return Settings(data_dir=data, **(fitting | changes))


def no_expert(version_id: str) -> Any:
    """The expert source of an engine that serves nobody."""
    raise AssertionError(f"nobody asked for {version_id}")


@contextmanager
def engine_of(model: Path) -> Iterator[Engine]:
    """A started engine of a model folder."""
    engine = Engine(model, no_expert)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def house_in(
    data: Path, engine: Engine, notify: Callable[[str], None] = lambda _: None, **changes: Any
) -> Iterator[House]:
    """A house on a data folder, which is made and migrated if it is new."""
    data.mkdir(exist_ok=True)
    settings = settings_for(data, **changes)
    database = Database(settings.db)
    database.migrate()
    try:
        store = ExpertStore(settings.experts)
        yield House(database, store, engine, graders(), settings, notify)
    finally:
        database.close()


@functools.cache
def graders() -> GraderPool:
    """The pool of all houses of this process, with which it ends."""
    pool = GraderPool()
    atexit.register(pool.close)
    return pool


def text_of(number: int) -> str:
    """A prompt of three words, different for every number below 100."""
    first, rest = divmod(number, len(WORDS))
    return f"{WORDS[first]} {WORDS[rest]} {WORDS[(first + 3 * rest) % len(WORDS)]}"


def add_task(house: House, grader: dict[str, Any] = GRADER, **fields: Any) -> Task:
    """The task, in the database."""
    values = {"name": TASK, "base_model": house.engine.info.name} | fields
    with house.database.session() as session:
        return tasks.create(
            session, grader=grader, grader_hash=verifiers.grader_hash(grader), **values
        )


def change_grader(house: House, grader: dict[str, Any]) -> Task:
    """The task, with another grader."""
    changes = {"grader": grader, "grader_hash": verifiers.grader_hash(grader)}
    with house.database.session() as session:
        return tasks.update(session, TASK, changes)


def add_episodes(
    house: House,
    numbers: range,
    item: Callable[[int], dict[str, Any]] = lambda _: {"answer": ANSWER},
    completion: str = "",
) -> list[str]:
    """One graded episode for each number, each with a prompt of its own; their ids."""
    ids = []
    with house.database.session() as session:
        task = tasks.get(session, TASK)
        grader = verifiers.build(task.grader)
        for number in numbers:
            messages = [{"role": "user", "content": text_of(number)}]
            draft = EpisodeDraft(messages, completion, item(number))
            grade = grader.grade(Sample(output_text=completion), draft.item)
            row = night_data.grade_draft(grade, task.grader_hash)
            ids.append(episodes.add(session, TASK, draft, row)[0].id)
    return ids


def add_job(
    house: House, status: JobStatus = JobStatus.RUNNING, trainer: str = "fura_s", **config: Any
) -> str:
    """The id of a new job; `config` changes the trainer's in CONFIGS."""
    with house.database.session() as session:
        job = jobs.create(
            session,
            task=TASK,
            trainer=trainer,
            config=CONFIGS[trainer] | config,
            seed=1,
            trigger="api",
        )
        if status is not JobStatus.QUEUED:
            jobs.set_status(session, job.id, status)
        return job.id


def never() -> None:
    """No reason to stop a job."""


def ready(house: House, **fields: Any) -> House:
    """The house with its task and COUNT episodes."""
    add_task(house)
    add_episodes(house, range(COUNT), **fields)
    return house


def training_prompts(house: House) -> tuple[str, ...]:
    """Ids of the episodes the split leaves for training."""
    with house.database.reading() as session:
        task = tasks.get(session, TASK)
        graded = episodes.graded(session, TASK, task.grader_hash)
    return night_data.choose(graded, TASK, house.settings).training


def job_of(house: House, job_id: str) -> Job:
    """The job as it is stored."""
    with house.database.reading() as session:
        return jobs.get(session, job_id)


def events_of(house: House, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """Types and data of a job's events."""
    with house.database.reading() as session:
        return [(event.type, event.data) for event in jobs.events_after(session, job_id, 0)]


def expert_bytes(house: House, job_id: str) -> bytes:
    """The tensor file of the version that a job made."""
    version_id = job_of(house, job_id).version_id
    assert version_id is not None
    return (house.settings.experts / version_id / TENSORS).read_bytes()


class Watch:
    """Waits for something to become true of the database, asking whenever something is stored."""

    def __init__(self) -> None:
        self._news = threading.Condition()

    def __call__(self, _job_id: str) -> None:
        with self._news:
            self._news.notify_all()

    def until(self, true: Callable[[], bool]) -> None:
        """Returns when `true()`; fails after a minute."""
        with self._news:
            assert self._news.wait_for(true, timeout=300)

    def until_final(self, house: House, *job_ids: str) -> None:
        """Returns when the jobs have ended."""
        self.until(lambda: all(job_of(house, job_id).status in FINAL for job_id in job_ids))


def runner_of(house: House, watch: Watch) -> JobRunner:
    """A runner of the house's jobs, not started."""
    return JobRunner(
        house.database, house.store, house.engine, house.graders, house.settings, watch
    )


def run_and_die(model: str, data: str, step: str, count: int) -> None:
    """Runs the data folder's jobs and kills this process at the `count`-th time of a step."""

    def counted(function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        left = [count]

        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and after:
                function(*args, **kwargs)
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    owner: Any
    owner, name, after = {
        "write": (atomic, "write_bytes", True),
        "rename": (atomic.os, "replace", False),
        "likelihood": (Engine, "likelihood", False),
        "generate": (Engine, "generate", False),
        "put": (ExpertStore, "put", True),
    }[step]
    setattr(owner, name, counted(getattr(owner, name), after=after))
    watch = Watch()
    with engine_of(Path(model)) as engine, house_in(Path(data), engine) as house:
        runner_of(house, watch).start()
        watch.until(lambda: False)
