"""Finding the code in an answer: blocks between fences, as models write them.

A fence is three or more ` or ~ at the start of a line (up to three spaces before them, as in
Markdown), so a word in backticks, or a fence inside of an indented docstring, is none. A block ends
at a fence of the same sort that is as long, or with the text.

Blocks marked as Python are taken before unmarked ones, those before others. Of several, all that
are Python are joined in their order: models explain a solution in parts, show how it is used, or
give a draft and then the whole; what is defined last holds. What is no Python by itself, such as
output or a session with >>>, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from verifiers.python import parse

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
_LANGUAGE = re.compile(r"[\s{.]*([\w+#-]*)")
_PYTHON = frozenset({"python", "python3", "py", "py3"})


class Block(NamedTuple):
    """The lines between two fences, and the first word after the upper one."""

    language: str
    code: str


def code_of(text: str) -> str:
    """Return the code of an answer: that of its blocks, all of it where there is none."""
    found = list(blocks(text))
    if not found:
        return text
    chosen = [block.code for block in found if block.language in _PYTHON]
    chosen = chosen or [block.code for block in found if not block.language]
    if len(chosen) > 1:
        chosen = [code for code in chosen if _is_python(code)] or chosen[:1]
    return "".join(chosen) if chosen else found[0].code


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a text, without the spaces that stand before the fence."""
    language, fence, indent, lines = "", "", 0, list[str]()
    for line in text.removesuffix("\n").split("\n"):
        mark = _FENCE.fullmatch(line.rstrip())
        if not fence:
            if mark is not None and not (mark[2][0] == "`" and "`" in mark[3]):
                indent, fence = len(mark[1]), mark[2]
                word = _LANGUAGE.match(mark[3])
                language, lines = word[1].lower() if word else "", []
        elif mark is not None and mark[2].startswith(fence) and not mark[3]:
            yield Block(language, "".join(lines))
            fence = ""
        else:
            spaces = len(line) - len(line.lstrip(" "))
            lines.append(line[min(indent, spaces) :] + "\n")
    if fence:
        yield Block(language, "".join(lines))


def _is_python(code: str) -> bool:
    try:
        parse(code)
    except ValueError:
        return False
    return True
