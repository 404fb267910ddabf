"""Templates of grader configurations: text with `{{ item.a.b }}` and `{{ sample.output_text }}`.

A template is parsed once, when the grader is built. Filling it in is one pass: braces that come out
of an item or a completion are plain text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from verifiers.base import ItemError
from verifiers.values import Missing, look_up

_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ITEM_EXPRESSION = re.compile(r"\{\{\s*item\.(.*?)\s*\}\}")
_PATH = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


class Slot(Enum):
    """A place in a template that stays open until there is a completion.

    An enumeration, so that it stays the same object in a grader sent to another process.
    """

    OUTPUT = "sample.output_text"


@dataclass(frozen=True)
class Bound:
    """A template whose item fields are filled in; only the completion is open."""

    pieces: tuple[str | Slot, ...]

    @property
    def text(self) -> str | None:
        """The whole text if the completion has no place in it, else None."""
        return None if Slot.OUTPUT in self.pieces else self.render("")

    def render(self, output: str) -> str:
        """Return the text with the completion in its places."""
        return "".join(output if isinstance(piece, Slot) else piece for piece in self.pieces)


@dataclass(frozen=True)
class Template:
    """A parsed template: literal texts, paths into the item, places of the completion."""

    pieces: tuple[str | tuple[str, ...] | Slot, ...]

    @property
    def uses_output(self) -> bool:
        """True when the completion has a place in the template."""
        return Slot.OUTPUT in self.pieces

    @property
    def constant(self) -> str | None:
        """The text that the template always gives, None if it depends on anything."""
        texts = [piece for piece in self.pieces if isinstance(piece, str)]
        return "".join(texts) if len(texts) == len(self.pieces) else None

    def bind(self, item: dict[str, Any]) -> Bound:
        """Fill in the item's fields; raises ItemError for one that is missing or null."""
        return Bound(
            tuple(
                _item_text(item, piece) if isinstance(piece, tuple) else piece
                for piece in self.pieces
            )
        )


def parse_template(text: str) -> Template:
    """Parse a template; raises ValueError that says which expression is wrong."""
    pieces: list[str | tuple[str, ...] | Slot] = []
    position = 0
    for match in _EXPRESSION.finditer(text):
        pieces.append(_literal(text[position : match.start()]))
        pieces.append(_expression(match.group(1).strip()))
        position = match.end()
    pieces.append(_literal(text[position:]))
    return Template(tuple(pieces))


def parse_path(text: str) -> tuple[str, ...]:
    """Parse a dotted path into the item, bare or as `{{ item.path }}`; raises ValueError."""
    match = _ITEM_EXPRESSION.fullmatch(text)
    path = match.group(1) if match else text
    if not _PATH.fullmatch(path):
        raise ValueError(f"{text!r} is not a path into the item, such as 'answer' or 'wanted.call'")
    return tuple(path.split("."))


def item_value(item: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return the item's value at a path, null included; raises ItemError."""
    try:
        return look_up(item, path)
    except Missing as error:
        raise ItemError(f"the item has no field '{error}'") from error


def _literal(text: str) -> str:
    if "{{" in text or "}}" in text:
        raise ValueError("unbalanced '{{' or '}}'")
    return text


def _expression(text: str) -> tuple[str, ...] | Slot:
    if text == Slot.OUTPUT.value:
        return Slot.OUTPUT
    root, _, path = text.partition(".")
    if root == "item" and _PATH.fullmatch(path):
        return tuple(path.split("."))
    raise ValueError(f"{text!r} is neither 'item.<field>' nor '{Slot.OUTPUT.value}'")


def _item_text(item: dict[str, Any], path: tuple[str, ...]) -> str:
    value = item_value(item, path)
    if value is None:
        raise ItemError(f"the item's field '{'.'.join(path)}' is null")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
