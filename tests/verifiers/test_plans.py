"""The calls that are found for a wanted state."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.small_home import CALLS, CONFIG, GRADER, Call, after
from verifiers import Sample, build


@given(CALLS, st.sampled_from(["json", "call"]))
def test_a_reference_passes_and_is_found_wherever_nothing_was_dropped(
    calls: list[Call], syntax: str
) -> None:
    grader, item = build({**CONFIG, "syntax": syntax}), {"state": after(calls)}
    text = grader.reference(item)
    if all(name != "drop" for name, _ in calls):
        assert text is not None
    if text is not None:
        assert grader.grade(Sample(output_text=text), item).score == 1.0


def test_the_reference_of_one_action_is_that_action() -> None:
    def reference(**changes: Any) -> str | None:
        return GRADER.reference({"state": changes})

    assert reference(lights={"kitchen": {"on": True}}) == "on(area=kitchen)"
    assert reference(lights={"kitchen": {"on": True, "level": 30}}) == "dim(area=kitchen, level=30)"
    assert reference(lights={"living room": {"on": False}}) == "all_off()"
    assert reference(heating={"degrees": 22.8}) == "warmer(by=2.3)"
    assert reference(list=["eggs"]) == "drop(item=milk)"
    assert reference(mode="night") == "mode(name=night)"
    assert reference() == GRADER.reference({"state": None}) == "none"
    assert reference(mode="holiday") is None
    assert reference(heating={"degrees": 99}) is None
    assert reference(heating={"degrees": "hot"}) is None
    assert reference(heating={"degrees": 10**400}) is None
    assert reference(list="long") is None
    assert build({**CONFIG, "syntax": "tools"}).reference({"state": {"mode": "night"}}) is None


def test_a_call_that_needs_more_than_the_wanted_state_says_has_no_reference() -> None:
    actions = {
        "say": {
            "parameters": {"where": {}, "text": {}, "voice": {}},
            "effects": [
                {"op": "set", "path": "said.{where}", "value": "{text}"},
                {"op": "set", "path": "spoken.{where}", "value": "{voice}"},
            ],
        }
    }
    start = {"said": {"hall": "", "attic": ""}, "spoken": {"hall": "low"}}
    grader = build({"type": "state", "start": start, "actions": actions, "syntax": "call"})
    hall = {"state": {"said": {"hall": "hello"}}}
    assert grader.reference(hall) == "say(where=hall, text=hello, voice=low)"
    assert grader.reference({"state": {"said": {"attic": "hello"}}}) is None
