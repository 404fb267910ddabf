"""Regular expressions of users: RE2 only, within bounds on the expression and on the text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

MAX_PATTERN_CHARS = 2_000
MAX_PROGRAM = 2_000
"""Instructions; `\\pL` alone takes some seven hundred, a date or an address some thirty."""

MAX_TEXT_BYTES = 32_768
"""RE2's time is linear in the product of the program and the text, so both are bounded."""

# Quoted text, an escape, a class of POSIX, the beginning of a class with a bracket in it.
_TOKEN = re.compile(r"\\Q.*?(?:\\E|\Z)|\\.|\[:\^?\w+:\]|\[\^?\]?|.", re.DOTALL)
_REPEATS = ("*", "+", "?", "{")
_MAX_MEMORY = 1 << 20  # Bytes; what is larger is refused early, before it has cost much.


class TextTooLong(ValueError):
    """The text is longer than a pattern is tried on."""


@dataclass(frozen=True)
class Pattern:
    """An expression that is known to compile; plain data, so that it can be sent to a process."""

    source: str
    ignore_case: bool = False

    def found_in(self, text: str) -> bool:
        """Tell whether the expression is somewhere in the text; raises TextTooLong."""
        return self._compiled().search(_encoded(text)) is not None

    def is_all_of(self, text: str) -> bool:
        """Tell whether the expression matches the whole text; raises TextTooLong."""
        return self._compiled().fullmatch(_encoded(text)) is not None

    def _compiled(self) -> Any:
        return _compile(self.source, self.ignore_case)


def parse_pattern(source: str, ignore_case: bool = False) -> Pattern:
    """Check an expression; raises ValueError that says what is wrong with it."""
    if len(source) > MAX_PATTERN_CHARS:
        raise ValueError(f"is longer than {MAX_PATTERN_CHARS} characters")
    try:
        compiled = _compile(source, ignore_case)
    except re2.error as error:
        raise ValueError(f"is not an RE2 expression: {_reason(error)}") from error
    if compiled.programsize > MAX_PROGRAM:
        raise ValueError("is too large once its repetitions are written out")
    return Pattern(source, ignore_case)


def literal(text: str) -> str:
    """Return the expression that matches exactly this text."""
    escaped: str = re2.escape(text)
    return escaped


def repeated(pieces: Sequence[str | None]) -> tuple[bool, ...]:
    """Tell for each piece of an expression whether it is a gap that what follows it repeats.

    Gaps are None. In a class, as in `[...*]`, nothing is repeated.
    """
    result: list[bool] = []
    in_class = False
    for piece, after in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece is None:
            result.append(not in_class and (after or "").startswith(_REPEATS))
            continue
        result.append(False)
        for token in _TOKEN.findall(piece):
            if in_class:
                in_class = not token.endswith("]") or token[:1] == "\\" or token[:2] == "[:"
            else:
                in_class = token[:1] == "[" and token[:2] != "[:"
    return tuple(result)


@lru_cache(maxsize=256)
def _compile(source: str, ignore_case: bool) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    options.case_sensitive = not ignore_case
    return re2.compile(source.encode("utf-8"), options)


def _encoded(text: str) -> bytes:
    # A surrogate that stands alone has no UTF-8; it is searched as "?".
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TEXT_BYTES:
        raise TextTooLong(f"longer than {MAX_TEXT_BYTES} bytes")
    return data


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else ""
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
