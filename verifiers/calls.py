"""Reading function calls out of a completion, in three syntaxes.

A reading keeps what could be read before the text went wrong: a small model that names the right
function in a broken call is nearer than one that does not, and training must see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal

from verifiers.base import Sample, ToolCall
from verifiers.parsing import Malformed, check_depth, decode_at
from verifiers.values import MAX_DIGITS, is_number, json_problem

Syntax = Literal["json", "call", "tools"]

MAX_CALLS = 64
"""A completion that makes more calls than this fails where several are graded."""


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
    """Read the one call that a completion makes, None if it does not attempt one.

    For `call` that is the first line that is not blank, for `json` the first object with a name.
    With `ignore_surrounding`, text around the call leaves it whole: for `json` before and after the
    object, for `call` the lines after the first. A second call is never ignored, because it would
    be carried out.
    """
    if syntax == "call" and not _NAME.match(sample.output_text.lstrip()):
        return None
    readings = _readings(sample, syntax, ignore_surrounding, several=False)
    if not readings:
        return None
    return _surrounded(readings[0]) if len(readings) > 1 else readings[0]


def read_calls(sample: Sample, syntax: Syntax, ignore_surrounding: bool) -> tuple[Reading, ...]:
    """Read every call that a completion makes, in order; at most MAX_CALLS + 1 are read.

    For `call` each line that begins a call is one; for `json` each object with a name, one after
    the other or in one array. Any other text leaves no call whole unless it is to be ignored.
    """
    return _readings(sample, syntax, ignore_surrounding, several=True)


def write_call(name: str, arguments: dict[str, Any], syntax: Syntax) -> str | None:
    """Write a call as text, None for `tools`, whose calls are not text."""
    if syntax == "tools":
        return None
    if syntax == "json":
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    inside = ", ".join(f"{key}={_write_value(value)}" for key, value in arguments.items())
    return f"{name}({inside})"


def write_calls(calls: Sequence[tuple[str, dict[str, Any]]], syntax: Syntax) -> str | None:
    """Write calls as text, one a line or as a JSON array; None for `tools`."""
    texts = [write_call(name, arguments, syntax) for name, arguments in calls]
    written = [text for text in texts if text is not None]
    if len(written) < len(texts):
        return None
    if syntax == "json" and len(written) > 1:
        return f"[{', '.join(written)}]"
    return "\n".join(written)


def _readings(sample: Sample, syntax: Syntax, ignore: bool, several: bool) -> tuple[Reading, ...]:
    match syntax:
        case "json":
            return _read_objects(sample.output_text, ignore, several)
        case "call":
            return _read_lines(sample.output_text, ignore)
        case "tools":
            return tuple(_read_tool(call) for call in sample.output_tools[: MAX_CALLS + 1])


def _surrounded(reading: Reading) -> Reading:
    whole = reading.shape is Shape.WHOLE
    return replace(reading, shape=Shape.SURROUNDED) if whole else reading


def _read_tool(call: ToolCall) -> Reading:
    if json_problem(call.arguments) is not None:
        return Reading(call.name, (), Shape.BROKEN)
    return Reading(call.name, tuple(call.arguments.items()), Shape.WHOLE)


def _read_objects(text: str, ignore: bool, several: bool) -> tuple[Reading, ...]:
    """Read the objects of a text up to the first that is broken, each only once: linear time."""
    readings: list[Reading] = []
    pieces: list[str] = []
    position = 0
    try:
        check_depth(text)
        while (start := text.find("{", position)) >= 0 and len(readings) <= MAX_CALLS:
            pieces.append(text[position:start].strip())
            value, position = decode_at(text, start)
            reading = _read_object(value)
            if reading is not None:
                readings.append(reading)
            else:
                pieces.append("an object that is no call")
    except Malformed:
        broken = _JSON_NAME.search(text, position)
        readings += [Reading(broken.group(1), (), Shape.BROKEN)] if broken else []
    pieces.append(text[position:].strip())
    alone = not any(pieces) or (several and _are_of_array(pieces))
    return tuple(readings if alone or ignore else map(_surrounded, readings))


def _are_of_array(pieces: list[str]) -> bool:
    """Tell whether the text between objects is that of an array: a bracket, commas, a bracket."""
    return pieces[0] == "[" and pieces[-1] == "]" and all(piece == "," for piece in pieces[1:-1])


def _read_object(value: Any) -> Reading | None:
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, dict):
        return Reading(name, (), Shape.BROKEN)
    shape = Shape.WHOLE if len(value) == 2 else Shape.SURROUNDED
    return Reading(name, tuple(arguments.items()), shape)


def _read_lines(text: str, ignore: bool) -> tuple[Reading, ...]:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    begun = [match for line in lines if (match := _NAME.match(line))]
    readings = map(_read_line, begun[: MAX_CALLS + 1])
    return tuple(readings if ignore or len(begun) == len(lines) else map(_surrounded, readings))


def _read_line(match: re.Match[str]) -> Reading:
    """Read the `name(key=value, ...)` of a line, given the match of its name."""
    line, name = match.string, match.group()
    try:
        check_depth(line)
    except Malformed:
        return Reading(name, (), Shape.BROKEN)
    arguments, end = _read_arguments(line, match.end() + 1)
    if end is None or len({key for key, _ in arguments}) != len(arguments):
        return Reading(name, arguments, Shape.BROKEN)
    return Reading(name, arguments, Shape.SURROUNDED if line[end:].strip() else Shape.WHOLE)


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
