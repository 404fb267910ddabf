"""How a model is told of tools and how it writes calls of them.

A chat template either has a place for tools, which is found out by rendering it with one and
without, or it ignores them. Then the tools are described in the system message, together with the
form of a call, and the calls and results of earlier turns are written out as text: such a template
would drop them as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
ParseCalls = Callable[[str, Any], Any]
"""A call's text and the tools, as given to the template -> one call or a list of them."""

_PROBE = "nightowl_probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE,
        "description": _PROBE,
        "parameters": {"type": "object", "properties": {}},
    },
}
_INTRODUCTION = """You can call these tools, each described by a line of JSON:
{tools}
To call a tool, answer with this JSON and nothing else, the arguments as its parameters say:
{{"name": "<name of the tool>", "arguments": {{<arguments>}}}}
For several calls, answer with a JSON list of such objects. If no tool is needed, answer in plain
words."""


@dataclass(frozen=True)
class ToolForm:
    """The form of a model's tool calls.

    Attributes:
        in_template: the chat template shows tools by itself.
        start, end: what surrounds a call in an answer; empty when calls are bare JSON. `end` may be
            empty by itself: such a call goes on to the end of the answer.
        parse: reads what is between them when that is no JSON; None: it is JSON.
        tokens: those of the two that are one token of their own, which no other tokens spell.
    """

    in_template: bool = False
    start: str = ""
    end: str = ""
    parse: ParseCalls | None = None
    tokens: frozenset[str] = frozenset()

    def messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Json] | None
    ) -> list[Json]:
        """The conversation as the chat template has to get it."""
        plain = [dict(message) for message in messages]
        if self.in_template:
            return plain
        written = _merged([_without_calls(message) for message in plain])
        return _introduced(written, tools) if tools else written


def tool_form(tokenizer: Any) -> ToolForm:
    """The form of a model, found out from its tokenizer (mlx-lm's wrapper of it)."""
    if not _shows_tools(tokenizer):
        return ToolForm()
    start, end = tokenizer.tool_call_start or "", tokenizer.tool_call_end or ""
    if not start or not all(_is_text(tokenizer, marker) for marker in (start, end)):
        # Markers that are special tokens never reach the text of an answer.
        return ToolForm(in_template=True)
    parser = tokenizer.tool_parser
    is_json = parser.__module__.endswith(".json_tools")
    tokens = frozenset({start, end} & tokenizer.get_added_vocab().keys())
    return ToolForm(True, start, end, None if is_json else parser, tokens)


def written_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls, each with name and arguments, as the JSON text that a model is asked to answer."""
    plain = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return json.dumps(plain[0] if len(plain) == 1 else plain, ensure_ascii=False)


def _shows_tools(tokenizer: Any) -> bool:
    asked = [{"role": "user", "content": "hi"}]
    try:
        text = tokenizer.apply_chat_template(asked, tools=[_PROBE_TOOL], tokenize=False)
    except Exception:  # templates raise whatever Jinja raises: one that does shows nothing
        return False
    return _PROBE in text


def _is_text(tokenizer: Any, marker: str) -> bool:
    """Whether a marker comes through when tokens are decoded."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    decoded: str = tokenizer.decode(ids, skip_special_tokens=True)
    return decoded.strip() == marker


def _introduced(messages: list[Json], tools: Sequence[Json]) -> list[Json]:
    """The conversation with the tools described in its system message."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = _INTRODUCTION.format(tools=lines)
    if messages and messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_calls(message: Json) -> Json:
    """A call as the text that would have made it; a tool's result as something the user says."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the tool: {message['content']}"}
    if not message.get("tool_calls"):
        return message
    calls = written_calls([call["function"] for call in message["tool_calls"]])
    content = "\n".join(part for part in (message["content"], calls) if part)
    return {"role": "assistant", "content": content}


def _merged(messages: Sequence[Json]) -> list[Json]:
    """Results that follow each other in one message: some templates want the roles to alternate."""
    merged: list[Json] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last and last["role"] == message["role"] == "user" and _is_result(message):
            merged[-1] = last | {"content": f"{last['content']}\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _is_result(message: Json) -> bool:
    content: str = message["content"]
    return content.startswith("Result of the tool: ")
