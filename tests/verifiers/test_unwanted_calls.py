"""Where nothing may be called: no disguise of a call passes, and prose does."""

import re
from functools import cache
from typing import Any

import pytest
from home_assistant_intents import get_intents
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers import disguises
from tests.verifiers.disguises import NAMES, VALUES
from verifiers import Grade, Sample, ToolCall, build

TEXT_SYNTAXES = st.sampled_from(["json", "call"])


def switch(name: str, syntax: str) -> dict[str, Any]:
    """Configure a home with one action."""
    return {
        "type": "state",
        "start": {"lights": {"hall": True}},
        "actions": {
            name: {
                "parameters": {"area": {}},
                "effects": [{"op": "set", "path": "lights.{area}", "value": False}],
            }
        },
        "syntax": syntax,
    }


def grades(text: str, name: str, syntax: str) -> list[Grade]:
    """Grade a text where nothing may be called, by graders that know the name."""
    function_call = {"type": "function_call", "syntax": syntax, "functions": [name]}
    configs = (function_call, switch(name, syntax))
    sample, item = Sample(output_text=text), {"call": None, "state": None}
    return [build(config).grade(sample, item) for config in configs]


def unknown(text: str, syntax: str) -> Grade:
    """Grade a text where nothing may be called and no function is known."""
    config = {"type": "function_call", "syntax": syntax}
    return build(config).grade(Sample(output_text=text), {"call": None})


@given(NAMES, TEXT_SYNTAXES, st.data())
def test_no_disguise_of_a_call_by_a_known_name_passes(
    name: str, syntax: str, data: st.DataObject
) -> None:
    kinds = (disguises.objects, disguises.calls, disguises.known_calls)
    text = data.draw(data.draw(st.sampled_from(kinds))(name))
    called, state = grades(data.draw(disguises.masked(text)), name, syntax)
    assert not called.passed and called.score == 0.0
    assert not state.passed


@given(NAMES, TEXT_SYNTAXES, st.data())
def test_no_disguise_of_an_object_or_call_passes_where_no_name_is_known(
    name: str, syntax: str, data: st.DataObject
) -> None:
    text = data.draw(data.draw(st.sampled_from((disguises.objects, disguises.calls)))(name))
    assert unknown(data.draw(disguises.masked(text)), syntax).score == 0.0


FOUND = [
    '{"name":off, "arguments":{}}',
    "{name:off, arguments:{area:hall}}",
    '{"Name": "off", "Arguments": {}}',
    '{"na\u200bme": "off", "arguments": {}}',
    '{"name": "\\u006fff", "arguments": {"a":',
    '{"name": """off""", "arguments": {}}',
    '{"name": /* so */ "off", "arguments": {}}',
    '{"a": "{\\"name\\": \\"off\\", \\"arguments\\": {}}"}',
    '{"tool":"off","args":{"area":"hall"}}',
    "{'name': 'o\\'ff', 'arguments': {}}",
    '{"name": "off", "arguments": {"area": "hall"}}',
    *("none off(hall)", "off ('hall')", 'off(r"hall")', "off(area: 'hall')", "off(f'hall')"),
    *('off(["hall"])', "off(1)", "off(**{'area': 'hall'})", "off[area=hall]", "off(area=hall)"),
    *("off\uff08hall\uff09", "<tool_call>off</tool_call>", "<function=off></function>"),
    *('[TOOL_CALLS]off[ARGS]{"area": "hall"}', "<|tool_call_start|>[off(area='hall')]"),
    *("<start_function_call>call:off{area:hall}", "Action: off\nAction Input: hall"),
    *('<invoke name="off">', "<\uff5ctool\u2581calls\u2581begin\uff5c>off"),
]


@pytest.mark.parametrize("syntax", ["json", "call"])
@pytest.mark.parametrize("text", FOUND)
def test_what_a_tester_hid_is_seen_in_either_syntax_whether_names_are_known(
    text: str, syntax: str
) -> None:
    called, state = grades(text, "off", syntax)
    assert called.score == 0.0 and not called.passed and not state.passed
    # What is whole in the documented form is graded by what it changes; nothing else gains more.
    assert state.score is not None and state.score <= 0.1
    assert not unknown(text, syntax).passed


@pytest.mark.parametrize(
    "text",
    [
        *("{off: {area: hall}}", "off (hall)", "none; off ('hall')", "off {area: hall}"),
        *('{"do": "off", "where": "hall"}', '<off area="hall"/>', "Action: off", "off<hall>"),
        *("off (1)", "off!(hall)", "off?.(hall)", "(off)(hall)", '["off", {"area": "hall"}]'),
        *('{"name": "o" + "ff"}', "{'do' = 'off'}", 'off ([1, "x"])', "so off (**{'a': 1})"),
        *("off.call(hall)", 'call("off", 1)', '{"off": ["hall"]}', "- off = {hall}"),
    ],
)
def test_more_forms_are_seen_where_the_name_is_known(text: str) -> None:
    assert [grade.score for grade in grades(text, "off", "call")] == [0.0, 0.0]


@pytest.mark.parametrize("syntax", ["json", "call"])
@pytest.mark.parametrize(
    "text",
    [
        *('{"off": {"area": "hall"}}', '```json\n{"off": {"area": "hall"}}\n```'),
        *('{"action": "off", "area": "hall"}', '{"service": "off", "entity": "light.hall"}'),
        *('{"intent": "off"}', '{"type": "function", "function": {"name": "off"}}'),
        "name: off\narguments:\n  area: hall",
    ],
)
def test_structures_of_calls_are_seen_where_no_name_is_known(text: str, syntax: str) -> None:
    assert not unknown(text, syntax).passed


@pytest.mark.parametrize("syntax", ["json", "call"])
@pytest.mark.parametrize(
    ("text", "is_call"),
    [
        ("turn_off hall", True),
        ("turn_off: hall", True),
        ("I will do it:\n- turn_off hall", True),
        ("I did not use turn_off.", False),
        ("There is nothing_known to do.", False),
    ],
)
def test_a_line_that_begins_with_a_known_name_is_a_call_if_it_is_no_word_of_prose(
    text: str, is_call: bool, syntax: str
) -> None:
    assert [not grade.passed for grade in grades(text, "turn_off", syntax)] == [is_call] * 2


@pytest.mark.parametrize("text", ["f(x) is O(n)", "sin (x)", '{"tool": "none", "args": 1}'])
def test_where_no_name_is_known_mathematics_and_the_name_of_nothing_are_no_calls(text: str) -> None:
    assert unknown(text, "json").passed


def test_a_text_beside_tool_calls_holds_calls_as_objects_or_with_markers_only() -> None:
    for text, passes in (
        ("I turned nothing off (really).", True),
        ("off(area=hall)", True),
        ("{name: off, arguments: {}}", False),
        ("<|tool_call|>off", False),
    ):
        assert [one.passed for one in grades(text, "off", "tools")] == [passes, passes]
    tools = (ToolCall(name="off", arguments={}),)
    sample = Sample(output_text="", output_tools=tools)
    assert (
        not build({"type": "function_call", "syntax": "tools"}).grade(sample, {"call": None}).passed
    )


@given(TEXT_SYNTAXES, st.sampled_from(["hall", "attic"]))
def test_a_call_that_changes_nothing_passes_a_state_unless_another_is_hidden_beside(
    syntax: str, area: str
) -> None:
    config = {**switch("off", syntax), "start": {"lights": {"hall": False, "attic": False}}}
    written = {
        "call": f"off(area={area})",
        "json": f'{{"name": "off", "arguments": {{"area": "{area}"}}}}',
    }
    config["surrounding"] = "ignore"
    grader = build(config)
    for beside, passes in (("", True), ("It was off (really).", True), ("so off[hall]", False)):
        text = f"{written[syntax]}\n{beside}"
        assert grader.grade(Sample(output_text=text), {"state": None}).passed == passes


PROSE = """I turned nothing off (the hall is already dark).
I turned nothing off (the hall is dark).
The light (hall) is off.
It is off.
Off (as you asked).
Off.
The light(s) are off; see (a) and (b).
The {area} is {state}.
It is off (note: someone is there).
Status: off
The hall: off, the den: on.
- hall: off
- den: on (dim)
Lights: on (2), off (3 of 5).
It is 20 °C (68 °F) at 12:30 (or 12:45).
I left it off (see https://example.org/a?b=c).
[off](https://example.org) says so [1].
"Off" is what it says (I checked).
Nothing to turn off (everything is off), so I did nothing...
Sorry, I cannot do that (yet).
Shall I switch it off? (You can say no.)
I do not know a device named "attic" (did you mean the office?).
You're welcome :) Anything else?
1) It was on; 2) now it is off.
Ich habe nichts ausgeschaltet (der Flur ist schon dunkel).
Rien n'est éteint : « off » (comme demandé).
客厅的灯（主灯）已经关了。
The fan's speed is 3/5, i.e. 60 % (medium); it's never off...
Its mode = off, I think.
x < 5 & y > 3
The result is 10 - 3 = 7 (seven).
No function fits, so none is called.
I left everything off ([Hall] is empty).
Turn it off: (1) press; (2) hold.
The switch: off (0) or open (1).
"off" (noun): not on.
"off" (noun)
{"answer": "The hall is dark."}
Say "turn off" to me (or "off").
The door is open(ed) and the timer(s) run."""
WRITTEN = PROSE.split("\n")


@cache
def responses() -> list[str]:
    """Return what Home Assistant answers, each branch of its templates as a sentence."""
    package = get_intents("en")
    assert package is not None
    answers = package["responses"]
    templates = [*answers["errors"].values()]
    templates += [text for texts in answers["intents"].values() for text in texts.values()]
    found: set[str] = set()
    for template in templates:
        filled = re.sub(r"\{\{.*?\}\}", "the hall light", template, flags=re.DOTALL)
        branches = re.split(r"\{[%#].*?[%#]\}", filled, flags=re.DOTALL)
        found |= {" ".join(branch.split()) for branch in branches}
    return sorted(found - {""})


def test_what_home_assistant_answers_is_no_call_of_its_own_functions() -> None:
    intents = [*get_intents("en")["intents"], "on", "off", "open", "close", "timer", "light"]
    assert len(responses()) > 100
    for syntax in ("json", "call", "tools"):
        config = {"type": "function_call", "syntax": syntax, "functions": intents}
        known = build(config)
        for text in responses():
            sample = Sample(output_text=text)
            assert known.grade(sample, {"call": None}).passed, text
            assert unknown(text, syntax).passed, text
            assert build(switch("off", syntax)).grade(sample, {"state": None}).passed, text


@pytest.mark.parametrize("text", WRITTEN)
def test_ordinary_prose_is_no_call(text: str) -> None:
    for syntax in ("json", "call", "tools"):
        for name in ("off", "light", "open", "turn_off"):
            assert all(grade.passed for grade in grades(text, name, syntax)), (name, syntax)
        assert unknown(text, syntax).passed, syntax


@given(st.lists(st.sampled_from(WRITTEN), min_size=2, max_size=5), TEXT_SYNTAXES)
def test_several_sentences_of_prose_are_no_call(sentences: list[str], syntax: str) -> None:
    braces = [one for one in sentences if "{" not in one]
    for joint in (" ", "\n"):
        text = joint.join(braces)
        assert all(grade.passed for grade in grades(text, "off", syntax))
        assert unknown(text, syntax).passed


@given(VALUES)
def test_a_name_is_known_to_the_configuration_and_described(name: str) -> None:
    config = build({"type": "function_call", "functions": [name]}).describe()
    assert config["functions"] == [name]
