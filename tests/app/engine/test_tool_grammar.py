"""Grammars of tool calls: what they let through is what they should."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer

from app.engine.schema import GrammarError
from app.engine.tool_form import ToolForm
from app.engine.tool_grammar import CallRules, call_grammar
from tests import tiny

ONE = CallRules(required=True, several=False)
MANY = CallRules(required=True, several=True)
FREE_ONE = CallRules(required=False, several=False)
FREE_MANY = CallRules(required=False, several=True)
OR_JSON = replace(FREE_MANY, answer={"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}},
                                     "required": ["x"], "additionalProperties": False,
                                     "$defs": {"n": {"type": "integer"}}})  # fmt: skip
MARKERS = ("<tool_call>", "</tool_call>")
BARE = ToolForm()
TEXT = ToolForm(True, *MARKERS)
TOKENS = ToolForm(True, *MARKERS, None, frozenset(MARKERS))

ON = '{"name": "on", "arguments": {"level": 3}}'
OFF = '{"name": "off", "arguments": {"x": [1]}}'
WRONG = '{"name": "on", "arguments": {"level": "high"}}'
UNKNOWN = '{"name": "up", "arguments": {"level": 3}}'


def marked(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def tool(name: str, parameters: dict[str, Any], strict: bool | None = None) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


LEVEL = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"level": {"$ref": "#/$defs/level"}},
    "required": ["level"],
    "additionalProperties": False,
    "$defs": {"level": {"type": "integer"}},
}
TOOLS = [tool("on", LEVEL, True), tool("off", {})]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tiny tokenizer with markers that are tokens of their own."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return made


def allows(tokenizer: Tokenizer, form: ToolForm, rules: CallRules, text: str) -> bool:
    """Whether an answer may be `text`, and end there."""
    knows = LLTokenizer(tokenizer.to_str(), eos_token=2)
    grammar = call_grammar(form, TOOLS, rules)
    assert LLMatcher.validate_grammar(grammar, knows) == ""
    matcher = LLMatcher(knows, grammar, log_level=0)
    if form.tokens:
        ids = tokenizer.encode(text).ids
    else:  # letter by letter: no token spells a marker
        ids = [one for letter in text for one in tokenizer.encode(letter).ids]
    return all(matcher.consume_token(one) for one in ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("rules", "right", "wrong"),
    [
        (ONE, [ON, OFF], ["", "Hi", UNKNOWN, WRONG, f"[{ON}]", marked(ON), '{"x": 1}']),
        (MANY, [ON, f"[{ON}]", f"[{ON}, {OFF}]"], ["Hi", "[]", f"[{ON}, {WRONG}]"]),
        (FREE_ONE, ["", "Hi {", ON], ["{", " [", WRONG, UNKNOWN, f"[{ON}]", '{"x": 1}']),
        (FREE_MANY, ["Hi", ON, f"[{ON}, {OFF}]"], [f"[{ON}, {UNKNOWN}]"]),
        (OR_JSON, ['{"x": 1}', ON, f"[{ON}, {OFF}]"], ["Hi", "", WRONG, '{"x": "a"}']),
    ],
)
def test_calls_that_are_the_whole_answer(
    tokenizer: Tokenizer, rules: CallRules, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(tokenizer, BARE, rules, text)] == []
    assert [text for text in wrong if allows(tokenizer, BARE, rules, text)] == []


@pytest.mark.parametrize("form", [TEXT, TOKENS], ids=["text", "tokens"])
@pytest.mark.parametrize(
    ("rules", "right", "wrong"),
    [
        (ONE, [marked(ON), marked(OFF)], ["", "Hi", ON, marked(WRONG), f"Hi {marked(ON)}"]),
        (MANY, [marked(ON), f"{marked(ON)}\n{marked(OFF)}"], [marked(ON) + marked(UNKNOWN)]),
        (
            FREE_ONE,
            ["", "Hi", marked(ON), f"Hi {marked(ON)} there"],
            [ON, "<tool_call>", "Hi <tool_call> there", marked(WRONG), marked(ON) + marked(ON)],
        ),
        (FREE_MANY, ["Hi", f"a {marked(ON)} b {marked(OFF)} c"], [f"{marked(ON)} {marked(WRONG)}"]),
        (OR_JSON, ['{"x": 1}', marked(ON)], ["Hi", f"Hi {marked(ON)}", marked(WRONG)]),
    ],
)
def test_calls_between_markers(
    tokenizer: Tokenizer, form: ToolForm, rules: CallRules, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(tokenizer, form, rules, text)] == []
    assert [text for text in wrong if allows(tokenizer, form, rules, text)] == []


def test_a_tool_that_is_not_strict_takes_any_object_unless_a_call_is_required(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lax = [tool("on", LEVEL)]
    monkeypatch.setitem(globals(), "TOOLS", lax)
    assert allows(tokenizer, BARE, FREE_ONE, WRONG)
    assert not allows(tokenizer, BARE, ONE, WRONG)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "string"}, "type has to be object"),
        ({"properties": {"a": {"not": {}}}}, "'not' is not supported"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "#/\\$defs/b"),
    ],
)
def test_parameters_that_cannot_be_kept_to_are_refused_with_the_tools_name(
    parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GrammarError, match=f"tool on: parameters: .*{reason}"):
        call_grammar(BARE, [tool("on", parameters)], ONE)


def test_a_form_of_its_own_is_only_held_to_schemas_where_all_of_the_answer_is() -> None:
    own = replace(TEXT, parse=lambda text, _tools: json.loads(text))
    with pytest.raises(GrammarError, match="a form of its own"):
        call_grammar(own, TOOLS, FREE_MANY)
    assert call_grammar(own, TOOLS, MANY) == call_grammar(BARE, TOOLS, MANY)
