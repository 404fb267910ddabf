"""The sampled commands: checked with hassil's recogniser, and read the way a grader reads them."""

import re
from functools import cache

import pytest
from hassil import Intents, TextSlotList, recognize_all
from home_assistant_intents import get_intents
from hypothesis import given, settings
from hypothesis import strategies as st

from app import home
from app.night.gate import is_held_out
from verifiers import Sample, build
from verifiers.calls import read_call
from verifiers.readings import Shape

COMMANDS = home.sample(seed=0)


@cache
def recogniser() -> tuple[Intents, dict[str, TextSlotList]]:
    """The package's own, uncut templates with the names of our home."""
    domains = {
        "switch": home.DEVICES,
        "cover": home.DOORS,
        "vacuum": home.ROBOTS,
        "weather": home.PLACES,
    }
    names = [
        (name, name, {"domain": domain}) for domain, values in domains.items() for name in values
    ]
    package = get_intents("en")
    assert package is not None
    slot_lists = {
        "area": TextSlotList.from_strings(home.AREAS),
        "name": TextSlotList.from_tuples(names),
        "floor": TextSlotList.from_strings([]),
    }
    return Intents.from_dict(package), slot_lists


def plain(value: object) -> str:
    """A value as comparable text: hassil gives 22.0 for "22" and "blind" for "blinds"."""
    return f"{value:g}" if isinstance(value, int | float) else str(value).rstrip("s")


def recognised(command: home.Command) -> list[tuple[str, set[str]]]:
    """Every reading hassil finds: the intent and the values that the sentence itself gives."""
    intents, slot_lists = recogniser()
    results = recognize_all(
        command.sentence,
        intents,
        slot_lists=slot_lists,
        intent_context={"area": "here"},
        language="en",
    )
    return [
        (result.intent.name, {plain(entity.value) for entity in result.entities_list})
        for result in results
    ]


def test_the_same_seed_gives_the_same_commands() -> None:
    assert home.sample(seed=0) == COMMANDS
    assert home.sample(seed=1) != COMMANDS


def test_an_action_draws_the_same_commands_whatever_else_is_sampled() -> None:
    alone = home.sample(seed=0, actions=["timer"])
    among = [command for command in COMMANDS if command.action == "timer"]
    assert {command.sentence for command in alone} == {command.sentence for command in among}


def test_there_are_enough_sentences_wordings_and_intents() -> None:
    assert 250 <= len(COMMANDS) <= 350
    assert len({command.template for command in COMMANDS}) >= 100
    assert len({command.intent for command in COMMANDS}) >= 8


def test_no_action_dominates() -> None:
    counts = [sum(c.action == action for c in COMMANDS) for action in home.by_action()]
    assert min(counts) >= 9
    assert max(counts) <= 40


@given(seed=st.integers(0, 2**32), per_template=st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_no_sentence_occurs_twice(seed: int, per_template: int) -> None:
    sentences = [command.sentence for command in home.sample(seed, per_template)]
    assert len(sentences) == len(set(sentences))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_every_argument_is_spoken_in_the_sentence(seed: int) -> None:
    for command in home.sample(seed):
        for value in command.arguments.values():
            assert re.search(rf"\b{re.escape(str(value))}\b", command.sentence), command


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_sentences_are_short_plain_lowercase(seed: int) -> None:
    for command in home.sample(seed):
        assert re.fullmatch(r"[a-z0-9']+( [a-z0-9']+)*", command.sentence), command
        assert len(command.sentence.split()) <= home.MAX_WORDS


def test_a_template_is_its_sentence_with_the_slots_open() -> None:
    for command in COMMANDS:
        assert command.template.format_map(command.arguments) == command.sentence


def test_a_wording_means_one_action_only() -> None:
    wordings = [text for group in home.by_action().values() for text in group]
    assert len(wordings) == len(set(wordings))


def test_hassil_recognises_each_command_with_its_intent_and_values() -> None:
    for command in COMMANDS:
        readings = recognised(command)
        wanted = {plain(value) for value in command.arguments.values()}
        assert any(intent == command.intent and wanted <= values for intent, values in readings), (
            command,
            readings,
        )


@pytest.mark.parametrize("fraction", [0.2, 0.25])
def test_a_split_by_template_keeps_templates_apart_and_shows_both_sides_every_action(
    fraction: float,
) -> None:
    commands = home.sample(seed=4)
    held = [c for c in commands if is_held_out("group", c.template, fraction, "home")]
    training = [c for c in commands if not is_held_out("group", c.template, fraction, "home")]
    assert len(held) >= 48
    assert not {c.template for c in held} & {c.template for c in training}
    assert {c.action for c in held} == {c.action for c in training} == set(home.by_action())
    assert {c.intent for c in held} == {c.intent for c in training}


@pytest.mark.parametrize(
    "text",
    [
        "turn on lights in the {area}",
        "turn the lights on the {area}",
        "set the {area} brightness {level} degree",
        "tell me the weather like in {place}",
        "turn the {name} to on",
        "set {minutes} minute timer",
        "put {item} in my list",
        "clean {area} with the robot",
    ],
)
def test_odd_wording_is_rejected(text: str) -> None:
    assert not home.natural(text)


@pytest.mark.parametrize(
    "text",
    [
        "turn on the {area} lights",
        "{area} lights off",
        "timer for {minutes} minutes",
        "what's the weather like in {place}",
        "put {item} on the list",
        "turn the lights off in the {area}",
    ],
)
def test_plain_wording_is_kept(text: str) -> None:
    assert home.natural(text)


def test_nothing_is_turned_up_to_a_low_value_or_down_to_a_high_one() -> None:
    for command in home.sample(seed=3, per_template=50, templates_per_action=100):
        words = command.sentence.split()
        level, degrees = command.arguments.get("level"), command.arguments.get("degrees")
        if "up" in words:
            assert level is None or int(level) >= 45
            assert degrees is None or int(degrees) >= 20
        if "down" in words:
            assert level is None or int(level) <= 45
            assert degrees is None or int(degrees) <= 20


def test_the_reference_is_the_call_with_its_arguments_in_order() -> None:
    arguments: dict[str, home.Value] = {"area": "living room", "level": 40}
    command = home.Command("", "HassLightSet", "dim", arguments, "")
    assert home.reference(command) == "dim(area=living room, level=40)"
    assert home.reference(home.Command("", "HassGetWeather", "weather", {}, "")) == "weather()"


def test_the_item_allows_the_reference_values_first_and_harmless_spellings() -> None:
    arguments: dict[str, home.Value] = {"area": "living room", "level": 40}
    command = home.Command("", "HassLightSet", "dim", arguments, "")
    assert home.item(command) == {
        "call": {
            "name": "dim",
            "arguments": {
                "area": ["living room", "the living room", "living_room", "livingroom"],
                "level": [40, "40%"],
            },
        }
    }


def test_no_value_could_break_the_call_syntax() -> None:
    for command in home.sample(seed=0, per_template=50, templates_per_action=100):
        for value in command.arguments.values():
            assert re.fullmatch(r"[a-z0-9]+( [a-z0-9]+)*", str(value))


def test_the_system_prompt_names_every_action_once() -> None:
    assert home.SYSTEM_PROMPT.split(": ")[1].split() == list(home.by_action())


def test_a_conversation_is_instruction_then_examples_then_the_sentence() -> None:
    turns = home.messages("turn on the heater")
    assert turns[0] == {"role": "system", "content": home.SYSTEM_PROMPT}
    assert turns[-1] == {"role": "user", "content": "turn on the heater"}
    roles = [turn["role"] for turn in turns[1:]]
    assert roles == ["user", "assistant"] * len(home.EXAMPLES) + ["user"]
    assert [turn["content"] for turn in turns[1:-1]] == [text for e in home.EXAMPLES for text in e]


def test_the_examples_are_right_calls_with_the_arguments_their_action_takes() -> None:
    for _, call in home.EXAMPLES:
        reading = read_call(Sample(output_text=call), "call", ignore_surrounding=False)
        assert reading is not None
        assert reading.shape is Shape.WHOLE
        templates = [t for group in home.by_action()[reading.name].values() for t in group]
        known = {slot.argument for template in templates for slot in template.slots}
        assert {key for key, _ in reading.arguments} <= known


def test_the_examples_share_no_wording_or_value_with_the_commands() -> None:
    patterns = [
        re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(text)))
        for wordings in home.by_action().values()
        for text in wordings
    ]
    values = {str(v) for c in home.sample(0, 50, 100) for v in c.arguments.values()}
    assert len(home.EXAMPLES) >= 4
    for sentence, call in home.EXAMPLES:
        assert not any(pattern.fullmatch(sentence) for pattern in patterns)
        assert not set(re.findall(r"=([^,)]+)", call)) & values


def test_the_grader_passes_every_reference_and_reads_a_command_from_it() -> None:
    grader = build({"type": "function_call", "syntax": "call"})
    for command in COMMANDS:
        right = grader.grade(Sample(output_text=home.reference(command)), home.item(command))
        assert right.passed, command
        assert grader.reference(home.item(command)) == home.reference(command)


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="unknown action: fly"):
        home.sample(seed=0, actions=["fly"])
    with pytest.raises(ValueError, match="at least 1"):
        home.sample(seed=0, per_template=0)
