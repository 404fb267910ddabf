"""Calls that a text spells as lines: `turn_on(area=kitchen, level=50)`.

The documented form is a line that begins with one. Looked for besides are calls behind other words
or signs. Of those, `name (` must go on with `key=` or `)`, and `name(` with that or with a quote or
a brace, so that "I did it (really)" and "the light(s)" are none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from verifiers.parsing import Malformed, decode_at
from verifiers.readings import Found, Piece, Placed, Reading, Shape
from verifiers.texts import normal
from verifiers.values import MAX_DIGITS, is_number

_NAME = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\(")
_CLOSED = re.compile(r"\s*\)")
_KEY = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*")
_BARE = re.compile(r"[^,()=\"'\[\]{}\n][^,()=\"\[\]{}\n]*")
# Possessive: a string without its end fails at once instead of giving back letter by letter.
_SINGLE_QUOTED = re.compile(r"'((?:[^'\\]|\\['\\])*+)'")
_SINGLE_ESCAPE = re.compile(r"\\(['\\])")
_AT_END = re.compile(r"\s*\Z")
_SEPARATOR = re.compile(r"\s*([,)])")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
# Possessive, and never from within a name: each character is looked at a few times at most.
_LOOSE = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z0-9_.-]++)"
    r"(?:\s*+\((?=\s*+(?:[A-Za-z_][A-Za-z0-9_.-]*+\s*+=(?!=)|\)))|\((?=\s*+[\"'{]))"
)


def read_lines(text: str, most: int) -> Found:
    """Read the lines that begin a call; stops after so many and one more."""
    found = Found()
    position = rest = 0
    for line in text.split("\n"):
        begun = _NAME.match(line)
        if begun and len(found.calls) <= most:
            reading, end = _read_line(begun)
            found.calls.append(Placed(position, reading))
            found.rest.append(Piece(rest, text[rest:position]))
            rest = position + end
            found.ends.append(rest)
        found.alone = found.alone and (begun is not None or not line.strip())
        position += len(line) + 1
    found.rest.append(Piece(rest, text[rest:]))
    return found


def loose_lines(found: Found) -> Iterator[Placed]:
    """Find calls behind other words or signs, in what begins no line."""
    for position, text in found.rest:
        for reading in _loose_calls(normal(text)):
            yield Placed(position, reading)


def write_line(name: str, arguments: dict[str, Any]) -> str:
    """Write a call, its values without quotes where they read back so."""
    inside = ", ".join(f"{key}={_write_value(value)}" for key, value in arguments.items())
    return f"{name}({inside})"


def _loose_calls(text: str) -> Iterator[Reading]:
    at = 0
    while match := _LOOSE.search(text, at):
        at = match.end()
        name = match[1].lstrip("0123456789.-")
        if name:
            arguments, end = _read_arguments(text, at)
            at = at if end is None else end
            yield Reading(name, arguments, _shape(arguments, end, Shape.SURROUNDED))


def _read_line(match: re.Match[str]) -> tuple[Reading, int]:
    """Read the `name(key=value, ...)` of a line, given its beginning; also where it ends."""
    line = match.string
    arguments, end = _read_arguments(line, match.end())
    whole = end is not None and not line[end:].strip()
    shape = _shape(arguments, end, Shape.WHOLE if whole else Shape.SURROUNDED)
    return Reading(match[1], arguments, shape), len(line) if end is None else end


def _shape(arguments: tuple[tuple[str, Any], ...], end: int | None, shape: Shape) -> Shape:
    twice = len({key for key, _ in arguments}) != len(arguments)
    return Shape.BROKEN if end is None or twice else shape


def _read_arguments(line: str, position: int) -> tuple[tuple[tuple[str, Any], ...], int | None]:
    """Read arguments up to the closing bracket; the end is None if the call is broken."""
    arguments: list[tuple[str, Any]] = []
    if closed := _CLOSED.match(line, position):
        return (), closed.end()
    while key := _KEY.match(line, position):
        try:
            value, position = _read_value(line, key.end())
        except Malformed:
            break
        separator = _SEPARATOR.match(line, position)
        if separator is None and not _AT_END.match(line, position):
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
