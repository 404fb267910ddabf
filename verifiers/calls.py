"""Reading function calls out of a completion, in three syntaxes.

A reading keeps what could be read before the text went wrong: a small model that names the right
function in a broken call is nearer than one that does not, and training must see it.

What is wanted must stand in the documented form. What is not wanted must not hide in another one:
`read_everything` finds calls in words, in wrappers and behind what is broken, too. Where nothing
may be called at all, `attempts_more` sees whatever looks like an attempt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

from verifiers.attempts import attempts_call
from verifiers.base import Sample, ToolCall
from verifiers.call_lines import loose_lines, read_lines, write_line
from verifiers.call_objects import loose_objects, read_objects
from verifiers.readings import Found, Placed, Reading, Shape
from verifiers.values import json_problem

Syntax = Literal["json", "call", "tools"]

MAX_CALLS = 64
"""A completion that makes more calls than this fails where several are graded."""


def read_call(sample: Sample, syntax: Syntax, ignore_surrounding: bool) -> Reading | None:
    """Read the one call that a completion makes, None if it does not attempt one.

    For `call` that is the first line that is not blank, for `json` the first object with a name.
    With `ignore_surrounding`, text around the call leaves it whole: for `json` before and after the
    object, for `call` the lines after the first. A second call is never ignored, in whatever form,
    because it would be carried out.
    """
    found = _found(sample, syntax)
    if not found.calls or (syntax == "call" and sample.output_text[: found.calls[0][0]].strip()):
        return None
    alone = found.alone or ignore_surrounding
    single = len(found.calls) == 1 and not (ignore_surrounding and any(_hidden(found, syntax)))
    reading = found.calls[0].reading
    return reading if alone and single else _surrounded(reading)


def read_calls(sample: Sample, syntax: Syntax, ignore_surrounding: bool) -> tuple[Reading, ...]:
    """Read every call that a completion makes, in order; at most MAX_CALLS + 1 are read.

    For `call` each line that begins a call is one; for `json` each object with a name, one after
    the other or in one array. Any other text leaves no call whole unless it is to be ignored.
    """
    return tuple(one.reading for one in _documented(_found(sample, syntax), ignore_surrounding))


def read_everything(
    sample: Sample,
    syntax: Syntax,
    ignore_surrounding: bool,
    names: Collection[str] | None = None,
) -> tuple[Reading, ...]:
    """Read the calls that `read_calls` reads, and those in other forms, which are never whole.

    With the names of all functions that there are, another form is a call only of one of them.
    """
    found = _found(sample, syntax)
    hidden = _hidden(found, syntax)
    if names is not None:
        hidden = (one for one in map(_bare, hidden) if one.reading.name in names)
    first = islice(hidden, MAX_CALLS + 1)
    placed = sorted([*_documented(found, ignore_surrounding), *first], key=_position)
    return tuple(one.reading for one in placed[: MAX_CALLS + 1])


def attempts_more(
    sample: Sample, syntax: Syntax, names: Collection[str], *, only: bool = False
) -> bool:
    """Tell whether a text attempts calls besides those that are whole in the documented form.

    `names` are known functions; with `only` there are no others. A text beside `tools` holds calls
    as objects or with markers, but no call lines: nobody reads those.
    """
    text = sample.output_text
    if syntax == "tools":
        return attempts_call(text, names, only=only, lines=False)
    return attempts_call(_without_calls(text, _found(sample, syntax)), names, only=only)


def write_call(name: str, arguments: dict[str, Any], syntax: Syntax) -> str | None:
    """Write a call as text, None for `tools`, whose calls are not text."""
    if syntax == "tools":
        return None
    if syntax == "json":
        return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return write_line(name, arguments)


def write_calls(calls: Sequence[tuple[str, dict[str, Any]]], syntax: Syntax) -> str | None:
    """Write calls as text, one a line or as a JSON array; None for `tools`."""
    texts = [write_call(name, arguments, syntax) for name, arguments in calls]
    written = [text for text in texts if text is not None]
    if len(written) < len(texts):
        return None
    if syntax == "json" and len(written) > 1:
        return f"[{', '.join(written)}]"
    return "\n".join(written)


def _found(sample: Sample, syntax: Syntax) -> Found:
    match syntax:
        case "json":
            return read_objects(sample.output_text, MAX_CALLS)
        case "call":
            return read_lines(sample.output_text, MAX_CALLS)
        case "tools":
            # The text beside tool calls never matters, and they have one form only.
            tools = sample.output_tools[: MAX_CALLS + 1]
            return Found([Placed(place, _read_tool(one)) for place, one in enumerate(tools)])


def _documented(found: Found, ignore: bool) -> Iterable[Placed]:
    if found.alone or found.listed or ignore:
        return found.calls
    return [Placed(position, _surrounded(reading)) for position, reading in found.calls]


def _without_calls(text: str, found: Found) -> str:
    beside: list[str] = []
    at = 0
    for (position, reading), end in zip(found.calls, found.ends, strict=True):
        if reading.shape is not Shape.BROKEN:
            beside.append(text[at:position])
            at = end
    return "\n".join([*beside, text[at:]])


def _hidden(found: Found, syntax: Syntax) -> Iterator[Placed]:
    """Find the calls in other forms, each as well formed as being surrounded at best."""
    loose = loose_objects(found) if syntax == "json" else loose_lines(found)
    return chain(found.nested, loose)


def _bare(placed: Placed) -> Placed:
    """Take what stands before a dot off a name, such as the module that a function would be of."""
    name = placed.reading.name.rpartition(".")[2]
    return Placed(placed.position, replace(placed.reading, name=name))


def _position(placed: Placed) -> int:
    return placed.position


def _surrounded(reading: Reading) -> Reading:
    whole = reading.shape is Shape.WHOLE
    return replace(reading, shape=Shape.SURROUNDED) if whole else reading


def _read_tool(call: ToolCall) -> Reading:
    if json_problem(call.arguments) is not None:
        return Reading(call.name, (), Shape.BROKEN)
    return Reading(call.name, tuple(call.arguments.items()), Shape.WHOLE)
