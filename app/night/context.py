"""What a night works with, the ways it can end, and how it tells about itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from app.answering import task_form
from app.config import Settings
from app.engine.grammar import GrammarError
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine
from app.night import configs
from app.night.checkpoint import RunFolder
from app.night.configs import Config, TrainerName
from app.night.grading import grader_of
from storage import jobs, tasks
from storage.db import Database
from storage.experts import ExpertStore
from storage.tables import Job, JobStatus, Task
from verifiers import Grade, GraderConfigError, GraderPool, Sample, build


class NightError(Exception):
    """The night cannot be run as things are; the message is fit for a user."""


class Stopped(Exception):
    """The job is no longer to be run; `reason` is why. Its folder holds all it needs to go on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoExpert(Exception):
    """The night ends without an expert, for a reason that is an answer and not a failure.

    Attributes:
        reason: a word for programs, such as too_few_episodes.
        message: a sentence for people.
        numbers: what was counted.
    """

    def __init__(self, reason: str, message: str, numbers: dict[str, Any]) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.numbers = numbers


@dataclass(frozen=True)
class House:
    """What every night needs. `notify` gets the id of a job of which something new was stored."""

    database: Database
    store: ExpertStore
    engine: Engine
    graders: GraderPool
    settings: Settings
    notify: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Night:
    """One job and its task, as they were when the night (or its continuation) began.

    `check` raises Stopped when the job is no longer to be run; it is asked before each use of the
    engine.
    """

    house: House
    job: Job
    task: Task
    trainer: TrainerName
    config: Config
    folder: RunFolder
    check: Callable[[], None]

    def grade_many(self, pairs: Sequence[tuple[Sample, dict[str, Any]]]) -> list[Grade]:
        """Grades of completions with their items, in order."""
        house, task = self.house, self.task
        return grader_of(house.graders, house.engine.tool_form, task, task.grader)(pairs)

    @property
    def sampling(self) -> Sampling:
        """How answers are decoded in training and at the gate: greedily, in the task's form."""
        grammar = task_form(self.task.tools, self.task.response_schema).grammar(self.house.engine)
        return Sampling(max_tokens=self.config.max_tokens, grammar=grammar)

    def references(self, items: Sequence[dict[str, Any]]) -> list[str | None]:
        """A right answer for each item, None where the grader can write none."""
        return self.house.graders.references(self.task.grader, items)

    def say(self, type: str, data: dict[str, Any]) -> None:
        """Stores an event of the job; a phase is also what `job.progress` then shows."""
        with self.house.database.session() as session:
            self.still_running(session)
            jobs.append_event(session, self.job.id, type, data)
            if type == "phase":
                jobs.set_progress(session, self.job.id, data)
        self.house.notify(self.job.id)

    def report(self, progress: Mapping[str, Any]) -> None:
        """Stores the trainer's progress, as an event and as the job's newest."""
        data = {key: _finite(value) for key, value in progress.items()}
        with self.house.database.session() as session:
            self.still_running(session)
            jobs.append_event(session, self.job.id, "progress", data)
            jobs.set_progress(session, self.job.id, {"phase": "train", **data})
        self.house.notify(self.job.id)

    def still_running(self, session: Session) -> None:
        """Raises Stopped if the job was cancelled, paused or deleted meanwhile."""
        job = session.get(Job, self.job.id)
        if job is None or job.status is not JobStatus.RUNNING:
            raise Stopped("deleted" if job is None else job.status.value)


def open_night(house: House, job_id: str, should_stop: Callable[[], str | None]) -> Night:
    """The night of a job.

    Raises NotFound, and NightError for a task of another base model, or with a grader or a form of
    answers that an earlier version of nightowl took and this one does not.
    """
    with house.database.reading() as session:
        job = jobs.get(session, job_id)
        task = tasks.get(session, job.task)
    served = house.engine.info.name
    if task.base_model != served:
        raise NightError(
            f"task {task.name!r} is for base model {task.base_model!r},"
            f" this service runs {served!r}"
        )
    try:
        build(task.grader)
    except GraderConfigError as error:
        raise NightError(f"the grader of task {task.name!r} is not valid: {error}") from error
    try:
        task_form(task.tools, task.response_schema).grammar(house.engine)
    except GrammarError as error:
        raise NightError(f"answers of task {task.name!r} cannot be decoded: {error}") from error

    trainer, settings = configs.named({"trainer": job.trainer, **job.config})

    def check() -> None:
        reason = should_stop()
        if reason is not None:
            raise Stopped(reason)

    return Night(
        house=house,
        job=job,
        task=task,
        trainer=trainer,
        config=configs.parse(trainer, settings),
        folder=RunFolder(house.settings.runs / job.id),
        check=check,
    )


def _finite(value: Any) -> Any:
    """The value, or None for a number that JSON cannot hold."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
