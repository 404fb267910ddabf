"""A small home as a configuration of `state`, and the same by hand: plain Python on plain dicts."""

import copy
from typing import Any

from hypothesis import strategies as st

from verifiers import build

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
