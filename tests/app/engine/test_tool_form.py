"""How a model is told of tools: by its own template, or in the system message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.engine import models  # noqa: F401  isort: skip  (before mlx-lm: it sets it up)
from mlx_lm import tokenizer_utils

from app.engine.tool_form import ToolForm, tool_form, written_calls
from tests import tiny

TOOL = {
    "type": "function",
    "function": {"name": "turn_on", "description": "Turns on", "parameters": {"type": "object"}},
}
CALL = {"id": "c", "type": "function", "function": {"name": "turn_on", "arguments": {"a": 1}}}
SHOWS = "{% if tools %}{{ tools | tojson }}{% endif %}"
HERMES = SHOWS + "{# <tool_call> tool_call.name #}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer that has never seen a tool."""
    tiny.write_tokenizer(tmp_path)
    return tmp_path


def form_of(folder: Path, template: str) -> ToolForm:
    (folder / "chat_template.jinja").write_text(template + tiny.CHAT_TEMPLATE)
    return tool_form(tokenizer_utils.load(folder, eos_token_ids=[2]))


def test_a_template_that_ignores_tools_or_refuses_them_has_no_place_for_them(folder: Path) -> None:
    refuses = "{% if tools %}{{ raise_exception('none') }}{% endif %}"
    assert form_of(folder, "") == form_of(folder, refuses) == ToolForm()


def test_a_template_that_shows_tools_gets_the_conversation_as_it_is(folder: Path) -> None:
    form = form_of(folder, SHOWS)
    assert form == ToolForm(in_template=True)
    messages = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert form.messages(messages, [TOOL]) == messages


def test_markers_that_are_ordinary_text_are_the_models_form(folder: Path) -> None:
    assert form_of(folder, HERMES) == ToolForm(True, "<tool_call>", "</tool_call>")


@pytest.mark.parametrize("special", [False, True])
def test_markers_that_are_tokens_count_unless_decoding_drops_them(
    folder: Path, special: bool
) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    size = len(content["model"]["vocab"])
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    for number, text in enumerate(["<tool_call>", "</tool_call>"]):
        token = {"id": size + number, "content": text, "special": special, **flags}
        content["added_tokens"].append(token)
    file.write_text(json.dumps(content))
    tokens = frozenset({"<tool_call>", "</tool_call>"})
    kept = ToolForm(True, "<tool_call>", "</tool_call>", None, tokens)
    assert form_of(folder, HERMES) == (ToolForm(in_template=True) if special else kept)


def test_another_form_than_json_is_read_by_the_models_own_parser(folder: Path) -> None:
    form = form_of(folder, SHOWS + "{# <tool_call>\n<function= #}")
    assert form.parse is not None
    text = "\n<function=turn_on>\n<parameter=a>\nb\n</parameter>\n</function>\n"
    assert form.parse(text, [TOOL]) == {"name": "turn_on", "arguments": {"a": "b"}}


def test_without_a_place_tools_are_described_in_the_system_message() -> None:
    user: dict[str, Any] = {"role": "user", "content": "hi"}
    own: dict[str, Any] = {"role": "system", "content": "Be brief."}
    [alone, _] = ToolForm().messages([user], [TOOL])
    [joined, rest] = ToolForm().messages([own, user], [TOOL])
    assert json.dumps(TOOL["function"]) in alone["content"]
    assert (joined["role"], joined["content"]) == ("system", f"Be brief.\n\n{alone['content']}")
    assert rest == user
    assert ToolForm().messages([own, user], None) == [own, user]


def test_without_a_place_earlier_calls_and_results_become_text_and_roles_alternate() -> None:
    said = [
        {"role": "user", "content": "on"},
        {"role": "assistant", "content": "Yes.", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
        {"role": "tool", "content": "done too", "tool_call_id": "c"},
    ]
    shown = ToolForm().messages(said, None)
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    calls = written_calls([CALL["function"], CALL["function"]])
    assert shown[1]["content"] == f"Yes.\n{calls}"
    assert json.loads(calls) == [{"name": "turn_on", "arguments": {"a": 1}}] * 2
    assert "done" in shown[2]["content"]
    assert "done too" in shown[2]["content"]
