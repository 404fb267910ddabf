"""Calls on a model of devices: what they may say, what they do, and declarations that are wrong."""

import json
from typing import Any

import pytest

from tests.verifiers.small_home import CONFIG, GRADER, LEVEL, Call, after
from verifiers import GraderConfigError, Sample, Status, build


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("on(area=the kitchen)", ("on", {"area": "kitchen"})),
        ("on(area=KITCHEN)", ("on", {"area": "kitchen"})),
        ("flip(area=Lounge)", ("flip", {"area": "living room"})),
        ("dim(area=kitchen, level='30')", ("dim", {"area": "kitchen", "level": 30})),
        ("dim(area=kitchen, level=30.0)", ("dim", {"area": "kitchen", "level": 30})),
        ("mode(name=Evening)", ("mode", {"name": "night"})),
        ("warmer()", ("warmer", {"by": 1})),
        ("weather(place=oslo)", ("weather", {})),
    ],
)
def test_arguments_may_be_spelled_in_other_ways(text: str, same_as: Call) -> None:
    grade = GRADER.grade(Sample(output_text=text), {"state": after([same_as])})
    assert grade.passed


@pytest.mark.parametrize(
    "text",
    [
        "fly(area=kitchen)",
        "on()",
        "on(area=cellar)",
        "on(area=kitchen, level=3)",
        "on(area=lights)",
        "dim(area=kitchen, level=101)",
        "dim(area=kitchen, level=30.5)",
        "dim(area=kitchen, level=true)",
        "dim(area=kitchen, level=thirty)",
        "mode(name=party)",
        "warmer(by=-1)",
    ],
)
def test_an_invalid_call_changes_nothing_and_never_passes(text: str) -> None:
    nothing = GRADER.grade(Sample(output_text=text), {"state": None})
    assert (nothing.status, nothing.subscores) == (Status.FAILED, {"calls": 0.0, "changes": 1.0})
    assert_it_does_not_count_beside_another(text)


@pytest.mark.parametrize(
    "text",
    ["on(area=['kitchen'])", "on(area=kitchen", "on(area=kitchen, area=kitchen)"],
)
def test_a_broken_call_is_an_attempt_where_nothing_is_to_change(text: str) -> None:
    nothing = GRADER.grade(Sample(output_text=text), {"state": None})
    assert (nothing.status, nothing.score) == (Status.FAILED, 0.0)
    assert nothing.subscores == {"calls": 0.0, "changes": 0.0}
    assert_it_does_not_count_beside_another(text)


def assert_it_does_not_count_beside_another(text: str) -> None:
    wanted = {"state": {"mode": "night"}}
    first = GRADER.grade(Sample(output_text=f"mode(name=night)\n{text}"), wanted)
    assert (first.status, first.subscores) == (Status.FAILED, {"calls": 0.5, "changes": 1.0})


def test_effects_happen_in_order_and_all_or_none_of_them() -> None:
    actions = {
        "both": {
            "parameters": {"key": {}},
            "effects": [
                {"op": "set", "path": "a", "value": 5},
                {"op": "increment", "path": "a", "value": 1},
                {"op": "toggle", "path": "switches.{key}"},
            ],
        }
    }
    start = {"a": 0, "switches": {"good": False, "bad": "stuck"}}
    grader = build({"type": "state", "start": start, "actions": actions, "syntax": "call"})
    done = {"state": {"a": 6, "switches": {"good": True}}}
    assert grader.grade(Sample(output_text="both(key=good)"), done).passed
    undone = grader.grade(Sample(output_text="both(key=bad)"), {"state": {}})
    assert undone.subscores == {"calls": 0.0, "changes": 1.0}


def test_an_effect_with_an_argument_that_is_left_out_does_not_happen() -> None:
    optional = {"optional": True}
    actions = {
        "on": {
            "parameters": {"area": optional, "name": optional},
            "effects": [
                {"op": "set", "path": "lights.{area}", "value": True},
                {"op": "set", "path": "plugs.{name}", "value": True},
            ],
        }
    }
    start = {"lights": {"attic": False}, "plugs": {"radio": False}}
    grader = build({"type": "state", "start": start, "actions": actions, "syntax": "call"})
    radio = {"state": {"plugs": {"radio": True}}}
    assert grader.grade(Sample(output_text="on(name=radio)"), radio).passed
    assert grader.reference(radio) == "on(name=radio)"
    assert grader.grade(Sample(output_text="on()"), radio).subscores["calls"] == 0.0


def test_a_key_that_could_be_two_is_named_only_as_it_stands() -> None:
    actions = {
        "on": {
            "parameters": {"a": {}},
            "effects": [{"op": "set", "path": "{a}", "value": True}],
        }
    }
    start = {"Bed": False, "bed": False, "5": False}
    grader = build({"type": "state", "start": start, "actions": actions, "syntax": "call"})
    assert grader.grade(Sample(output_text="on(a=Bed)"), {"state": {"Bed": True}}).passed
    assert grader.grade(Sample(output_text="on(a=bed)"), {"state": {"bed": True}}).passed
    assert grader.grade(Sample(output_text="on(a=BED)"), {"state": {}}).subscores["calls"] == 0.0
    assert grader.grade(Sample(output_text="on(a=5)"), {"state": {"5": True}}).passed


@pytest.mark.parametrize(
    ("effect", "place"),
    [
        ({"op": "explode", "path": "mode"}, "op"),
        ({"op": "set", "path": "mode"}, "value"),
        ({"op": "set", "path": "a..b", "value": 1}, "path"),
        ({"op": "set", "path": "a{b}", "value": 1}, "path"),
        ({"op": "set", "path": "mood", "value": 1}, "path"),
        ({"op": "set", "path": "lights", "value": 1}, "path"),
        ({"op": "set", "path": "lights.{b}.up", "value": 1}, "path"),
        ({"op": "set", "path": "mode", "value": {}}, "value"),
        ({"op": "set", "path": "mode", "value": "a{b}"}, "value"),
        ({"op": "set", "path": "mode", "value": "{c}"}, ""),
        ({"op": "toggle", "path": "lights.{c}.on"}, ""),
        ({"op": "toggle", "path": "mode", "value": 1}, "value"),
        ({"op": "increment", "path": "mode", "value": "1"}, "value"),
        ({"op": "decrement", "path": "mode", "value": "{b}"}, "value"),
    ],
    ids=json.dumps,
)
def test_a_wrong_effect_is_refused_with_its_place(effect: dict[str, Any], place: str) -> None:
    action = {"parameters": {"b": {}}, "effects": [effect]}
    with pytest.raises(GraderConfigError) as caught:
        build({**CONFIG, "actions": {"act": action}})
    assert caught.value.path == f"actions.act.effects.0.{place}".rstrip(".")


@pytest.mark.parametrize(
    ("parameter", "place"),
    [
        ({"values": [1]}, ""),
        ({"values": []}, "values"),
        ({"values": ["x"], "default": "y"}, ""),
        ({"values": ["x"], "aliases": {"z": "y"}}, ""),
        ({**LEVEL, "aliases": {"full": 101}}, ""),
        ({"type": "boolean", "default": 1}, ""),
        ({"type": "text"}, "type"),
    ],
    ids=json.dumps,
)
def test_a_wrong_parameter_is_refused_with_its_place(parameter: dict[str, Any], place: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({**CONFIG, "actions": {"act": {"parameters": {"a": parameter}}}})
    assert caught.value.path == f"actions.act.parameters.a.{place}".rstrip(".")
