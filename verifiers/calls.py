"""Reading a function call out of a completion, in three syntaxes.

A reading keeps what could be read before the text went wrong: a small model that names the right
function in a broken call is nearer than one that does not, and training must see it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from verifiers.base import Sample
from verifiers.parsing import Malformed, check_depth, decode_at, find_object
from verifiers.values import MAX_DIGITS, is_number, json_problem

Syntax = Literal["json", "call", "tools"]


class Shape(Enum):
    """How well formed a call is; the value is its share of the parseable score."""

    WHOLE = 1.0
    SURROUNDED = 0.5
    BROKEN = 0.0


@dataclass(frozen=True)
class Reading:
    """A call as read: its name, and its arguments in the order given, duplicates kept."""

    name: str
    arguments: tuple[tuple[str, Any], ...]
    shape: Shape


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*(?=\()")
_KEY = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*")
_BARE = re.compile(r"[^,()=\"'\[\]{}\n][^,()=\"\[\]{}\n]*")
# Possessive: a string without its end fails at once instead of giving back letter by letter.
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]|\\['\\])*+)'")
_SINGLE_ESCAPE = re.compile(r"\\(['\\])")
_SEPARATOR = re.compile(r"\s*([,)])")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_JSON_NAME = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"')


def read_call(sample: Sample, syntax: Syntax, ignore_surrounding: bool) -> Reading | None:
    """Read the call that a completion makes, None if it does not attempt one.

    With `ignore_surrounding`, text around the call leaves it whole: for `json` before and after the
    object, for `call` the lines after the first. A second tool call is never ignored, because it
    would be carried out.
    """
    match syntax:
        case "json":
            return _read_json(sample.output_text, ignore_surrounding)
        case "call":
            return _read_line(sample.output_text, ignore_surrounding)
        case "tools":
            return _read_tools(sample)


def write_call(name: str, arguments: dict[str, Any], syntax: Syntax) -> str | None:
    """Write a call as text, None for `tools`, whose calls are not text."""
    if syntax == "tools":
        return None
    if syntax == "json":
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    inside = ", ".join(f"{key}={_write_value(value)}" for key, value in arguments.items())
    return f"{name}({inside})"


def _read_tools(sample: Sample) -> Reading | None:
    if not sample.output_tools:
        return None
    call = sample.output_tools[0]
    if json_problem(call.arguments) is not None:
        return Reading(call.name, (), Shape.BROKEN)
    shape = Shape.WHOLE if len(sample.output_tools) == 1 else Shape.SURROUNDED
    return Reading(call.name, tuple(call.arguments.items()), shape)


def _read_json(text: str, ignore_surrounding: bool) -> Reading | None:
    try:
        found = find_object(text)
    except Malformed:
        broken = _JSON_NAME.search(text)
        return Reading(broken.group(1), (), Shape.BROKEN) if broken else None
    name, arguments = found.value.get("name"), found.value.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, dict):
        return Reading(name, (), Shape.BROKEN)
    alone = (found.alone or ignore_surrounding) and len(found.value) == 2
    shape = Shape.WHOLE if alone else Shape.SURROUNDED
    return Reading(name, tuple(arguments.items()), shape)


def _read_line(text: str, ignore_surrounding: bool) -> Reading | None:
    """Read `name(key=value, ...)` at the start of the text's first line that is not blank."""
    line, _, later = text.strip().partition("\n")
    match = _NAME.match(line)
    if match is None:
        return None
    name = match.group()
    try:
        check_depth(line)
    except Malformed:
        return Reading(name, (), Shape.BROKEN)
    arguments, end = _read_arguments(line, match.end() + 1)
    if end is None or len({key for key, _ in arguments}) != len(arguments):
        return Reading(name, arguments, Shape.BROKEN)
    alone = not line[end:].strip() and (ignore_surrounding or not later)
    return Reading(name, arguments, Shape.WHOLE if alone else Shape.SURROUNDED)


def _read_arguments(line: str, position: int) -> tuple[tuple[tuple[str, Any], ...], int | None]:
    """Read arguments up to the closing bracket; the end is None if the call is broken."""
    arguments: list[tuple[str, Any]] = []
    if line[position:].lstrip().startswith(")"):
        return (), line.index(")", position) + 1
    while key := _KEY.match(line, position):
        try:
            value, position = _read_value(line, key.end())
        except Malformed:
            break
        separator = _SEPARATOR.match(line, position)
        if separator is None and line[position:].strip():
            break
        arguments.append((key.group(1), value))
        if separator is None:
            break
        position = separator.end()
        if separator.group(1) == ")":
            return tuple(arguments), position
    return tuple(arguments), None


def _read_value(line: str, position: int) -> tuple[Any, int]:
    first = line[position : position + 1]
    if first in ('"', "[", "{"):
        return decode_at(line, position)
    if first == "'":
        quoted = _SINGLE_QUOTED.match(line, position)
        if quoted is None:
            raise Malformed("string without an end")
        return _SINGLE_ESCAPE.sub(r"\1", quoted.group(1)), quoted.end()
    bare = _BARE.match(line, position)
    if bare is None:
        raise Malformed("no value")
    return _bare_value(bare.group().strip()), bare.end()


def _bare_value(text: str) -> Any:
    """Give an unquoted value the type that JSON gives it, else leave it text."""
    if text in _LITERALS:
        return _LITERALS[text]
    if is_number(text):
        return decode_at(text, 0)[0]
    return text


def _write_value(value: Any) -> str:
    if isinstance(value, str) and len(value) <= MAX_DIGITS and _reads_back(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _reads_back(text: str) -> bool:
    """Tell whether a text needs no quotes: unquoted, it reads as itself."""
    return _BARE.fullmatch(text) is not None and text == text.strip() and _bare_value(text) == text
