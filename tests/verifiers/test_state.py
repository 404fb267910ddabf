"""`state` against a home written by hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.small_home import CALLS, CONFIG, GRADER, START, Call, after, values
from verifiers import Grade, GraderConfigError, Sample, Status, ToolCall, build
from verifiers.calls import MAX_CALLS, write_calls


def graded(calls: list[Call], item: dict[str, Any], **config: Any) -> Grade:
    """Grade a completion that makes these calls."""
    text = write_calls(calls, "call")
    assert text is not None
    return build({**CONFIG, **config}).grade(Sample(output_text=text), item)


@given(CALLS, CALLS)
def test_calls_are_graded_by_the_state_that_they_lead_to(
    made: list[Call], meant: list[Call]
) -> None:
    start, end, wanted = values(START), values(after(made)), values(after(meant))
    grade = graded(made, {"state": after(meant)})
    differing = [place for place in start if start[place] != wanted[place]]
    right = sum(end[place] == wanted[place] for place in differing)
    unwanted = sum(end[place] != start[place] for place in start if place not in differing)
    calls = 1.0 if made or not differing else 0.0
    changes = (right - unwanted) / len(differing) if differing else 1 - unwanted
    assert grade.subscores == pytest.approx({"calls": calls, "changes": max(0.0, changes)})
    assert grade.score == pytest.approx(0.1 * calls + 0.9 * max(0.0, changes), abs=2e-6)
    assert grade.passed == (end == wanted and (bool(made) or not differing))


@given(CALLS, st.sampled_from(["json", "call", "tools"]), st.data())
def test_an_item_may_name_every_value_or_only_those_that_change(
    calls: list[Call], syntax: Any, data: st.DataObject
) -> None:
    end = after(calls)
    lights = {
        area: {key: value for key, value in light.items() if value != START["lights"][area][key]}
        for area, light in end["lights"].items()
    }
    changed = {key: value for key, value in end.items() if key != "lights" and value != START[key]}
    item = {"state": data.draw(st.sampled_from([end, {"lights": lights, **changed}]))}
    tools = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
    sample = Sample(output_text=write_calls(calls, syntax) or "", output_tools=tools)
    assert build({**CONFIG, "syntax": syntax}).grade(sample, item).passed == bool(
        calls or end == START
    )


def test_decimal_fractions_add_up() -> None:
    calls: list[Call] = [("colder", {"by": 20.4}), *[("warmer", {"by": 0.1})] * 3]
    wanted = {"state": {"heating": {"degrees": 5.3}}}
    assert graded(calls, wanted).passed


def test_the_order_of_a_list_matters_unless_it_is_said_not_to() -> None:
    calls: list[Call] = [("add", {"item": "tea"}), ("add", {"item": "rice"})]
    item = {"state": {"list": ["milk", "eggs", "rice", "tea"]}}
    assert not graded(calls, item).passed
    assert graded(calls, item, lists="unordered").passed
    assert not graded(calls[:1], item, lists="unordered").passed
    twice = {"state": {"list": ["milk", "eggs", "tea", "tea"]}}
    assert not graded(calls[:1], twice, lists="unordered").passed
    shuffled = {"state": {"list": ["eggs", "milk"]}}
    unordered = build({**CONFIG, "lists": "unordered"})
    assert unordered.reference(shuffled) == "none"
    assert GRADER.reference(shuffled) is None


@pytest.mark.parametrize("text", ["none", "", "It is on already.", "weather()", "on(area=lounge)"])
def test_where_nothing_must_change_whatever_changes_nothing_passes(text: str) -> None:
    assert GRADER.grade(Sample(output_text=text), {"state": None}).passed
    assert not GRADER.grade(Sample(output_text=text), {"state": {"mode": "night"}}).passed


@pytest.mark.parametrize("text", ["So: mode(name=night)", "none; mode (name=night)", "- weather()"])
def test_a_call_cannot_hide_where_nothing_must_change_or_text_is_ignored(text: str) -> None:
    unwanted = GRADER.grade(Sample(output_text=text), {"state": None})
    assert not unwanted.passed
    assert unwanted.subscores["changes"] == float("mode" not in text)
    ignoring = build({**CONFIG, "surrounding": "ignore"})
    item = {"state": {"lights": {"kitchen": {"on": True}}}}
    assert ignoring.grade(Sample(output_text="on(area=kitchen)\nThe sum (x=1)."), item).passed
    assert not ignoring.grade(Sample(output_text=f"on(area=kitchen)\n{text}"), item).passed


def test_an_unwanted_change_outweighs_a_wanted_one_but_a_wrong_value_does_not() -> None:
    item = {"state": {"lights": {"kitchen": {"on": True, "level": 30}}}}

    def score(text: str) -> float:
        return GRADER.grade(Sample(output_text=text), item).subscores["changes"]

    assert score("dim(area=kitchen, level=30)") == 1.0
    assert score("dim(area=kitchen, level=31)") == 0.5
    assert score("dim(area=kitchen, level=30)\nmode(name=night)") == 0.5
    assert score("on(area=kitchen)\nmode(name=night)\nall_off()") == 0.0


def test_text_around_the_calls_fails_unless_it_is_ignored() -> None:
    item = {"state": {"mode": "night"}}
    text = "Good night!\nmode(name=night)"
    refused = GRADER.grade(Sample(output_text=text), item)
    assert (refused.status, refused.subscores) == (Status.FAILED, {"calls": 0.5, "changes": 1.0})
    ignoring = build({**CONFIG, "surrounding": "ignore"})
    assert ignoring.grade(Sample(output_text=text), item).passed


def test_an_item_may_start_elsewhere_and_bring_devices_of_its_own() -> None:
    grader = build({**CONFIG, "start_reference": "now"})
    item = {
        "now": {"lights": {"attic": {"on": True, "level": 1}}, "mode": "night"},
        "state": {"lights": {"attic": {"on": False}, "living room": {"on": False}}},
    }
    assert grader.grade(Sample(output_text="all_off()"), item).passed
    assert grader.reference(item) == "all_off()"
    assert grader.grade(Sample(output_text=""), {"now": None, "state": None}).passed
    assert grader.grade(Sample(output_text=""), {"state": None}).error_kind == "item"


def test_more_calls_than_the_bound_fail() -> None:
    grade = GRADER.grade(Sample(output_text="weather()\n" * (MAX_CALLS + 1)), {"state": None})
    assert (grade.status, grade.score) == (Status.FAILED, 0.0)


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ("night", "state"),
        ([], "state"),
        ({"modes": "night"}, "state.modes"),
        ({"lights": {"cellar": {"on": True}}}, "state.lights.cellar"),
        ({"lights": {"kitchen": True}}, "state.lights.kitchen"),
        ({"mode": {"name": "night"}}, "state.mode"),
    ],
)
def test_an_item_that_wants_what_cannot_be_is_errored(state: Any, place: str) -> None:
    grade = GRADER.grade(Sample(output_text=""), {"state": state})
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")
    assert grade.error is not None and f"'{place}'" in grade.error
    assert GRADER.reference({"state": state}) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"actions": {}}, "actions"),
        ({"actions": {"1": {}}}, "actions.1"),
        ({"start": []}, "start"),
        ({"reference": "a b"}, "reference"),
        ({"calls_weight": 1}, "calls_weight"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({**CONFIG, **config})
    assert caught.value.path == path
