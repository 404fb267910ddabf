"""Reading tool calls out of an answer, whole or as it arrives.

A call stands between the model's markers, or the whole answer is JSON: a call, or a list of calls.
A call names a tool that was offered; what names none, or is broken, is text. The way an answer is
cut into pieces changes nothing of what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.tool_form import Json, ToolForm
from verifiers import ToolCall
from verifiers.parsing import Malformed, parse_json
from verifiers.values import json_problem

Piece = str | ToolCall
_SPACE = " \t\r\n"  # of JSON
MAX_CALLS = 64
"""An answer that makes more calls at once than this is text."""


class CallReader:
    """Reads an answer piece by piece; what may yet turn out to be a call is held back."""

    def __init__(
        self,
        form: ToolForm,
        tools: Sequence[Json],
        fits: Callable[[ToolCall], bool] = lambda _: True,
    ) -> None:
        """`fits`: whether a call of a known tool is one; what does not is text."""
        self._form = form
        self._fits = fits
        self._tools = list(tools)
        self._names = {str(tool["function"]["name"]) for tool in tools}
        self._held = ""
        self._begun = False  # something that is not white space has been seen
        self._all_json = False
        self._called = False

    def push(self, text: str) -> list[Piece]:
        """What is certain once `text` has arrived."""
        self._held += text
        if not self._begun and self._held.strip():
            self._begun = True
            self._all_json = self._held.lstrip(_SPACE)[0] in "{["
        if self._all_json or not self._begun:
            return []
        return list(self._certain())

    def finish(self) -> list[Piece]:
        """The rest, when nothing more comes."""
        held, self._held = self._held, ""
        if self._all_json:
            return list(self._calls(held)) or [held]
        start = self._form.start
        if start and held.lstrip().startswith(start):
            # No end marker: the model may have ended its answer with the call.
            calls = self._calls(held.lstrip().removeprefix(start), marked=True)
            if calls:
                return list(calls)
        gone = self._called and not held.strip()  # only white space around calls
        return [] if gone or not held else [held]

    def _certain(self) -> Iterator[Piece]:
        start, end = self._form.start, self._form.end
        while start and (at := self._held.find(start)) >= 0:
            before = self._held[:at]
            if before.strip():
                yield before.rstrip()
                self._held = self._held[len(before.rstrip()) :]
                at = self._held.find(start)
            close = self._held.find(end, at + len(start)) if end else -1
            if close < 0:
                return
            stop = close + len(end)
            calls = self._calls(self._held[at + len(start) : close], marked=True)
            if calls:
                yield from calls
                self._called = True
            else:
                yield self._held[:stop]
            self._held = self._held[stop:]
        safe = len(self._held) - _held_back(self._held, start)
        if safe:
            yield self._held[:safe]
            self._held = self._held[safe:]

    def _calls(self, text: str, marked: bool = False) -> tuple[ToolCall, ...]:
        """The calls of a text; none when any of them is broken or names no tool."""
        if marked and self._form.parse is not None:
            try:
                value = self._form.parse(text, self._tools)
            except Exception:  # parsers of all kinds raise all kinds; what they cannot read is text
                return ()
        else:
            try:
                value = parse_json(text)
            except Malformed:
                return ()
        listed = value if isinstance(value, list) else [value]
        calls = [_call(one) for one in listed[:MAX_CALLS]]
        known = [call for call in calls if call and call.name in self._names and self._fits(call)]
        return tuple(known) if len(known) == len(listed) else ()


@dataclass(frozen=True)
class Reading:
    """An answer as read; `content` is what is not a call."""

    content: str
    calls: tuple[ToolCall, ...]


def read_whole(reader: CallReader, text: str) -> Reading:
    """The calls of a whole answer, read by a reader that has not read anything."""
    pieces = [*reader.push(text), *reader.finish()]
    return Reading(
        "".join(piece for piece in pieces if isinstance(piece, str)),
        tuple(piece for piece in pieces if isinstance(piece, ToolCall)),
    )


def _call(value: Any) -> ToolCall | None:
    """A call from its JSON; some families say `parameters`, some write the arguments as text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except Malformed:
            return None
    if not isinstance(arguments, dict) or json_problem(arguments) is not None:
        return None
    return ToolCall(name=value["name"], arguments=arguments)


def _held_back(text: str, start: str) -> int:
    """Characters at the end that may be white space before a call, or the start of a marker."""
    whole = len(text)
    for size in range(min(len(start) - 1, len(text)), 0, -1):
        if text.endswith(start[:size]):
            whole -= size
            break
    return len(text) - len(text[:whole].rstrip())
