"""Grammars under which an answer's tool calls are certain to fit (Lark in llguidance's dialect).

Every call names a tool that there is. Where a call is required, or the tool is strict, its
arguments are what the tool's schema allows. Whether there has to be a call, how many there may be,
and what else may be said is the caller's choice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.grammar import JSON_STYLE
from app.engine.schema import GrammarError
from app.engine.tool_form import Json, ToolForm
from app.engine.validity import checked_schema

_ANY = r"(.|\n)*"
_NO_JSON = r"[ \t\r\n]*([^ \t\r\n{\[](.|\n)*)?"
"""Text that does not begin as JSON does: that is read as a call."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords that hold values, not schemas."""


@dataclass(frozen=True)
class CallRules:
    """What may be answered besides the calls.

    Attributes:
        required: there is at least one call, and nothing else.
        several: there may be more than one.
        answer: the schema of an answer without calls; None: any text.
    """

    required: bool
    several: bool
    answer: Json | None = None

    def holds(self, tool: Json) -> bool:
        """Whether a call's arguments have to fit the tool's schema, not only to be an object."""
        return self.required or tool["function"].get("strict") is True


def call_grammar(form: ToolForm, tools: Sequence[Json], rules: CallRules) -> str:
    """The grammar of an answer to somebody who offers `tools`.

    Raises GrammarError for parameters that cannot be kept to, with the name of the tool.
    """
    if form.parse is not None and not rules.required and rules.answer is None:
        raise GrammarError(
            "this model writes tool calls in a form of its own, which can only be held to their"
            " schemas where a call is required"
        )
    marked = bool(form.start and form.end) and form.parse is None
    lines = _marked(form, tools, rules) if marked else _bare(tools, rules)
    return "\n".join(["%llguidance {}", *lines, ""])


def argument_schema(tool: Json) -> Json:
    """The schema of a tool's arguments, which are an object; raises GrammarError."""
    function = tool["function"]
    schema: Json = {"type": "object"} | function.get("parameters", {})
    if schema["type"] != "object":
        raise GrammarError(f"tool {function['name']}: parameters: type has to be object")
    try:
        return checked_schema(schema)
    except GrammarError as error:
        raise GrammarError(f"tool {function['name']}: parameters: {error}") from error


def _bare(tools: Sequence[Json], rules: CallRules) -> list[str]:
    """A call, or a list of them, as the whole answer; all in one schema, with what else is JSON."""
    forms: list[Json] = [{"$ref": "#/$defs/call"}]
    if rules.several:
        forms.append({"type": "array", "items": {"$ref": "#/$defs/call"}, "minItems": 1})
    definitions = _definitions(tools, rules)
    if rules.answer is not None:
        forms.append({"$ref": "#/$defs/answer"})
        definitions["answer"] = _moved(rules.answer, "#/$defs/answer")
    json_rule = f"json: {_json({'anyOf': forms, '$defs': definitions})}"
    if rules.required or rules.answer is not None:
        return ["start: json", json_rule]
    return ["start: FREE | json", json_rule, f"FREE: /{_NO_JSON}/"]


def _marked(form: ToolForm, tools: Sequence[Json], rules: CallRules) -> list[str]:
    """Calls between markers; text may stand around them, but none that holds a marker."""
    begin, end = (_terminal(form, marker) for marker in (form.start, form.end))
    body = f'"\\n" call "\\n" {end}'
    call = f"call: {_json({'$ref': '#/$defs/call', '$defs': _definitions(tools, rules)})}"
    if rules.required or rules.answer is not None:
        return [
            "start: calls" if rules.answer is None else "start: calls | answer",
            'calls: marked ("\\n" marked)*' if rules.several else "calls: marked",
            f"marked: {begin} {body}",
            call,
            *([] if rules.answer is None else [f"answer: {_json(rules.answer)}"]),
        ]
    lazy = "" if form.start in form.tokens else "[lazy]"
    return [
        f"start: FREE | first {body} {'more*' if rules.several else ''} TEXT",
        f"more: next {body}",
        f"first{lazy}: FREE {begin}",
        f"next{lazy}: TEXT {begin}",
        f"FREE: /{_NO_JSON}/ & NO_MARKER",
        f"TEXT: /{_ANY}/ & NO_MARKER",
        f"NO_MARKER: ~/{_ANY}{_escaped(form.start)}{_ANY}/",
        call,
    ]


def _definitions(tools: Sequence[Json], rules: CallRules) -> Json:
    """The definitions of a schema: `call`, one of the tools, and the arguments of each."""
    schemas = [argument_schema(tool) if rules.holds(tool) else {"type": "object"} for tool in tools]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                "arguments": {"$ref": f"#/$defs/arguments{number}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for number, tool in enumerate(tools)
    ]
    arguments = {
        f"arguments{number}": _moved(schema, f"#/$defs/arguments{number}")
        for number, schema in enumerate(schemas)
    }
    return {"call": {"anyOf": calls}, **arguments}


def _moved(schema: Any, root: str) -> Any:
    """A schema as a part of another, at `root`: what it refers to in itself has moved, too."""
    if isinstance(schema, list):
        return [_moved(one, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: root + value.removeprefix("#")
        if key == "$ref" and isinstance(value, str)
        else value
        if key in _VALUES
        else _moved(value, root)
        for key, value in schema.items()
    }


def _json(schema: Json) -> str:
    return f"%json {json.dumps(schema | {'x-guidance': JSON_STYLE})}"


def _terminal(form: ToolForm, marker: str) -> str:
    return marker if marker in form.tokens else json.dumps(marker)


def _escaped(text: str) -> str:
    """A text inside a regular expression of Lark's."""
    return "".join(one if one.isalnum() or one in "_<>" else f"\\{one}" for one in text)
