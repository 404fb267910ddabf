"""`state` against a home written by hand: the same actions, as plain Python on plain dicts."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import Grade, GraderConfigError, Sample, Status, ToolCall, build
from verifiers.calls import MAX_CALLS, write_calls

START: dict[str, Any] = {
    "lights": {"kitchen": {"on": False, "level": 100}, "living room": {"on": True, "level": 40}},
    "heating": {"degrees": 20.5},
    "list": ["milk", "eggs"],
    "mode": "day",
}
AREA = {"aliases": {"lounge": "living room", "the kitchen": "kitchen"}}
LEVEL = {"type": "integer", "minimum": 0, "maximum": 100}
STEP = {"type": "number", "minimum": 0, "default": 1}
ACTIONS: dict[str, Any] = {
    "on": {
        "parameters": {"area": AREA},
        "effects": [{"op": "set", "path": "lights.{area}.on", "value": True}],
    },
    "all_off": {"effects": [{"op": "set", "path": "lights.*.on", "value": False}]},
    "flip": {
        "parameters": {"area": AREA},
        "effects": [{"op": "toggle", "path": "lights.{area}.on"}],
    },
    "dim": {
        "parameters": {"area": AREA, "level": LEVEL},
        "effects": [
            {"op": "set", "path": "lights.{area}.on", "value": True},
            {"op": "set", "path": "lights.{area}.level", "value": "{level}"},
        ],
    },
    "warmer": {
        "parameters": {"by": STEP},
        "effects": [{"op": "increment", "path": "heating.degrees", "value": "{by}", "maximum": 25}],
    },
    "colder": {
        "parameters": {"by": STEP},
        "effects": [{"op": "decrement", "path": "heating.degrees", "value": "{by}", "minimum": 5}],
    },
    "add": {
        "parameters": {"item": {}},
        "effects": [{"op": "append", "path": "list", "value": "{item}"}],
    },
    "drop": {
        "parameters": {"item": {}},
        "effects": [{"op": "remove", "path": "list", "value": "{item}"}],
    },
    "mode": {
        "parameters": {"name": {"values": ["day", "night"], "aliases": {"evening": "night"}}},
        "effects": [{"op": "set", "path": "mode", "value": "{name}"}],
    },
    "weather": {"parameters": {"place": {"optional": True}}},
}
CONFIG = {"type": "state", "start": START, "actions": ACTIONS, "syntax": "call"}
GRADER = build(CONFIG)

Call = tuple[str, dict[str, Any]]


def by_hand(state: dict[str, Any], name: str, arguments: dict[str, Any]) -> None:
    """Carry a valid call out."""
    light = state["lights"].get(arguments.get("area"))
    match name:
        case "on":
            light["on"] = True
        case "all_off":
            for one in state["lights"].values():
                one["on"] = False
        case "flip":
            light["on"] = not light["on"]
        case "dim":
            light.update(on=True, level=arguments["level"])
        case "warmer":
            state["heating"]["degrees"] = min(25, state["heating"]["degrees"] + arguments["by"])
        case "colder":
            state["heating"]["degrees"] = max(5, state["heating"]["degrees"] - arguments["by"])
        case "add":
            state["list"].append(arguments["item"])
        case "drop":
            if arguments["item"] in state["list"]:
                state["list"].remove(arguments["item"])
        case "mode":
            state["mode"] = arguments["name"]


def after(calls: list[Call]) -> dict[str, Any]:
    """Return the state after calls."""
    state = copy.deepcopy(START)
    for name, arguments in calls:
        by_hand(state, name, arguments)
    return state


def values(state: dict[str, Any], place: str = "") -> dict[str, Any]:
    """List a state's values by their places."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        here = f"{place}/{key}"
        found.update(values(value, here) if isinstance(value, dict) else {here: value})
    return found


AREAS = st.sampled_from(["kitchen", "living room"])
GOODS = st.sampled_from(["milk", "eggs", "tea"])
CALL: st.SearchStrategy[Call] = st.one_of(
    st.tuples(st.sampled_from(["on", "flip"]), st.fixed_dictionaries({"area": AREAS})),
    st.tuples(
        st.just("dim"), st.fixed_dictionaries({"area": AREAS, "level": st.sampled_from([0, 40])})
    ),
    st.tuples(
        st.sampled_from(["warmer", "colder"]),
        st.fixed_dictionaries({"by": st.sampled_from([0.5, 2, 30])}),
    ),
    st.tuples(st.sampled_from(["add", "drop"]), st.fixed_dictionaries({"item": GOODS})),
    st.tuples(st.just("mode"), st.fixed_dictionaries({"name": st.sampled_from(["day", "night"])})),
    st.tuples(st.sampled_from(["all_off", "weather"]), st.just({})),
)
CALLS = st.lists(CALL, max_size=4)


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
    assert build({**CONFIG, "syntax": "tools"}).reference({"state": {"mode": "night"}}) is None


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
        "on(area=['kitchen'])",
        "on(area=lights)",
        "dim(area=kitchen, level=101)",
        "dim(area=kitchen, level=30.5)",
        "dim(area=kitchen, level=true)",
        "dim(area=kitchen, level=thirty)",
        "mode(name=party)",
        "warmer(by=-1)",
        "on(area=kitchen",
        "on(area=kitchen, area=kitchen)",
    ],
)
def test_an_invalid_call_changes_nothing_and_never_passes(text: str) -> None:
    nothing = GRADER.grade(Sample(output_text=text), {"state": None})
    assert (nothing.status, nothing.subscores) == (Status.FAILED, {"calls": 0.0, "changes": 1.0})
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
