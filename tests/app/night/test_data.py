"""The prompts of a night: who is on which side, what the model is shown, what counts at all."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers
from app.night import data
from app.night.data import Dataset, choose, conversation, prompt_key
from storage import episodes
from storage.errors import NotFound
from storage.tables import Episode, GradeRow, GradeStatus, Task
from tests.app.night import nights
from tests.app.night.nights import ANSWER, TASK
from verifiers import Sample

SYSTEM = {"role": "system", "content": "Answer with a letter."}
USER = {"role": "user", "content": "open the door"}
GRADER = verifiers.build(nights.GRADER)


def episode(number, said, group=None, item=None):
    return Episode(
        id=f"ep_{number:024x}",
        seq=number,
        task=TASK,
        messages=[{"role": "user", "content": said}],
        completion="",
        item={"answer": ANSWER} if item is None else item,
        group_key=group,
        content_hash="",
    )


def graded(row, status=GradeStatus.FAILED):
    return row, GradeRow(episode_id=row.id, grader_hash="", status=status, seconds=0)


def task_row(**fields):
    values = {"grader": nights.GRADER, "grader_hash": "", "base_model": "tiny"} | fields
    return Task(name=TASK, **values)


def references(items):
    return [GRADER.reference(item) for item in items]


def prepare(engine, training, heldout=(), task=None, max_tokens=4):
    return data.prepare(training, heldout, task or task_row(), references, engine, max_tokens)


def test_the_tasks_system_prompt_leads_unless_the_client_sent_one():
    own = {"role": "system", "content": "Be brief."}
    assert conversation([USER], "Be kind.") == [{"role": "system", "content": "Be kind."}, USER]
    assert conversation([own, USER], "Be kind.") == [own, USER]
    assert conversation([USER], "") == [USER]


def test_a_prompts_side_does_not_depend_on_system_messages():
    assert prompt_key([SYSTEM, USER]) == prompt_key([USER])
    assert prompt_key([USER]) != prompt_key([{"role": "user", "content": "close the door"}])
    assert prompt_key([SYSTEM]) != prompt_key([{"role": "system", "content": "other"}])


rows = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.none() | st.sampled_from("xyz")), max_size=40
)


@given(rows)
def test_no_prompt_and_no_group_is_on_both_sides(said):
    made = [episode(number, text, group) for number, (text, group) in enumerate(said)]
    by_id = {row.id: row for row in made}
    choice = choose([graded(row) for row in made], TASK, nights.settings_for("unused"))
    sides = [[by_id[id] for id in ids] for ids in (choice.training, choice.heldout)]
    for value in (lambda row: prompt_key(row.messages), lambda row: row.group_key):
        training, heldout = ({value(row) for row in side} - {None} for side in sides)
        assert not training & heldout


@given(rows)
def test_each_prompt_is_chosen_once_as_its_newest_episode_in_order_of_arrival(said):
    made = [episode(number, text) for number, (text, _) in enumerate(said)]
    choice = choose([graded(row) for row in made], TASK, nights.settings_for("unused"))
    newest = {text: row.id for row, (text, _) in zip(made, said, strict=True)}
    assert sorted((*choice.training, *choice.heldout)) == sorted(newest.values())
    assert list(choice.training) == sorted(choice.training)
    assert list(choice.heldout) == sorted(choice.heldout)


def test_an_episode_whose_grade_errored_is_on_no_side():
    made = [graded(episode(n, str(n)), GradeStatus.ERRORED) for n in range(20)]
    choice = choose(made, TASK, nights.settings_for("unused"))
    assert choice.training == choice.heldout == ()


def test_of_very_many_held_out_prompts_the_newest_are_judged():
    count = 3 * data.MAX_HELDOUT
    choice = choose(
        [graded(episode(n, str(n))) for n in range(count)], TASK, nights.settings_for("unused")
    )
    assert len(choice.heldout) == data.MAX_HELDOUT
    everything = sorted((*choice.training, *choice.heldout))
    assert everything[-1] == f"ep_{count - 1:024x}"
    assert len(choice.training) + len(choice.heldout) < count


def test_a_prompt_has_the_tokens_that_serving_the_task_would_give_it(engine):
    task = task_row(system_prompt="Answer with a letter.")
    prompt = prepare(engine, [episode(0, "open the door", "doors")], task=task).training[0]
    assert prompt.tokens == engine.encode([SYSTEM, USER])
    assert (prompt.episode_id, prompt.group) == (f"ep_{0:024x}", "doors")


def test_a_reference_is_an_answer_that_passes_followed_by_the_end_of_text(engine):
    prompt = prepare(engine, [episode(0, "open")]).training[0]
    end = engine.encode_text("", end=True)
    assert prompt.reference[-len(end) :] == end
    text = engine.decode(prompt.reference[: -len(end)])
    assert GRADER.grade(Sample(output_text=text), prompt.item).passed


def test_an_item_the_grader_can_write_no_answer_from_has_no_reference(engine):
    assert prepare(engine, [episode(0, "open", item={"other": 1})]).training[0].reference is None


def test_a_prompt_without_room_for_the_answer_is_left_out_and_counted(engine):
    fits = len(prepare(engine, [episode(0, "open")]).training[0].tokens)
    room = engine.max_context - fits
    assert prepare(engine, [episode(0, "open")], max_tokens=room).unusable == 0
    without = prepare(engine, [], [episode(0, "open")], max_tokens=room + 1)
    assert (without.heldout, without.unusable) == ((), 1)


def test_a_reference_that_does_not_fit_behind_its_prompt_is_not_used(engine):
    long = {"answer": " ".join(["door"] * engine.max_context)}
    assert prepare(engine, [episode(0, "open", item=long)]).training[0].reference is None


def test_messages_the_template_refuses_are_left_out_and_counted(engine):
    dataset = prepare(engine, [episode(0, "lone \ud800 surrogate"), episode(1, "open")])
    assert (len(dataset.training), dataset.unusable) == (1, 1)


def test_the_hash_covers_all_that_training_and_the_gate_read(engine):
    dataset = prepare(engine, [episode(0, "open", "g")], [episode(1, "close")])
    prompt = dataset.training[0]
    changes = [
        {"tokens": (*prompt.tokens, 5)},
        {"item": {"answer": "x"}},
        {"reference": None},
        {"episode_id": "ep_2"},
        {"group": None},
    ]
    others = [
        Dataset((dataclasses.replace(prompt, **change),), dataset.heldout, 0) for change in changes
    ]
    swapped = Dataset(dataset.heldout, dataset.training, 0)
    assert len({d.hash for d in [dataset, swapped, *others]}) == len(changes) + 2
    again = prepare(engine, [episode(0, "open", "g")], [episode(1, "close")])
    assert again.hash == dataset.hash


def test_episodes_are_loaded_in_the_order_asked_for(house):
    nights.add_task(house)
    ids = nights.add_episodes(house, range(5))[::-1]
    with house.database.reading() as session:
        assert [row.id for row in data.load(session, ids)] == ids


def test_loading_a_deleted_episode_says_how_many_are_gone(house):
    nights.add_task(house)
    ids = nights.add_episodes(house, range(3))
    with house.database.session() as session:
        episodes.delete(session, ids[1])
    with house.database.reading() as session, pytest.raises(NotFound, match="1 episodes"):
        data.load(session, ids)
