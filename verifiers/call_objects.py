"""Calls that a text spells as JSON objects: `{"name": ..., "arguments": {...}}`.

The documented form is such an object in the text, or several in one array. Looked for besides are
the forms in which a program that reads more loosely would find a call: wrapped in other values,
inside of a broken one, with another kind of quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from verifiers.parsing import Malformed, closing, decode_at, parse_json
from verifiers.readings import Found, Piece, Placed, Reading, Shape
from verifiers.texts import normal

_OPENING = re.compile(r'\{\s*["}]')
_BEGUN = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"')
_LOOSE_NAME = re.compile(r"\bname\b\\*[\"'”’]?\s*[:=]\s*\\*[\"'“‘]([^\"'”’\\]+)")
_LOOSE_ARGUMENTS = re.compile(r"\barguments\b\\*[\"'”’]?\s*[:=]")

_TRIES = 8
"""How many times over a text is read for objects that turn out to be broken, before the rest of it
is searched for names only."""


def read_objects(text: str, most: int) -> Found:
    """Read a text's objects in linear time; stops after so many calls and one more."""
    return _Scan(text).run(most)


def loose_objects(found: Found) -> Iterator[Placed]:
    """Find calls in what could not be read: a name in it counts if there are arguments, too."""
    rest = [Piece(position, normal(text)) for position, text in found.rest]
    if any(_LOOSE_ARGUMENTS.search(text) for _, text in rest):
        for position, text in rest:
            for match in _LOOSE_NAME.finditer(text):
                yield Placed(position, Reading(match[1].strip(), (), Shape.BROKEN))


class _Scan:
    """One pass over a text, from brace to brace."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.found = Found()
        self.between: list[str] = []
        self.read = 0  # where what was decoded last ends
        self.noted = 0  # where what was decoded last or begins as a call ends
        self.open = 0  # braces that were passed over and are not closed
        self.budget = _TRIES * len(text)

    def run(self, most: int) -> Found:
        at = 0
        while len(self.found.calls) <= most and (start := self.text.find("{", at)) >= 0:
            self.open = max(0, self.open - self.text.count("}", at, start))
            decoded = self._decode(start)
            at = self._pass_over(start) if decoded is None else self._take(start, *decoded)
        self.found.rest.append(Piece(self.noted, self.text[self.noted :]))
        between = [*self.between, self.text[self.read :].strip()]
        self.found.alone = not any(between)
        self.found.listed = between[0] == "[" and between[-1] == "]" and set(between[1:-1]) <= {","}
        return self.found

    def _decode(self, start: int) -> tuple[dict[str, Any], int] | None:
        if self.budget <= 0 or not _OPENING.match(self.text, start):
            return None
        end = len(self.text)
        try:
            end = closing(self.text, start)
            return decode_at(self.text, start)
        except Malformed:
            self.budget -= end - start
            return None

    def _pass_over(self, start: int) -> int:
        """Go on behind a brace that opens no object, but may open a call."""
        begun = _BEGUN.match(self.text, start)
        if begun:
            reading = Placed(start, Reading(begun[1], (), Shape.BROKEN))
            if self.open:
                self.found.nested.append(reading)
            else:
                self._add(reading, begun.end())
            self._note(start, begun.end())
        self.open += 1
        return start + 1

    def _take(self, start: int, value: dict[str, Any], end: int) -> int:
        """Take down an object. In a brace that is not closed it is nested, whatever it is."""
        self.between.append(self.text[self.read : start].strip())
        self._note(start, end)
        self.read = end
        reading = None if self.open else _read_object(value)
        if reading is None:
            self.between.append("an object that is no call")
            self.found.nested += (Placed(start, one) for one in _calls_in(value))
        else:
            self._add(Placed(start, reading), end)
            if reading.shape is Shape.BROKEN:
                inside = _calls_in(list(value.values()))
                self.found.nested += (Placed(start, one) for one in inside)
        return end

    def _add(self, call: Placed, end: int) -> None:
        self.found.calls.append(call)
        self.found.ends.append(end)

    def _note(self, start: int, end: int) -> None:
        self.found.rest.append(Piece(self.noted, self.text[self.noted : start]))
        self.noted = end


def _read_object(value: dict[str, Any]) -> Reading | None:
    name, arguments = value.get("name"), value.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, dict):
        return Reading(name, (), Shape.BROKEN)
    shape = Shape.WHOLE if len(value) == 2 else Shape.SURROUNDED
    return Reading(name, tuple(arguments.items()), shape)


def _calls_in(value: Any) -> Iterator[Reading]:
    """Find the calls in a value, in order; what is in a call's arguments is none."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        below: list[Any] = one if isinstance(one, list) else []
        if isinstance(one, dict):
            if isinstance(one.get("name"), str) and "arguments" in one:
                yield _nested_call(one["name"], one["arguments"])
                continue
            below = list(one.values())
        waiting.extend(reversed(below))


def _nested_call(name: str, arguments: Any) -> Reading:
    """Read a call in OpenAI's form, whose arguments are JSON text, or in our own."""
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except Malformed:
            return Reading(name, (), Shape.BROKEN)
    if not isinstance(arguments, dict):
        return Reading(name, (), Shape.BROKEN)
    return Reading(name, tuple(arguments.items()), Shape.SURROUNDED)
