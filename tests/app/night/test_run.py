"""Whole nights on a tiny random model: what is published and what is not."""

from dataclasses import replace

import numpy as np
import pytest

import verifiers
from app.engine.sampling import Sampling
from app.night.context import NightError
from app.night.run import run_job
from storage import episodes, jobs, tasks, versions
from storage.experts import DataSnapshot, Manifest
from storage.tables import JobStatus, VersionState
from tests.app.night import nights
from tests.app.night.nights import COUNT, TASK, never, ready, training_prompts
from trainers.state import FuraSConfig


def run(house, **config):
    """The ended job of a night with CONFIG changed by `config`."""
    job_id = nights.add_job(house, **config)
    run_job(house, job_id, never)
    return nights.job_of(house, job_id)


def active_version(house):
    with house.database.reading() as session:
        return versions.active(session, TASK)


def publish_by_hand(house, value):
    """An active version whose coordinates all have one value."""
    layout = house.engine.coordinates
    tensors = layout.split(np.full(layout.total, value, dtype=np.float32))
    info = house.engine.info
    manifest = Manifest(
        kind="spectral",
        base_model=info.name,
        base_hash=info.base_hash,
        basis=house.engine.basis_kind,
        basis_hash=house.engine.basis_hash,
        task=TASK,
        trainer="fura_s",
        config={},
        seed=0,
        parent=None,
        data=DataSnapshot(episode_ids=(), hash=""),
        gate=None,
        created_at="2026-01-01T00:00:00Z",
    )
    stored = house.store.put(tensors, manifest)
    with house.database.session() as session:
        versions.add(
            session,
            id=stored.sha,
            task=TASK,
            kind="spectral",
            base_model=info.name,
            base_hash=info.base_hash,
            basis_hash=house.engine.basis_hash,
            nbytes=stored.nbytes,
            manifest={},
        )
        versions.activate(session, stored.sha)
    return stored.sha


@pytest.fixture(scope="module")
def night(tmp_path_factory, engine):
    """A house after one night that succeeded, and its job. Only for reading."""
    with nights.house_in(tmp_path_factory.mktemp("night") / "data", engine) as house:
        ready(house)
        yield house, run(house)


def heldout_answers(house, flat):
    """Pass or not of a candidate on each held-out prompt, one at a time, from the database."""
    grader = verifiers.build(nights.GRADER)
    with house.database.reading() as session:
        rows = episodes.page(session, TASK, None, 1000)[0]
    training_ids = set(training_prompts(house))
    passed = []
    for row in rows:
        if row.id in training_ids:
            continue
        tokens = house.engine.encode(row.messages)
        answer = house.engine.generate(flat, [tokens], Sampling(max_tokens=1))[0][0]
        passed.append(grader.grade(verifiers.Sample(output_text=answer.text), row.item).passed)
    return passed


def test_a_better_expert_is_published_and_activated(night):
    house, job = night
    assert job.status is JobStatus.SUCCEEDED
    version = active_version(house)
    assert (version.id, version.state, version.number) == (job.version_id, VersionState.ACTIVE, 1)
    assert job.outcome["published"]
    assert job.outcome["reason"] == "better"
    assert (job.outcome["version_id"], job.outcome["version"]) == (version.id, 1)


def test_the_gates_numbers_are_those_of_the_stored_expert_and_the_base_asked_one_by_one(night):
    house, job = night
    flat = house.engine.coordinates.join(house.store.load(job.version_id).tensors)
    new, old = heldout_answers(house, flat[None]), heldout_answers(house, None)
    numbers = job.outcome["numbers"]
    assert numbers["n"] == len(new)
    assert numbers["candidate_passed"] == sum(new)
    assert numbers["active_passed"] == sum(old)
    pairs = list(zip(new, old, strict=True))
    assert numbers["candidate_only"] == pairs.count((True, False))
    assert numbers["active_only"] == pairs.count((False, True))
    assert numbers["compared_with"] is None


def test_the_manifest_says_where_the_expert_comes_from(night):
    house, job = night
    manifest = house.store.load(job.version_id).manifest
    info = house.engine.info
    assert (manifest.base_model, manifest.base_hash) == (info.name, info.base_hash)
    assert (manifest.basis, manifest.basis_hash) == ("spectral", house.engine.basis_hash)
    assert (manifest.task, manifest.trainer, manifest.parent) == (TASK, "fura_s", None)
    assert FuraSConfig.model_validate(manifest.config) == FuraSConfig.model_validate(job.config)
    assert manifest.seed == job.seed
    assert len(manifest.data.episode_ids) == COUNT
    assert manifest.gate["p_value"] == job.outcome["numbers"]["p_value"]
    assert manifest.gate["grader_hash"] == verifiers.grader_hash(nights.GRADER)


def test_the_tensors_are_float16_one_number_per_input_feature(night):
    house, job = night
    tensors = house.store.load(job.version_id).tensors
    assert {name: part.shape for name, part in tensors.items()} == {
        name: (size,) for name, size in house.engine.coordinates.sizes.items()
    }
    assert {part.dtype for part in tensors.values()} == {np.dtype(np.float16)}


def test_the_events_tell_the_night_in_order(night):
    house, job = night
    events = nights.events_of(house, job.id)
    iterations = nights.CONFIG["iterations"]
    assert [type for type, _ in events] == [
        "phase",
        "split",
        "trust",
        "phase",
        *["progress"] * iterations,
        "phase",
        "gate",
        "published",
    ]
    phases = [data["phase"] for type, data in events if type == "phase"]
    assert phases == ["plan", "train", "gate"]
    done = [data["iteration"] for type, data in events if type == "progress"]
    assert done == list(range(1, iterations + 1))
    assert events[-1][1] == job.outcome


def test_progress_of_the_job_is_the_newest_reported(engine, tmp_path):
    seen = []
    with nights.house_in(tmp_path / "data", engine) as house:
        ready(house)

        def look(job_id):
            seen.append(nights.job_of(house, job_id).progress)

        run(replace(house, notify=look))
    kinds = [(progress["phase"], progress.get("iteration")) for progress in seen]
    assert ("train", 3) in kinds
    assert kinds[-1] == ("gate", None)
    train = next(progress for progress in seen if progress.get("iteration") == 2)
    assert {"mean_reward", "pass_rate", "tokens_per_second", "eta_s"} <= train.keys()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_bytes(house):
    ready(house)
    first, same, other = run(house), None, None
    with house.database.session() as session:
        versions.rollback(session, TASK)
    same = run(house)
    with house.database.session() as session:
        versions.rollback(session, TASK)
        job_id = jobs.create(
            session, task=TASK, trainer="fura_s", config=nights.CONFIG, seed=2, trigger="api"
        ).id
        jobs.set_status(session, job_id, JobStatus.RUNNING)
    run_job(house, job_id, never)
    other = nights.job_of(house, job_id)
    made = [nights.expert_bytes(house, job.id) for job in (first, same, other)]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_what_held_out_episodes_ask_for_does_not_change_the_expert(engine, tmp_path):
    made = []
    for name in ("one", "two"):
        with nights.house_in(tmp_path / name, engine) as house:
            ready(house)
            training = set(training_prompts(house))
            with house.database.session() as session:
                for row in episodes.page(session, TASK, None, 1000)[0]:
                    if name == "two" and row.id not in training:
                        row.item = {"answer": "something else"}
                        session.add(row)
            job = run(house)
            made.append((job.status, nights.expert_bytes(house, job.id)))
    assert [status for status, _ in made] == [JobStatus.SUCCEEDED, JobStatus.REJECTED]
    assert made[0][1] == made[1][1]


def test_training_by_score_tells_to_how_many_prompts_the_grader_told_answers_apart(house):
    told = run(ready(house), fitness="score", iterations=2).outcome["training"]["discrimination"]
    assert 0 < told["differing"] <= told["prompts"] <= 16
    assert told["share"] == told["differing"] / told["prompts"]


def test_an_expert_that_is_not_better_is_kept_as_rejected_with_the_numbers(house):
    job = run(ready(house), lr=1e-6, iterations=1)
    assert job.status is JobStatus.REJECTED
    assert not job.outcome["published"]
    assert job.outcome["reason"] == "not_better"
    assert job.outcome["numbers"]["n"] >= house.settings.min_heldout
    assert "not better" in job.outcome["message"]
    assert active_version(house) is None
    with house.database.reading() as session:
        assert versions.get(session, job.version_id).state is VersionState.REJECTED
    assert house.store.load(job.version_id).manifest.gate["publish"] is False


def test_a_second_night_goes_on_from_the_active_version(house):
    first = run(ready(house))
    second = run(house, lr=1e-6, iterations=1)
    manifest = house.store.load(second.version_id).manifest
    assert manifest.parent == first.version_id
    assert second.outcome["numbers"]["compared_with"] == first.version_id
    layout = house.engine.coordinates
    old, new = (layout.join(house.store.load(job.version_id).tensors) for job in (first, second))
    assert np.allclose(old, new, atol=1e-3)
    assert active_version(house).id == first.version_id


def test_an_active_version_of_another_basis_neither_starts_the_night_nor_is_compared_with(house):
    ready(house)
    foreign = publish_by_hand(house, 0.5)
    with house.database.session() as session:
        version = versions.get(session, foreign)
        version.basis_hash = "0" * 64
        session.add(version)
    job = run(house)
    assert job.status is JobStatus.SUCCEEDED
    assert house.store.load(job.version_id).manifest.parent is None
    assert job.outcome["numbers"]["compared_with"] is None


def test_a_version_activated_during_the_gate_is_judged_against_before_publishing(house):
    ready(house)
    meddled = []

    def meddle(job_id):
        if not meddled and nights.events_of(house, job_id)[-1][0] == "gate":
            meddled.append(publish_by_hand(house, 0.0))

    job = run(replace(house, notify=meddle))
    gates = [data for type, data in nights.events_of(house, job.id) if type == "gate"]
    assert [gate["compared_with"] for gate in gates] == [None, meddled[0]]
    assert job.outcome["numbers"]["compared_with"] == meddled[0]
    assert active_version(house).id == job.version_id


# outcomes without an expert


def outcome_without_expert(house, **config):
    job = run(house, **config)
    assert job.status is JobStatus.REJECTED
    assert job.version_id is None
    assert job.outcome["published"] is False
    assert job.outcome["message"].endswith(".")
    assert nights.events_of(house, job.id)[-1] == ("rejected", job.outcome)
    assert active_version(house) is None or active_version(house).job_id is None
    return job.outcome


def test_no_episodes_are_too_few(house):
    nights.add_task(house)
    outcome = outcome_without_expert(house)
    assert outcome["reason"] == "too_few_episodes"
    assert outcome["numbers"]["training"] == 0


def test_few_episodes_are_too_few(house):
    nights.add_task(house)
    nights.add_episodes(house, range(8))
    assert outcome_without_expert(house)["reason"] == "too_few_episodes"


def test_repeated_prompts_do_not_make_episodes_many(house):
    nights.add_task(house)
    for _ in range(10):
        nights.add_episodes(house, range(5))
    assert outcome_without_expert(house)["reason"] == "too_few_episodes"


def test_too_few_held_out_prompts(house):
    nights.add_task(house)
    nights.add_episodes(house, range(20))
    outcome = outcome_without_expert(house)
    assert outcome["reason"] == "too_few_heldout"
    assert outcome["numbers"]["heldout"] < outcome["numbers"]["minimum"] == 12


@pytest.mark.parametrize("fitness", ["likelihood", "mix"])
def test_likelihood_needs_a_grader_that_can_write_right_answers(house, fitness):
    nights.add_task(house, {"type": "string_check", "operation": "ne"})
    nights.add_episodes(house, range(COUNT))
    assert outcome_without_expert(house, fitness=fitness)["reason"] == "no_reference"


def test_auto_fitness_without_any_reference_follows_the_score(house):
    nights.add_task(house, {"type": "string_check", "operation": "ne"})
    nights.add_episodes(house, range(COUNT))
    job = run(house, fitness="auto", iterations=2)
    kinds = [d["fitness"] for type, d in nights.events_of(house, job.id) if type == "progress"]
    assert kinds == ["score", "score"]


def test_rewards_that_are_all_equal_teach_nothing(house):
    ready(house, item=lambda _: {"answer": "never said by this model"})
    outcome = outcome_without_expert(house, fitness="score", iterations=3)
    assert outcome["reason"] == "flat"
    assert outcome["numbers"]["training"]["zero_variance"] == 3


def test_answers_most_of_which_cannot_be_graded_end_the_training(house):
    ready(house)
    publish_by_hand(house, 3e38)
    outcome = outcome_without_expert(house, fitness="score", whitening=0)
    assert outcome["reason"] == "too_many_errored"
    assert "finite" in outcome["message"]


@pytest.mark.parametrize("fitness", ["score", "likelihood"])
def test_an_active_version_under_which_no_energy_can_be_measured_has_diverged(house, fitness):
    ready(house)
    publish_by_hand(house, 3e38)
    outcome = outcome_without_expert(house, fitness=fitness)
    assert outcome["reason"] == "diverged"
    assert "active version" in outcome["message"]


def test_an_expert_too_large_to_be_stored_has_diverged(house):
    ready(house)
    publish_by_hand(house, 1e5)
    assert outcome_without_expert(house, lr=1e-6, iterations=1)["reason"] == "diverged"


def test_a_task_of_another_base_model_is_an_error_that_names_both(house):
    nights.add_task(house, base_model="other")
    job_id = nights.add_job(house)
    with pytest.raises(NightError, match=r"'other'.*'tiny'"):
        run_job(house, job_id, never)


def test_a_grader_that_this_version_does_not_take_is_an_error_that_says_where(house):
    nights.add_task(house)
    with house.database.session() as session:
        tasks.update(session, TASK, {"grader": {"type": "string_check", "colour": "red"}})
    job_id = nights.add_job(house)
    with pytest.raises(NightError, match=r"grader of task 'letters' is not valid: colour"):
        run_job(house, job_id, never)
