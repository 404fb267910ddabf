"""Home Assistant's sentences: their intents as calls, and what they do to a home as states.

The sentences are those of `app.home`, whose templates are Home Assistant's; hassil says which
intent and which values each of them has.
"""

import copy
import json
import random
from functools import cache
from typing import Any

import pytest
from hassil import recognize_all

from app import home
from tests.app.test_home import recogniser
from verifiers import Sample, build

COMMANDS = home.sample(seed=0)
Spoken = dict[str, tuple[Any, str]]


@cache
def readings() -> list[tuple[str, Spoken]]:
    """Return each command's intent and entities, by hassil: their values, and texts as spoken.

    An entity without a text comes from where the sentence is said, not from the sentence.
    """
    intents, slot_lists = recogniser()
    found = []
    for command in COMMANDS:
        results = recognize_all(
            command.sentence,
            intents,
            slot_lists=slot_lists,
            intent_context={"area": "here"},
            language="en",
        )
        one = next(result for result in results if result.intent.name == command.intent)
        entities = {entity.name: (entity.value, entity.text) for entity in one.entities_list}
        found.append((one.intent.name, entities))
    return found


def intent_item(intent: str, entities: Spoken) -> dict[str, Any]:
    """Make the item of an intent: both spellings are right, what is not said may be left out."""
    arguments = {
        name: [value, text] if text else [value, ""] for name, (value, text) in entities.items()
    }
    return {"call": {intent: arguments}}


def spoken(entities: Spoken) -> dict[str, str]:
    """Return the arguments as a model would copy them from the sentence."""
    return {name: text for name, (_, text) in entities.items() if text}


def means(intent: str, entities: Spoken, name: str, arguments: dict[str, str]) -> bool:
    """Compare a call with an intent, naively."""
    right = {key: {f"{value}", text, text + ".0"} for key, (value, text) in entities.items()}
    needed = {key for key, (_, text) in entities.items() if text}
    return (
        name == intent
        and needed <= arguments.keys()
        and all(key in right and value in right[key] for key, value in arguments.items())
    )


def test_every_sentences_own_intent_passes_and_other_intents_fail() -> None:
    grader = build({"type": "function_call"})
    chance = random.Random(0)
    verdicts = []
    for intent, entities in readings():
        item = intent_item(intent, entities)
        others = [(intent, entities), *chance.sample(readings(), 12)]
        for name, others_entities in others:
            arguments = spoken(others_entities)
            text = json.dumps({"name": name, "arguments": arguments})
            passed = grader.grade(Sample(output_text=text), item).passed
            assert passed == means(intent, entities, name, arguments), (item, text)
            verdicts.append(passed)
        values = {name: value for name, (value, _) in entities.items()}
        exact = json.dumps({"name": intent, "arguments": values})
        assert grader.grade(Sample(output_text=exact), item).passed
    assert len(verdicts) > 3000 and sum(verdicts) >= len(COMMANDS)


EVERYWHERE = "everywhere"
PLACES = (EVERYWHERE, *home.AREAS)
COVERS = (*home.COVERS, *home.DOORS)
START: dict[str, Any] = {
    "lights": {area: {"on": area < "g", "level": 100} for area in home.AREAS},
    "devices": {name: name < "g" for name in home.DEVICES},
    "covers": {place: dict.fromkeys(COVERS, "ajar") for place in PLACES},
    "heating": dict.fromkeys(PLACES, 15),
    "timers": {"minutes": [], "hours": [], "labels": []},
    "shopping": ["bread"],
    "vacuumed": [],
}
OPTIONAL = {"optional": True}
PLACE = {"default": EVERYWHERE}


def switch(on: bool) -> dict[str, Any]:
    """Declare the action that switches lights or a device."""
    return {
        "parameters": {"area": OPTIONAL, "name": OPTIONAL},
        "effects": [
            {"op": "set", "path": "lights.{area}.on", "value": on},
            {"op": "set", "path": "devices.{name}", "value": on},
        ],
    }


def move(position: str) -> dict[str, Any]:
    """Declare the action that opens or closes a cover."""
    return {
        "parameters": {"cover": {}, "area": PLACE},
        "effects": [{"op": "set", "path": "covers.{area}.{cover}", "value": position}],
    }


def append(path: str, parameter: str) -> dict[str, Any]:
    """Declare the effect of adding to a list."""
    return {"op": "append", "path": path, "value": f"{{{parameter}}}"}


ACTIONS: dict[str, Any] = {
    "on": switch(True),
    "off": switch(False),
    "open": move("open"),
    "close": move("closed"),
    "dim": {
        "parameters": {"area": {}, "level": {"type": "integer", "minimum": 0, "maximum": 100}},
        "effects": [
            {"op": "set", "path": "lights.{area}.on", "value": True},
            {"op": "set", "path": "lights.{area}.level", "value": "{level}"},
        ],
    },
    "heat": {
        "parameters": {"area": PLACE, "degrees": {"type": "number"}},
        "effects": [{"op": "set", "path": "heating.{area}", "value": "{degrees}"}],
    },
    "timer": {
        "parameters": {
            "minutes": {"type": "integer", **OPTIONAL},
            "hours": {"type": "integer", **OPTIONAL},
            "label": OPTIONAL,
        },
        "effects": [
            append("timers.minutes", "minutes"),
            append("timers.hours", "hours"),
            append("timers.labels", "label"),
        ],
    },
    "add": {"parameters": {"item": {}}, "effects": [append("shopping", "item")]},
    "vacuum": {"parameters": {"area": {}}, "effects": [append("vacuumed", "area")]},
    "weather": {"parameters": {"place": OPTIONAL}},
}
HOME = {"type": "state", "start": START, "actions": ACTIONS, "syntax": "call"}


def after(command: home.Command) -> dict[str, Any]:
    """Carry a command out by hand."""
    state = copy.deepcopy(START)
    arguments: dict[str, Any] = command.arguments
    match command.action:
        case "on" | "off" if "area" in arguments:
            state["lights"][arguments["area"]]["on"] = command.action == "on"
        case "on" | "off":
            state["devices"][arguments["name"]] = command.action == "on"
        case "dim":
            state["lights"][arguments["area"]] = {"on": True, "level": arguments["level"]}
        case "heat":
            state["heating"][arguments.get("area", EVERYWHERE)] = arguments["degrees"]
        case "open" | "close":
            position = {"open": "open", "close": "closed"}[command.action]
            state["covers"][arguments.get("area", EVERYWHERE)][arguments["cover"]] = position
        case "timer":
            for key, value in arguments.items():
                state["timers"]["labels" if key == "label" else key].append(value)
        case "add":
            state["shopping"].append(arguments["item"])
        case "vacuum":
            state["vacuumed"].append(arguments["area"])
    return state


def test_every_command_passes_by_the_state_it_leads_to_and_others_by_theirs() -> None:
    grader = build(HOME)
    chance = random.Random(0)
    for command in COMMANDS:
        item = {"state": after(command)}
        for other in [command, *chance.sample(COMMANDS, 4)]:
            grade = grader.grade(Sample(output_text=home.reference(other)), item)
            assert grade.subscores["calls"] == 1.0
            assert grade.passed == (after(other) == after(command)), (command, other)


def test_every_command_has_a_reference_that_does_the_same() -> None:
    grader = build(HOME)
    for command in COMMANDS:
        item = {"state": after(command)}
        text = grader.reference(item)
        assert text is not None
        assert grader.grade(Sample(output_text=text), item).passed
        if after(command) != START:
            assert text.split("(")[0] == command.action or command.action == "dim"


def test_where_nothing_must_change_the_calls_that_change_something_fail() -> None:
    grader = build(HOME)
    for command in COMMANDS:
        grade = grader.grade(Sample(output_text=home.reference(command)), {"state": None})
        assert grade.passed == (after(command) == START)


def test_two_commands_at_once_are_two_calls_in_any_order() -> None:
    grader = build({"type": "function_call", "syntax": "call", "calls": "any_order"})
    chance = random.Random(1)
    for _ in range(200):
        one, two = chance.sample(COMMANDS, 2)
        item = {"call": [home.item(one)["call"], home.item(two)["call"]]}
        both = f"{home.reference(two)}\n{home.reference(one)}"
        assert grader.grade(Sample(output_text=both), item).passed
        alone = grader.grade(Sample(output_text=home.reference(one)), item)
        assert not alone.passed and alone.score == pytest.approx(2 / 3)
