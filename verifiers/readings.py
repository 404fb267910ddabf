"""Calls as they were read out of a completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


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


class Placed(NamedTuple):
    """A call and where it stands in the text."""

    position: int
    reading: Reading


class Piece(NamedTuple):
    """A part of the text that is no part of a call, and where it stands."""

    position: int
    text: str


@dataclass
class Found:
    """What a text holds.

    `calls` are in the documented form or begin in it. `nested` ones are calls inside of other
    values. `rest` is what nothing was made of, in which there may be calls in other forms. `ends`
    says where each of `calls` ends. `alone` is true if nothing is beside the calls, `listed` if
    nothing is but an array's punctuation.
    """

    calls: list[Placed] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    nested: list[Placed] = field(default_factory=list)
    rest: list[Piece] = field(default_factory=list)
    alone: bool = True
    listed: bool = False
