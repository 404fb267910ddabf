"""The night of one job: plan -> split -> train -> gate -> publish.

Claim: an expert is published only if it passes significantly more held-out prompts than what is
active. Training goes on from the active version; held-out prompts reach neither training nor the
decision when to stop it. Both sides of the gate answer with the same greedy decoding, held to the
form that the task's answers have in chat, the candidate rounded to float16 as it will be served.

Every step leaves its result in the job's folder, so a night that was killed anywhere and is run
again ends in the same bytes: the expert is dated by the end of its training, which is stored, and
storing it twice stores it once. Left out: more than one candidate per night.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from app.config import Settings
from app.night import gate
from app.night.context import House, Night, NoExpert, open_night
from app.night.data import Prompt
from app.night.evaluate import Evaluator, evaluator_of
from app.night.gate import GateResult
from app.night.plan import (
    Work,
    coordinates,
    make_plan,
    require_beatable,
    servable,
)
from app.night.ways import way_of
from storage import jobs, versions
from storage.experts import DataSnapshot, Manifest
from storage.tables import JobStatus

FloatArray = npt.NDArray[np.float32]

KIND: Literal["spectral"] = "spectral"
MAX_ERRORED_AT_GATE = 0.1


@dataclass(frozen=True)
class Candidate:
    """A trained expert as it will be served.

    Attributes:
        tensors: matrix name -> (in_features,) float16.
        flat: (coordinates,) fp32, the same numbers.
        ended_at: when its training ended, ISO 8601.
        training: how training went, for the outcome.
    """

    tensors: dict[str, npt.NDArray[np.float16]]
    flat: FloatArray
    ended_at: str
    training: dict[str, Any]


@dataclass(frozen=True)
class Verdict:
    """The gate's result, and the version it compared with (None: the base).

    `active` is what was active then: another one that does not fit the base model loses its place
    to any expert that beats the base.
    """

    result: GateResult
    compared_with: str | None
    active: str | None


def run_job(house: House, job_id: str, should_stop: Callable[[], str | None]) -> None:
    """Runs a `running` job to its end and stores how it ended; goes on from its folder, if any.

    Raises Stopped when `should_stop` (asked before each use of the engine) names a reason, or when
    the job's status was changed. NightError, StorageError and EngineError say why it failed.
    """
    night = open_night(house, job_id, should_stop)
    work: Work | None = None
    try:
        work = make_plan(night)
        require_beatable(work)
        candidate = train(night, work)
        verdict = judge(night, work, candidate)
        # Another version can have been activated between the verdict and its publication.
        while not publish(night, work, candidate, verdict):
            verdict = judge(night, work, candidate)
    except NoExpert as end:
        end_without_expert(night, end, None if work is None else work.plan.trust)


def train(night: Night, work: Work) -> Candidate:
    """Trains from the last checkpoint to a natural end. Raises Stopped, NoExpert."""
    way = way_of(night.config)
    trained = night.folder.trained()
    if trained is None:
        night.say("phase", {"phase": "train"})
        trained = way.train(night, way.usable(work.data.training))
        night.folder.save_trained(trained)
    theta, training = way.made(night, trained)
    layout = night.house.engine.coordinates
    with np.errstate(over="ignore"):  # reported below
        tensors = {name: part.astype(np.float16) for name, part in layout.split(theta).items()}
    flat = layout.join(tensors)
    if not np.isfinite(flat).all():
        raise NoExpert(
            "diverged",
            "Training diverged: the expert's values have grown too large to be stored. Lower lr.",
            {"training": training},
        )
    return Candidate(tensors, flat, trained.ended_at, training)


def judge(night: Night, work: Work, candidate: Candidate) -> Verdict:
    """Candidate and active version answer the held-out prompts; an exact paired test decides."""
    night.say("phase", {"phase": "gate"})
    house, settings = night.house, night.house.settings
    with house.database.reading() as session:
        active = versions.active(session, night.task.name)
    opponent = active if active is not None and servable(active, house.engine) else None
    served = None if opponent is None else coordinates(house, opponent.id)
    evaluator = evaluator_of(night, work.data.heldout)
    trivial = work.plan.trivial
    result = gate.decide(
        _passes(evaluator, candidate.flat, work.data.heldout),
        _passes(evaluator, served, work.data.heldout),
        minimum=settings.min_heldout,
        alpha=settings.alpha,
        max_errored_fraction=MAX_ERRORED_AT_GATE,
        trivial=None if trivial is None else [trivial[p.episode_id] for p in work.data.heldout],
    )
    verdict = Verdict(
        result, None if opponent is None else opponent.id, None if active is None else active.id
    )
    night.say("gate", _numbers(verdict))
    return verdict


def _passes(
    evaluator: Evaluator, flat: FloatArray | None, prompts: tuple[Prompt, ...]
) -> list[bool | None]:
    """Whether each answer passes; None where it could not be graded."""
    scores = evaluator.scores(None if flat is None else flat[None], range(len(prompts)))
    return [
        None if np.isnan(score) else bool(passed)
        for score, passed in zip(scores.score[0], scores.passed[0], strict=True)
    ]


def publish(night: Night, work: Work, candidate: Candidate, verdict: Verdict) -> bool:
    """Stores the expert and, in one transaction, the end of the job: activated or rejected.

    False, with nothing changed, if another version was activated since the verdict.
    """
    stored = night.house.store.put(candidate.tensors, _manifest(night, work, candidate, verdict))
    published = verdict.result.publish
    with night.house.database.session() as session:
        night.still_running(session)
        active = versions.active(session, night.task.name)
        if (None if active is None else active.id) != verdict.active:
            return False
        version = versions.add(
            session,
            id=stored.sha,
            task=night.task.name,
            kind=KIND,
            base_model=stored.manifest.base_model,
            base_hash=stored.manifest.base_hash,
            basis_hash=stored.manifest.basis_hash,
            nbytes=stored.nbytes,
            manifest=stored.manifest.model_dump(mode="json"),
            parent_id=stored.manifest.parent,
            job_id=night.job.id,
        )
        settle = versions.activate if published else versions.reject
        settle(session, version.id)
        outcome = {
            "published": published,
            "reason": _reason(verdict.result, night.house.settings),
            "message": verdict.result.reason,
            "version_id": version.id,
            "version": version.number,
            "numbers": _numbers(verdict),
            "training": candidate.training,
            "trust": work.plan.trust,
        }
        ending = JobStatus.SUCCEEDED if published else JobStatus.REJECTED
        jobs.append_event(session, night.job.id, "published" if published else "rejected", outcome)
        jobs.set_status(session, night.job.id, ending, outcome=outcome, version_id=version.id)
    night.house.notify(night.job.id)
    return True


def end_without_expert(night: Night, end: NoExpert, trust: dict[str, Any] | None) -> None:
    """Stores the end of a job that made no expert: the reason, the numbers, the trust checks."""
    outcome: dict[str, Any] = {"published": False, "reason": end.reason, "message": end.message}
    outcome |= {"numbers": end.numbers, "trust": trust}
    with night.house.database.session() as session:
        night.still_running(session)
        jobs.append_event(session, night.job.id, "rejected", outcome)
        jobs.set_status(session, night.job.id, JobStatus.REJECTED, outcome=outcome)
    night.house.notify(night.job.id)


def _manifest(night: Night, work: Work, candidate: Candidate, verdict: Verdict) -> Manifest:
    engine, chosen = night.house.engine, work.plan.choice
    return Manifest(
        kind=KIND,
        base_model=engine.info.name,
        base_hash=engine.info.base_hash,
        basis=engine.basis_kind,
        basis_hash=engine.basis_hash,
        task=night.task.name,
        trainer=night.trainer,
        config=night.job.config,
        seed=night.job.seed,
        parent=work.plan.parent,
        data=DataSnapshot(episode_ids=(*chosen.training, *chosen.heldout), hash=work.data.hash),
        gate=_numbers(verdict) | {"grader_hash": night.task.grader_hash},
        created_at=datetime.fromisoformat(candidate.ended_at),
    )


def _numbers(verdict: Verdict) -> dict[str, Any]:
    """What the gate counted, and which version (None: the base) the candidate was held against."""
    return asdict(verdict.result) | {"compared_with": verdict.compared_with}


def _reason(result: GateResult, settings: Settings) -> str:
    """The verdict as one word."""
    if result.publish:
        return "better"
    if result.errored > MAX_ERRORED_AT_GATE * (result.n + result.errored):
        return "too_many_errored"
    if result.n < settings.min_heldout:
        return "too_few_heldout"
    better = result.candidate_only > result.active_only and result.p_value < settings.alpha
    return "not_better_than_trivial" if better else "not_better"
