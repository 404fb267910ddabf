"""Smart-home commands as people say them, with the call each of them means.

The sentence templates are those of the `home-assistant-intents` package, expanded by `hassil`.
What is ours: a small home (rooms, devices, list items), the choice of intents, the short call a
user wants for each (`on(area=kitchen)`), and a filter that keeps only natural wording, since
the templates are written to recognise speech and accept far more than anybody says.

A template here is the wording after all alternatives and optional words are chosen and before the
slots are filled: `turn on the lights in the {area}`. It serves as an episode's `group`, so that a
wording is never split between training and held-out prompts. Nothing is written to disk.
"""

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

from hassil.parse_expression import parse_sentence
from hassil.sample import sample_sentence
from home_assistant_intents import get_intents

Value = str | int

MAX_WORDS = 12

AREAS = ("kitchen", "living room", "bedroom", "bathroom", "office", "hallway", "garage", "attic")
DEVICES = ("desk lamp", "coffee maker", "ceiling fan", "heater", "radio", "christmas tree")
COVERS = ("blinds", "shutters", "shades")
DOORS = ("garage door", "gate", "awning", "roller blind")
ROBOTS = ("robot", "roomba", "robot vacuum")
PLACES = ("london", "new york", "tokyo", "paris", "berlin", "chicago", "madrid", "sydney")
ITEMS = ("milk", "bananas", "olive oil", "toilet paper", "coffee", "eggs", "dog food", "batteries")
LABELS = ("pasta", "pizza", "eggs", "laundry", "tea", "rice")
PERCENTS = (5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 60, 65, 70, 75, 80, 85, 90)
DEGREES = (16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
MINUTES = (2, 3, 5, 7, 8, 10, 12, 15, 20, 25, 30, 40, 45, 50)
HOURS = (2, 3, 4, 5)

# Expansion rules of the package, cut down to what people say. Each stays a subset of the original,
# so that hassil still recognises every sentence.
DIALECT = {
    "the": "the",
    "in": "in",
    "here": "in here",
    "all": "all [the]",
    "light": "(light|lights)",
    "turn": "(turn|switch)",
    "open": "(open|raise) [up]",
    "close": "(close|shut|lower)",
    "what_is": "(what's|what is|tell me)",
    "how_is": "how is",
    "numeric_value_set": "(set|change|turn (up|down))",
}

# Wordings that recognition accepts and nobody says. They are matched against the wording with its
# slots still open.
ODD = tuple(
    re.compile(pattern)
    for pattern in (
        r"[^a-z' {}]",  # degree signs, hyphens, half hours
        r"\b(\w+) \1\b",
        r"\b(deactivate|activate|item|cool|an)\b(?!\})",
        r"^(the|in|on|all|light|brightness)\b|^lights in\b",
        r"^\{(?!area\} lights (on|off)$|minutes\}|hours\})",
        r"\ball (the )?(\{area\} )?light\b",
        r"\bswitch\b.* out\b|\{area\} out$|\{name\} out$| to (on|off|out)\b",
        r"\b(on|off|out|up|down|percent|\}) the \{area\}$",
        r"\b(lights?|brightness) (the|\{)",
        r"\b(minute|hour)( named| called|$)|\b(minutes|hours) timer|\bdegree\b",
        r"\b(the|my) (timer|\{minutes\}|\{hours\})",
        r"\btell me\b.* like\b|\bfor \{place\} like|\bhow is\b.* current\b|\} current\b",
        r"\b(for|in|at) the \{place\}|\bat \{place\}|\b(is|what's|me) \{place\}",
        r"\bin (my |the )?(shopping )?list",
        r"\braise up\b|\bvacuum\b.* vacuum\b",
        r"\b(with|start) (robot|roomba)|\b(vacuum|clean) \{area\}",
    )
)

# A noun needs a determiner in front of its noun phrase ("the kitchen lights", "a 5 minute timer"),
# or the phrase starts the sentence ("lights off in the attic", "timer for 5 minutes").
NOUNS = frozenset(
    {"light", "lights", "temp", "temperature", "brightness", "weather", "timer", "list"}
    | {"{area}", "{name}", "{cover}"}
)
MODIFIERS = frozenset(
    {"{area}", "{minutes}", "{hours}", "{place}", "minute", "hour", "current", "shopping"}
)
DETERMINERS = frozenset({"the", "my", "a", "all"})

# Few-shot turns: a small model follows them far better than a list in the system prompt. They use
# rooms, things and wordings that `sample` never produces.
EXAMPLES = (
    ("it is dark on the porch", "on(area=porch)"),
    ("i want 14 degrees in the cellar", "heat(area=cellar, degrees=14)"),
    ("we are out of sugar", "add(item=sugar)"),
    ("wake me in 6 minutes", "timer(minutes=6)"),
    ("let the sun in through the curtains", "open(cover=curtains)"),
    ("leave the porch dark", "off(area=porch)"),
)


@dataclass(frozen=True)
class Command:
    """One thing a user says and the call it means."""

    sentence: str
    intent: str
    action: str
    arguments: dict[str, Value]
    template: str


@dataclass(frozen=True)
class Slot:
    """How a slot of a template is filled: the argument it becomes and the values of our home."""

    argument: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Source:
    """The templates of one intent that mean one action.

    `combination` is the package's name of a block of templates; `domain` picks among several
    blocks of that name. `slots` maps the package's list names to arguments of the call; lists in
    `words` are only wording ("start the roomba in the attic"): each value makes its own template.
    A wording must contain one of `mentions`, if given: "set the office to 40 percent" alone does
    not say what of the office.
    """

    action: str
    intent: str
    combination: str
    slots: Mapping[str, Slot]
    domain: str | None = None
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mentions: str = ""


@dataclass(frozen=True)
class Template:
    """A wording with open slots such as `{area}`."""

    text: str
    intent: str
    action: str
    slots: tuple[Slot, ...]


_AREA = {"area": Slot("area", AREAS)}
_DEVICE = {"name": Slot("name", DEVICES)}
_COVER = {"cover_classes": Slot("cover", COVERS)}
_DOOR = {"name": Slot("cover", DOORS)}
_LEVEL = {"brightness": Slot("level", PERCENTS)}
_DEGREES = {"temperature": Slot("degrees", DEGREES)}
_MINUTES = {"timer_minutes": Slot("minutes", MINUTES)}
_HOURS = {"timer_hours": Slot("hours", HOURS)}
_TIMER = {"timer_name": Slot("label", LABELS)}
_ITEM = {"shopping_list_item": Slot("item", ITEMS)}
_PLACE = {"name": Slot("place", PLACES)}

SOURCES = (
    Source("on", "HassTurnOn", "area_domain", _AREA, "light"),
    Source("on", "HassTurnOn", "name_only", _DEVICE, "switch"),
    Source("off", "HassTurnOff", "area_domain", _AREA, "light"),
    Source("off", "HassTurnOff", "name_only", _DEVICE, "switch"),
    Source(
        "dim",
        "HassLightSet",
        "area_brightness",
        _AREA | _LEVEL,
        mentions="light|brightness",
    ),
    Source("heat", "HassClimateSetTemperature", "area_temperature", _AREA | _DEGREES),
    Source("heat", "HassClimateSetTemperature", "temperature_only", _DEGREES),
    Source("timer", "HassStartTimer", "minutes_only", _MINUTES),
    Source("timer", "HassStartTimer", "hours_only", _HOURS),
    Source("timer", "HassStartTimer", "name_minutes", _MINUTES | _TIMER),
    Source("add", "HassShoppingListAddItem", "item_only", _ITEM),
    Source("weather", "HassGetWeather", "default", {}),
    Source("weather", "HassGetWeather", "name_only", _PLACE),
    Source("open", "HassTurnOn", "device_class_cover", _COVER),
    Source("open", "HassTurnOn", "area_device_class_cover", _COVER | _AREA),
    Source("open", "HassTurnOn", "name_only", _DOOR, "cover"),
    Source("close", "HassTurnOff", "device_class_cover", _COVER),
    Source("close", "HassTurnOff", "area_device_class_cover", _COVER | _AREA),
    Source("close", "HassTurnOff", "name_only", _DOOR, "cover"),
    Source("vacuum", "HassVacuumCleanArea", "area_only", _AREA),
    Source("vacuum", "HassVacuumCleanArea", "name_area", _AREA, words={"name": ROBOTS}),
)
ACTIONS = tuple(dict.fromkeys(source.action for source in SOURCES))
SYSTEM_PROMPT = f"Answer with one call: {' '.join(ACTIONS)}"


def sample(
    seed: int,
    per_template: int = 2,
    templates_per_action: int = 16,
    actions: Collection[str] | None = None,
) -> list[Command]:
    """Distinct commands in random order; the same arguments always give the same list.

    Each action gets at most `templates_per_action` wordings, each filled at most `per_template`
    times with different values. `actions` keeps only some actions (all of them when None).
    Raises ValueError for an unknown action or a count below one.
    """
    if per_template < 1 or templates_per_action < 1:
        raise ValueError("per_template and templates_per_action must be at least 1")
    known = by_action()
    wanted = known.keys() if actions is None else actions
    unknown = sorted(set(wanted) - known.keys())
    if unknown:
        raise ValueError(f"unknown action: {', '.join(unknown)}")
    commands: dict[str, Command] = {}
    for action in sorted(wanted):
        for text in _choose(known[action], templates_per_action, f"{seed}:{action}"):
            for command in _fill(known[action][text], per_template, f"{seed}:{text}"):
                commands.setdefault(command.sentence, command)
    chosen = list(commands.values())
    random.Random(seed).shuffle(chosen)
    return chosen


def messages(sentence: str) -> list[dict[str, str]]:
    """The conversation in which a model is asked for the call: instruction, examples, sentence."""
    turns = [{"role": "system", "content": SYSTEM_PROMPT}]
    for said, call in EXAMPLES:
        turns += [{"role": "user", "content": said}, {"role": "assistant", "content": call}]
    return [*turns, {"role": "user", "content": sentence}]


def reference(command: Command) -> str:
    """The call as text, `on(area=kitchen)`: what the expert should answer."""
    inside = ", ".join(f"{name}={value}" for name, value in command.arguments.items())
    return f"{command.action}({inside})"


def item(command: Command) -> dict[str, Any]:
    """What the function_call grader compares with: the name and the allowed argument values."""
    arguments = {name: _allowed(name, value) for name, value in command.arguments.items()}
    return {"call": {"name": command.action, "arguments": arguments}}


def _allowed(name: str, value: Value) -> list[Value]:
    """Spellings of one value that do the same thing in the home; the plain one first."""
    if isinstance(value, int):
        return [value, f"{value}%"] if name == "level" else [value]
    spellings = [value, f"the {value}"] if name in ("area", "name", "cover") else [value]
    if " " in value:
        spellings += [value.replace(" ", "_"), value.replace(" ", "")]
    return list(spellings)


@cache
def by_action() -> Mapping[str, Mapping[str, tuple[Template, ...]]]:
    """action -> wording -> its templates (one, or several that differ in the values they take)."""
    grouped: dict[str, dict[str, tuple[Template, ...]]] = {}
    for template in _templates():
        wordings = grouped.setdefault(template.action, {})
        wordings[template.text] = (*wordings.get(template.text, ()), template)
    return grouped


def _templates() -> Iterator[Template]:
    """Every natural wording of every source, in the order of the package's templates."""
    package = get_intents("en")
    if package is None:
        raise RuntimeError("home-assistant-intents has no English templates")
    rules = {
        name: parse_sentence(text) for name, text in (package["expansion_rules"] | DIALECT).items()
    }
    for source in SOURCES:
        texts: dict[str, None] = {}
        for block in package["intents"][source.intent]["data"]:
            if _belongs(block, source):
                texts.update(dict.fromkeys(_expand(block["sentences"], rules, source)))
        for text in texts:
            if natural(text) and re.search(source.mentions, text):
                used = tuple(
                    slot for slot in source.slots.values() if f"{{{slot.argument}}}" in text
                )
                yield Template(text, source.intent, source.action, used)


def _belongs(block: Mapping[str, Any], source: Source) -> bool:
    """Whether a block of the package's templates is the one the source names."""
    if block["metadata"]["slot_combination"] != source.combination:
        return False
    fixed = block.get("slots", {}).get("domain")
    domains = block.get("requires_context", {}).get("domain", [fixed])
    return source.domain is None or source.domain in domains


def _expand(sentences: Sequence[str], rules: Mapping[str, Any], source: Source) -> Iterator[str]:
    """Wordings of the block, with our argument names for slots; those with other slots left out."""
    for sentence in sentences:
        for raw in sample_sentence(parse_sentence(sentence), {}, rules, expand_lists=False):
            lists = re.findall(r"\{(\w+)\}", raw)
            if not set(lists) <= source.slots.keys() | source.words.keys():
                continue
            text = " ".join(raw.split())
            for name, slot in source.slots.items():
                text = text.replace(f"{{{name}}}", f"{{{slot.argument}}}")
            for values in product(*source.words.values()):
                spoken = text
                for name, value in zip(source.words, values, strict=True):
                    spoken = spoken.replace(f"{{{name}}}", value)
                yield spoken


def natural(text: str) -> bool:
    """Whether somebody would say this wording (slots still open): no odd order, no bare noun."""
    if any(pattern.search(text) for pattern in ODD):
        return False
    words = text.split()
    return not any(_is_bare(words, at) for at, word in enumerate(words) if word in NOUNS)


def _is_bare(words: Sequence[str], at: int) -> bool:
    """Whether the noun phrase that ends with words[at] lacks a determiner inside a sentence."""
    if at + 1 < len(words) and words[at + 1] in NOUNS:
        return False  # part of a longer phrase ("the kitchen lights"), judged at its last noun
    first = at
    while first > 0 and words[first - 1] in MODIFIERS:
        first -= 1
    return first > 0 and words[first - 1] not in DETERMINERS


def _choose(wordings: Mapping[str, tuple[Template, ...]], count: int, key: str) -> list[str]:
    """At most `count` wordings, without preference; `key` decides which."""
    return random.Random(key).sample(sorted(wordings), min(count, len(wordings)))


def _fill(templates: Sequence[Template], count: int, key: str) -> Iterator[Command]:
    """At most `count` commands of one wording, with different values; `key` decides which."""
    filled = [
        (template, values)
        for template in templates
        for values in product(*(slot.values for slot in template.slots))
        if _plausible(template, values)
    ]
    for template, values in random.Random(key).sample(filled, min(count, len(filled))):
        names = [slot.argument for slot in template.slots]
        arguments = dict(zip(names, values, strict=True))
        sentence = template.text.format_map(arguments)
        yield Command(sentence, template.intent, template.action, arguments, template.text)


def _plausible(template: Template, values: Sequence[Value]) -> bool:
    """Whether the filled sentence is short enough and turns nothing "up to 5 percent"."""
    arguments = {slot.argument: value for slot, value in zip(template.slots, values, strict=True)}
    words = template.text.format_map(arguments).split()
    for name, middle in (("level", 45), ("degrees", 20)):
        value = arguments.get(name, middle)
        assert isinstance(value, int)
        if ("up" in words and value < middle) or ("down" in words and value > middle):
            return False
    return len(words) <= MAX_WORDS
