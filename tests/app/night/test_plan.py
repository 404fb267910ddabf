"""Which prompts the trainer draws from, by which fitness, and which tasks are not trained."""

import pytest

from app.night.context import Stopped
from app.night.data import Prompt
from app.night.evolution import Evolution
from app.night.run import run_job
from storage import episodes
from storage.tables import JobStatus
from tests.app.night import nights
from tests.app.night.nights import ANSWER, COUNT, never, ready
from trainers.state import FuraSConfig

WITH = Prompt("ep_1", (1, 2), {}, None, reference=(3, 2))
WITHOUT = Prompt("ep_2", (1, 2), {}, None, reference=None)


def test_where_only_the_likelihood_counts_prompts_need_a_reference():
    assert Evolution(FuraSConfig(fitness="likelihood")).usable((WITH, WITHOUT)) == (WITH,)


@pytest.mark.parametrize("fitness", ["score", "mix", "auto"])
def test_every_other_fitness_uses_all_prompts(fitness):
    assert Evolution(FuraSConfig(fitness=fitness)).usable((WITH, WITHOUT)) == (WITH, WITHOUT)


def test_auto_warms_up_on_references_where_there_are_any():
    config = FuraSConfig()
    assert Evolution(config).warmed((WITH, WITHOUT)) == config


def test_auto_without_any_reference_is_the_score_and_changes_nothing_else():
    config = FuraSConfig(lr=0.5)
    assert Evolution(config).warmed((WITHOUT,)) == FuraSConfig(lr=0.5, fitness="score")
    asked = FuraSConfig(fitness="mix")
    assert Evolution(asked).warmed((WITHOUT,)) == asked


def outcome(house, should_stop=never, job_id=None, **config):
    """How a night ended, and the types of its events."""
    job_id = job_id or nights.add_job(house, **config)
    run_job(house, job_id, should_stop)
    types = [type for type, _ in nights.events_of(house, job_id)]
    return nights.job_of(house, job_id).outcome, types


def broken(share):
    """Items of which that share cannot be graded, most of them for the same reason."""

    def item(number):
        if number >= share * COUNT:
            return {"answer": ANSWER}
        return {} if number % 4 else {"answer": None}

    return item


def test_a_task_whose_error_share_passes_the_setting_is_not_trained(house):
    ended, types = outcome(ready(house, item=broken(1 / 3)))
    assert (ended["published"], ended["reason"]) == (False, "too_many_errored")
    assert ended["message"] == (
        "20 of 60 episodes (33%) could not be graded, more than the 20% allowed. Most often (15"
        " times, item): the item has no field 'answer'. The task's grader or the episodes' items"
        " need repair."
    )
    numbers = ended["numbers"]
    assert (numbers["episodes"], numbers["errored"], numbers["allowed_share"]) == (60, 20, 0.2)
    assert numbers["errored_by_kind"] == {"item": 20}
    assert numbers["most_frequent_error"] == {
        "kind": "item",
        "error": "the item has no field 'answer'",
        "count": 15,
    }
    assert types == ["phase", "split", "rejected"]


def test_an_error_share_at_the_setting_is_allowed(engine, tmp_path):
    with nights.house_in(tmp_path / "data", engine, max_error_share=0.25) as house:
        ended, types = outcome(ready(house, item=broken(0.25)), iterations=1)
    assert ended["reason"] != "too_many_errored"
    assert "progress" in types


def test_errors_under_an_earlier_grader_do_not_count(house):
    ready(house, item=broken(1.0))
    nights.change_grader(house, {"type": "string_check", "reference": ANSWER})
    assert outcome(house, iterations=1)[0]["reason"] != "too_many_errored"


def test_what_the_trust_checks_found_is_an_event_and_part_of_every_later_outcome(house):
    ready(house, completion="a")
    for number in (0, 1):
        nights.add_episodes(house, range(number, 2), completion=ANSWER)
    job_id = nights.add_job(house, iterations=1, lr=1e-6)
    ended, _ = outcome(house, job_id=job_id)
    [found] = [data for type, data in nights.events_of(house, job_id) if type == "trust"]
    assert ended["trust"] == found
    assert found["discrimination"] == {"prompts": 2, "differing": 2, "share": 1.0}
    assert found["baselines"][0]["share"] == 1.0
    assert (found["threshold"], found["hackable"]) == (1.0, False)
    assert ended["numbers"]["trivial_passed"] is None


@pytest.fixture
def wary(tmp_path, engine):
    """A house that flags a task in which a trivial answer passes more than half of the prompts."""
    with nights.house_in(tmp_path / "data", engine, max_trivial_share=0.5) as house:
        yield house


def test_a_task_whose_trivial_answer_passes_all_held_out_prompts_is_not_trained(wary):
    ended, types = outcome(ready(wary))
    assert ended["reason"] == "hackable"
    assert ended["trust"]["hackable"]
    assert "the best trivial answer, always the same right answer, passes" in ended["message"]
    assert "so no expert can be better" in ended["message"]
    assert ended["trust"]["example"]["completion"] == ANSWER
    assert types == ["phase", "split", "trust", "rejected"]


ENOUGH = 20  # iterations: the expert then says the constant answer to nearly every prompt


def with_one_exception(house):
    """The house, with a held-out prompt to which the constant answer is wrong."""
    ready(house)
    training = set(nights.training_prompts(house))
    with house.database.session() as session:
        rows = episodes.page(session, nights.TASK, None, COUNT)[0]
        row = next(row for row in rows if row.id not in training)
        row.item = {"answer": "something else"}
        session.add(row)
    return house


def test_a_hackable_task_is_trained_but_an_expert_that_is_only_trivial_is_not_published(wary):
    ended, types = outcome(with_one_exception(wary), iterations=ENOUGH)
    assert "progress" in types
    assert ended["trust"]["hackable"]
    assert (ended["published"], ended["reason"]) == (False, "not_better_than_trivial")
    numbers = ended["numbers"]
    assert numbers["active_passed"] < numbers["candidate_passed"] <= numbers["trivial_passed"]
    assert numbers["trivial_passed"] == numbers["n"] - 1


def test_without_the_flag_the_same_expert_is_published(house):
    ended, _ = outcome(with_one_exception(house), iterations=ENOUGH)
    assert (ended["published"], ended["reason"]) == (True, "better")


def test_a_night_that_goes_on_keeps_the_bar_it_began_with(wary):
    job_id = nights.add_job(with_one_exception(wary), iterations=ENOUGH)

    def stop():
        return "interrupted" if nights.job_of(wary, job_id).progress.get("iteration") else None

    with pytest.raises(Stopped):
        run_job(wary, job_id, stop)
    ended, types = outcome(wary, job_id=job_id)
    assert types.count("trust") == 1
    assert nights.job_of(wary, job_id).status is JobStatus.REJECTED
    assert ended["reason"] == "not_better_than_trivial"
