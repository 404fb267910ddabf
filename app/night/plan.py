"""Plan and split: which prompts a night trains on, which it is judged by, and where it starts.

A plan is made once per job and kept. A job that goes on later finds the same prompts, however many
episodes have come in since; if what it had chosen has changed under it, it starts over and says so.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from app.engine.scheduler import Engine
from app.night import data, grading
from app.night.checkpoint import Plan
from app.night.context import House, Night, NoExpert
from app.night.data import Choice, Dataset, Prompt
from storage import episodes, versions
from storage.errors import NotFound
from storage.tables import GradeStatus, Version
from storage.values import content_hash
from trainers.state import FuraSConfig, State

FloatArray = npt.NDArray[np.float32]

MIN_TRAINING = 8
"""Distinct training prompts below which nothing general can be learned."""
MAX_ERRORED = 0.5
"""Share of errored grades above which the grader or the items need repair, not training."""


@dataclass(frozen=True)
class Work:
    """The stored plan, and the prompts it names."""

    plan: Plan
    data: Dataset


def make_plan(night: Night) -> Work:
    """The work of an earlier beginning of this job, else newly chosen work. Raises NoExpert."""
    stored = night.folder.plan()
    work = None if stored is None else _continued(night, stored)
    if work is not None:
        night.say("phase", {"phase": "plan", "resumed": True})
        return work
    night.say("phase", {"phase": "plan", "resumed": False})
    return _chosen(night)


def training_set(config: FuraSConfig, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """The prompts the trainer draws from: where only the likelihood counts, those that have one."""
    if config.fitness != "likelihood":
        return prompts
    return tuple(prompt for prompt in prompts if prompt.reference is not None)


def training_config(config: FuraSConfig, prompts: tuple[Prompt, ...]) -> FuraSConfig:
    """The trainer's configuration: `auto` cannot warm up on references if there are none."""
    if config.fitness != "auto" or any(prompt.reference for prompt in prompts):
        return config
    return config.model_copy(update={"fitness": "score"})


def coordinates(house: House, version_id: str) -> FloatArray:
    """A stored version as a flat vector (coordinates,). Raises NotFound or Corrupt."""
    flat: FloatArray = house.engine.coordinates.join(house.store.load(version_id).tensors)
    return flat


def servable(version: Version, engine: Engine) -> bool:
    """Whether a version belongs to the base model and basis that are being served."""
    return version.base_hash == engine.info.base_hash and version.basis_hash == engine.basis_hash


def _continued(night: Night, plan: Plan) -> Work | None:
    """The work of a stored plan; None, with the reason as an event, if its data has changed."""
    try:
        dataset = _prepared(night, plan.choice)
    except NotFound as error:
        night.say("restarted", {"reason": str(error)})
        return None
    if _fingerprint(night, dataset) != plan.fingerprint:
        night.say("restarted", {"reason": "the task or the base model has changed"})
        return None
    return Work(plan, dataset)


def _chosen(night: Night) -> Work:
    """Grades what is new, splits, and stores the plan with the state training starts from."""
    house, task = night.house, night.task
    for _ in grading.regrade(house.database, task, night.grade_many):
        night.check()
    with house.database.reading() as session:
        graded = episodes.graded(session, task.name, task.grader_hash)
        active = versions.active(session, task.name)
    errored = sum(grade.status is GradeStatus.ERRORED for _, grade in graded)
    choice = data.choose(graded, task.name, house.settings)
    dataset = _prepared(night, choice)
    numbers = {
        "episodes": len(graded),
        "errored": errored,
        "training": len(dataset.training),
        "heldout": len(dataset.heldout),
        "with_reference": sum(prompt.reference is not None for prompt in dataset.training),
        "unusable": dataset.unusable,
    }
    night.say("split", numbers)
    _check(night, numbers)

    parent = active if active is not None and servable(active, house.engine) else None
    state = State.fresh(night.config, night.job.seed, house.engine.coordinates.total)
    if parent is not None:
        state.theta = coordinates(house, parent.id)
    plan = Plan(choice, None if parent is None else parent.id, _fingerprint(night, dataset))
    night.folder.begin(plan, state)
    return Work(plan, dataset)


def _check(night: Night, numbers: dict[str, Any]) -> None:
    """Raises NoExpert for data that cannot make an expert."""
    fitness, minimum = night.config.fitness, night.house.settings.min_heldout
    total, errored = numbers["episodes"], numbers["errored"]
    training, known, heldout = (numbers[k] for k in ("training", "with_reference", "heldout"))
    if errored > MAX_ERRORED * total:
        raise NoExpert(
            "too_many_errored",
            f"{errored} of {total} episodes could not be graded: the task's grader or the"
            " episodes' items need repair.",
            numbers,
        )
    if training >= MIN_TRAINING and known == 0 and fitness in ("likelihood", "mix"):
        raise NoExpert(
            "no_reference",
            f"Fitness {fitness!r} needs right answers, and the grader can write none from the"
            ' episodes\' items; use fitness "score".',
            numbers,
        )
    usable = known if fitness == "likelihood" else training
    if usable < MIN_TRAINING:
        raise NoExpert(
            "too_few_episodes",
            f"There are too few prompts to train on: {usable}, at least {MIN_TRAINING} different"
            " ones are needed besides the held-out ones.",
            numbers | {"minimum": MIN_TRAINING},
        )
    if heldout < minimum:
        raise NoExpert(
            "too_few_heldout",
            f"There are too few held-out prompts to judge an expert: {heldout}, at least"
            f" {minimum} are needed.",
            numbers | {"minimum": minimum},
        )


def _prepared(night: Night, choice: Choice) -> Dataset:
    with night.house.database.reading() as session:
        training = data.load(session, choice.training)
        heldout = data.load(session, choice.heldout)
    engine, tokens = night.house.engine, night.config.max_tokens
    return data.prepare(training, heldout, night.task, night.grader, engine, tokens)


def _fingerprint(night: Night, dataset: Dataset) -> str:
    """Changes with anything that the trainer's state in the job's folder depends on."""
    engine = night.house.engine
    return content_hash(
        {
            "data": dataset.hash,
            "grader": night.task.grader_hash,
            "base": engine.info.base_hash,
            "basis": engine.basis_hash,
            "config": night.job.config,
            "seed": night.job.seed,
        }
    )
