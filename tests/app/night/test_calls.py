"""A task of tool calls: its answers are decoded, read and graded as calls in the night, too."""

from dataclasses import replace

import pytest

import verifiers
from app.answering import task_form
from app.engine.tool_form import ToolForm
from app.night import grading, trust
from app.night.context import open_night
from app.night.data import Prompt
from app.night.evaluate import Evaluator
from storage import episodes, grades
from storage.episodes import EpisodeDraft, GradeDraft
from tests.app.night import nights
from tests.app.night.nights import TASK
from verifiers import Sample, ToolCall

GRADER = {"type": "function_call", "syntax": "tools"}
FUNCTION = {"name": "light", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "c", "type": "function", "function": {"name": "light", "arguments": {"on": True}}}
ITEM = {"call": {"name": "light", "arguments": {"on": True}}}
TEXT = '{"name": "light", "arguments": {"on": true}}'
SWITCH = {
    "type": "object",
    "properties": {"on": {"const": True}},
    "required": ["on"],
    "additionalProperties": False,
}
STRICT = [{"type": "function", "function": {**FUNCTION, "parameters": SWITCH, "strict": True}}]


def test_answers_are_decoded_and_graded_as_calls(house):
    nothing = {"type": "null"}
    nights.add_task(house, GRADER, tools=STRICT, response_schema=nothing)
    night = open_night(house, nights.add_job(house, max_tokens=64), lambda: None)
    # The random model may answer with a call, a list of calls or null.
    asked = (
        house.engine.encode([{"role": "user", "content": nights.text_of(n)}]) for n in range(9)
    )
    tokens = next(
        one for one in asked if house.engine.submit(one, night.sampling).result().text[0] == "{"
    )
    prompts = [
        Prompt("ep_1", tokens, item, None, None)
        for item in (ITEM, {"call": {"name": "dark", "arguments": {}}})
    ]
    scores = Evaluator(house.engine, night.grade_many, prompts, night.sampling).scores(None, [0, 1])
    assert scores.passed.tolist() == [[True, False]]


def test_calls_are_read_from_text_and_those_that_came_with_it_are_kept():
    seen = []

    def note(pairs):
        seen.extend(sample for sample, _ in pairs)
        return []

    came = ToolCall(name="other", arguments={})
    samples = [
        Sample(output_text=TEXT),
        Sample(output_text="words"),
        Sample(output_text=TEXT, output_tools=(came,)),
    ]
    read = ToolCall(name="light", arguments={"on": True})
    grading.reading_calls(note, task_form(TOOLS, None), ToolForm())([(s, {}) for s in samples])
    assert [sample.output_tools for sample in seen] == [(read,), (), (came,)]
    assert [sample.output_text for sample in seen] == [TEXT, "words", TEXT]


def test_without_tools_nothing_is_read():
    def grade_many(pairs):
        raise AssertionError

    assert grading.reading_calls(grade_many, task_form(None, None), ToolForm()) is grade_many


@pytest.mark.parametrize(("completion", "text"), [("", TEXT), ("Sure.", f"Sure.\n{TEXT}")])
def test_a_stored_message_is_its_words_and_then_its_calls(completion, text):
    sample = grading.sample_of(completion, [CALL])
    assert sample.output_text == text
    assert sample.output_tools == (ToolCall(name="light", arguments={"on": True}),)
    assert grading.sample_of("Sure.", None) == Sample(output_text="Sure.")


def test_stored_calls_are_graded_anew_and_tried_as_trivial_answers(house):
    task = nights.add_task(house, GRADER, tools=TOOLS)
    draft = EpisodeDraft([{"role": "user", "content": "on"}], "", ITEM, tool_calls=[CALL])
    old = GradeDraft("old", "failed", 0.0, 0.0)
    with house.database.session() as session:
        for number in range(3):
            asked = [{"role": "user", "content": f"on {number}"}]
            episodes.add(session, TASK, replace(draft, messages=asked), old)
    grade_many = grading.reading_calls(
        lambda pairs: house.graders.grade_many(GRADER, pairs),
        task_form(TOOLS, None),
        house.engine.tool_form,
    )
    assert [step.graded for step in grading.regrade(house.database, task, grade_many)] == [3]
    with house.database.reading() as session:
        assert grades.counts(session, TASK, verifiers.grader_hash(GRADER)).passed == 3
        graded = episodes.graded(session, TASK, verifiers.grader_hash(GRADER))
    report = trust.check(
        [episode for episode, _ in graded],
        graded,
        lambda items: house.graders.references(GRADER, items),
        grade_many,
        threshold=0.5,
        max_chars=1000,
        pause=nights.never,
    )
    assert report.hackable
    assert report.best.trivial.text == TEXT
