"""Reading JSON out of a completion, strictly.

Stricter than `json.loads`: duplicate keys, NaN, Infinity, numbers that overflow to infinity,
integers of more than a thousand digits and deep nesting are all malformed. Every function is linear
in the length of the text, so that no completion can stall a training run.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from verifiers.values import MAX_DEPTH, MAX_DIGITS

# A string runs to its closing quote or to the end of the text; written so that it cannot fail once
# begun, hence cannot be retried from every quote inside it.
_BRACKETS_AND_STRINGS = re.compile(r'"(?:[^"\\]+|\\.?)*"?|[\[\]{}]', re.DOTALL)


class Malformed(ValueError):
    """The text is not the JSON it should be. About the completion, so it means failed."""


@dataclass(frozen=True)
class Found:
    """A JSON value found in a text; `alone` when only white space surrounds it."""

    value: Any
    alone: bool


def parse_json(text: str) -> Any:
    """Read a text that is one JSON value and nothing else but white space; raises Malformed."""
    value, end = decode_at(text, len(text) - len(text.lstrip()))
    if text[end:].strip():
        raise Malformed("more than one value")
    return value


def find_value(text: str, brackets: str) -> Found:
    """Read the JSON value that a text is, else the one that begins at its first of some brackets.

    Raises Malformed.
    """
    try:
        return Found(parse_json(text), alone=True)
    except Malformed:
        return _find(text, brackets)


def find_object(text: str) -> Found:
    """Read the JSON object that begins at the first brace of a text; raises Malformed."""
    return _find(text, "{")


def _find(text: str, brackets: str) -> Found:
    """Read what begins at the first bracket.

    Later ones are not tried: that would take quadratic time on a text full of them.
    """
    start = min((text.find(one) for one in brackets if one in text), default=None)
    if start is None:
        raise Malformed("no bracket")
    value, end = decode_at(text, start)
    alone = not text[:start].strip() and not text[end:].strip()
    return Found(value, alone)


def closing(text: str, start: int) -> int:
    """Return where the bracket at a position is closed again, brackets in strings left out.

    Raises Malformed if it never is, or if brackets are nested too deep inside. Looked at before
    decoding, so that the answer does not depend on how deep the caller's own stack is, as catching
    RecursionError would; and from the bracket on, since a stray quote before it would turn strings
    inside out.
    """
    depth = 0
    for match in _BRACKETS_AND_STRINGS.finditer(text, start):
        first = match.group()[0]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise Malformed("nested too deep")
        if depth == 0:
            return match.end()
    raise Malformed("a bracket is not closed")


def decode_at(text: str, position: int) -> tuple[Any, int]:
    """Read the JSON value at a position; returns it and where it ends; raises Malformed."""
    if text[position : position + 1] in ("[", "{"):
        closing(text, position)
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise Malformed(error.msg) from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise Malformed("duplicate key")
    return result


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise Malformed("integer too long")
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Malformed("number too large")
    return number


def _constant(text: str) -> Any:
    raise Malformed(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
