"""Plan and split: which prompts a night trains on, which it is judged by, and where it starts.

A plan is made once per job and kept. A job that goes on later finds the same prompts, however many
episodes have come in since; if what it had chosen has changed under it, it starts over and says so.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from app.engine.scheduler import Engine
from app.night import data, grading, trust
from app.night.checkpoint import Plan
from app.night.context import House, Night, NoExpert
from app.night.data import Choice, Dataset
from app.night.ways import way_of
from storage import episodes, grades, versions
from storage.errors import NotFound
from storage.grades import FrequentError
from storage.tables import Episode, GradeRow, Version
from storage.values import content_hash

FloatArray = npt.NDArray[np.float32]
Graded = list[tuple[Episode, GradeRow]]

MIN_TRAINING = 8
"""Distinct training prompts below which nothing general can be learned."""


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


def require_beatable(work: Work) -> None:
    """Raises NoExpert for a task whose trivial answer passes every held-out prompt."""
    trivial, found = work.plan.trivial, work.plan.trust
    if found is None or trivial is None or not all(trivial.values()):
        return
    raise NoExpert(
        "hackable",
        f"{found['message']} It passes all {len(trivial)} held-out prompts, so no expert can be"
        " better than it.",
        {"heldout": len(trivial), "trivial_passed": len(trivial)},
    )


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
    """Grades what is new, splits, checks, and stores the plan with the trainer's first state."""
    house, task = night.house, night.task
    for _ in grading.regrade(house.database, task, night.grade_many):
        night.check()
    with house.database.reading() as session:
        graded = episodes.graded(session, task.name, task.grader_hash)
        counts = grades.counts(session, task.name, task.grader_hash)
        frequent = grades.most_frequent_error(session, task.name, task.grader_hash)
        active = versions.active(session, task.name)
    choice = data.choose(graded, task.name, house.settings)
    dataset = _prepared(night, choice)
    numbers = {
        "episodes": counts.graded,
        "errored": sum(counts.errored.values()),
        "errored_by_kind": counts.errored,
        "training": len(dataset.training),
        "heldout": len(dataset.heldout),
        "with_reference": sum(prompt.reference is not None for prompt in dataset.training),
        "unusable": dataset.unusable,
    }
    night.say("split", numbers)
    _check_grades(night, numbers, frequent)
    _check_prompts(night, numbers, len(way_of(night.config).usable(dataset.training)))
    trust, trivial = _checked_trust(night, dataset, graded)

    parent = active if active is not None and servable(active, house.engine) else None
    if parent is None:
        theta = np.zeros(house.engine.coordinates.total, dtype=np.float32)
    else:
        theta = coordinates(house, parent.id)
    parent_id = None if parent is None else parent.id
    plan = Plan(choice, parent_id, _fingerprint(night, dataset), trust, trivial)
    night.folder.begin(plan, way_of(night.config).begin(night, theta))
    return Work(plan, dataset)


def _checked_trust(
    night: Night, dataset: Dataset, graded: Graded
) -> tuple[dict[str, Any], dict[str, bool | None] | None]:
    """What the trust checks found; of a hackable task also how its trivial answer does held-out."""
    of = {episode.id: episode for episode, _ in graded}
    report = trust.check(
        [of[prompt.episode_id] for prompt in dataset.training],
        graded,
        night.references,
        night.grade_many,
        threshold=night.house.settings.max_trivial_share,
        max_chars=night.config.max_tokens * trust.CHARS_PER_TOKEN,
        pause=night.check,
    )
    night.say("trust", report.public())
    if report.best is None or not report.hackable:
        return report.public(), None
    heldout = [of[prompt.episode_id] for prompt in dataset.heldout]
    passed = trust.passes(report.best.trivial, heldout, night.grade_many, night.check)
    ids = [episode.id for episode in heldout]
    return report.public(), dict(zip(ids, passed, strict=True))


def _check_grades(night: Night, numbers: dict[str, Any], frequent: FrequentError | None) -> None:
    """Raises NoExpert when too many episodes could not be graded: what is left is a selection."""
    total, errored = numbers["episodes"], numbers["errored"]
    allowed = night.house.settings.max_error_share
    if frequent is None or errored <= allowed * total:
        return
    raise NoExpert(
        "too_many_errored",
        f"{errored} of {total} episodes ({errored / total:.0%}) could not be graded, more than the"
        f" {allowed:.0%} allowed. Most often ({frequent.count} times, {frequent.kind}):"
        f" {frequent.error}. The task's grader or the episodes' items need repair.",
        numbers | {"allowed_share": allowed, "most_frequent_error": asdict(frequent)},
    )


def _check_prompts(night: Night, numbers: dict[str, Any], usable: int) -> None:
    """Raises NoExpert for prompts that cannot make an expert, or cannot judge one.

    `usable`: of how many the trainer can make use.
    """
    needs, minimum = way_of(night.config).needs_references, night.house.settings.min_heldout
    training, known, heldout = (numbers[k] for k in ("training", "with_reference", "heldout"))
    if training >= MIN_TRAINING and known == 0 and needs is not None:
        raise NoExpert(
            "no_reference",
            f"{needs}, and the grader can write none from the episodes' items.",
            numbers,
        )
    if usable < MIN_TRAINING:
        raise NoExpert(
            "too_few_episodes",
            f"There are too few prompts to train on: {usable}, at least {MIN_TRAINING} different"
            " ones are needed besides the held-out ones.",
            numbers | {"usable": usable, "minimum": MIN_TRAINING},
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
    return data.prepare(training, heldout, night.task, night.references, engine, tokens)


def _fingerprint(night: Night, dataset: Dataset) -> str:
    """Changes with anything that the trainer's state in the job's folder depends on."""
    engine = night.house.engine
    return content_hash(
        {
            "data": dataset.hash,
            "grader": night.task.grader_hash,
            "form": [night.task.response_schema, night.task.tools],
            "base": engine.info.base_hash,
            "basis": engine.basis_hash,
            "config": night.job.config,
            "seed": night.job.seed,
        }
    )
