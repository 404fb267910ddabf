"""Choosing, in an answer, the code that defines what the tests use.

Answers hold more than the code asked for: prose, an example of its use, tests, a draft. So the text
is read as parts of Python, of which those are taken, in their order, that

* define a name that the tests use: of several the last, but none that reads `input()`, raises or
  imports a test framework as it runs while another defines the name, too. An import is no
  definition where there is one;
* define a name that a part so taken needs, before it rather than after it;
* set an attribute or an item of something so defined.

Parts are the blocks between fences (`verifiers.blocks`; those of Python before unmarked ones, those
before others). Without any, a text that is Python is one part; else its statements that begin a
line and are Python by themselves are, or the blocks that four spaces or a tab make code of, as in
Markdown. Where no part defines what the tests use, the code is what `verifiers.blocks` finds. All
of it is linear in the text, but for a sort.
"""

from __future__ import annotations

import ast
import re
import textwrap
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verifiers.blocks import blocks, code_of
from verifiers.names import Module, module_of
from verifiers.python import parse

MAX_PARTS = 1_000
"""A text with more is taken as it is."""

_PYTHON = ("python", "python3", "py", "py3")
_CONTINUES = re.compile(r"(?:elif|else|except|finally)\b|[)\]}]")
_INDENTED = re.compile(r"(?: {4}|\t)\s*\S")
_FRAMEWORKS = frozenset(("unittest", "pytest", "doctest"))


@dataclass(frozen=True)
class _Part:
    """Code with the names that it binds and needs; `patched` are those it sets something of."""

    code: str
    names: Module
    patched: frozenset[str]
    is_usage: bool


def solution(text: str, wanted: frozenset[str]) -> str:
    """Return the code of an answer that is to define the wanted names."""
    found = list(blocks(text))
    if not found:
        return _unfenced(text, wanted)
    groups: tuple[list[str], ...] = ([], [], [])  # of Python, unmarked, others
    for block in found:
        groups[0 if block.language in _PYTHON else 2 if block.language else 1].append(block.code)
    for codes in groups:
        chosen = _chosen(_parts(codes), wanted)
        if chosen:
            return chosen
    return code_of(text)


def _unfenced(text: str, wanted: frozenset[str]) -> str:
    if _is_python(text):
        return text
    return (
        _chosen(_parts(_statements(text)), wanted)
        or _chosen(_parts(_indented(text)), wanted)
        or text
    )


def _is_python(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _parts(codes: Iterable[str]) -> list[_Part]:
    """Read codes, without those that are no Python; none where there are too many."""
    found: list[_Part] = []
    for number, code in enumerate(codes):
        if number == MAX_PARTS:
            return []
        try:
            body = parse(code).body
        except ValueError:
            continue
        names = module_of(code)
        if names is not None and body:
            whole = code if code.endswith("\n") else f"{code}\n"
            found.append(_Part(whole, names, frozenset(_patched(body)), _is_usage(body)))
    return found


def _chosen(parts: list[_Part], wanted: frozenset[str]) -> str:
    """Join the parts that define the wanted names and what these need; empty if none does."""
    defining: dict[str, list[int]] = defaultdict(list)
    importing: dict[str, list[int]] = defaultdict(list)
    patching: dict[str, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        for places, names in (
            (defining, part.names.defined),
            (importing, part.names.imported),
            (patching, part.patched),
        ):
            for name in names:
                places[name].append(number)
    open_: list[int] = []
    for name in wanted:
        found = defining.get(name) or importing.get(name) or []
        quiet = [number for number in found if not parts[number].is_usage]
        open_ += (quiet or found)[-1:]
    taken: set[int] = set()
    while open_:
        number = open_.pop()
        if number in taken:
            continue
        taken.add(number)
        module = parts[number].names
        for name in module.needed:
            found = defining.get(name) or importing.get(name) or []
            open_ += _nearest(found, number, name in module.defined)
        for name in module.defined:
            open_ += patching.pop(name, [])
    return "".join(parts[number].code for number in sorted(taken))


def _nearest(places: list[int], number: int, before: bool) -> list[int]:
    """The last of the places before a number, or else, if it need not be before, the first."""
    at = bisect_left(places, number)
    if at:
        return places[at - 1 : at]
    return [] if before else places[:1]


def _patched(body: list[ast.stmt]) -> Iterator[str]:
    """The names of which statements set an attribute or an item, as `Stack.push = push` does."""
    for statement in body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            inner = target
            while isinstance(inner, ast.Attribute | ast.Subscript):
                inner = inner.value
            if inner is not target and isinstance(inner, ast.Name):
                yield inner.id


def _is_usage(body: list[ast.stmt]) -> bool:
    """Whether statements read input, raise or import a test framework as they run."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for node in ast.walk(statement):
            match node:
                case ast.Raise() | ast.Call(func=ast.Name(id="input")):
                    return True
                case ast.Import(names=names):
                    modules = [one.name for one in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case _:
                    continue
            if any(one.partition(".")[0] in _FRAMEWORKS for one in modules):
                return True
    return False


def _statements(text: str) -> Iterator[str]:
    """Cut a text where a line begins without white space, but not inside a statement."""
    lines: list[str] = []
    decorated = False
    for line in text.split("\n"):
        begins = line[:1].strip() and not _CONTINUES.match(line)
        if begins and not decorated and lines:
            yield "\n".join(lines)
            lines = []
        lines.append(line)
        if begins:
            decorated = line.startswith("@")
    yield "\n".join(lines)


def _indented(text: str) -> Iterator[str]:
    """Yield the blocks that are code in Markdown by their white space, without it."""
    lines: list[str] = []
    blank = True
    for line in [*text.split("\n"), "end"]:
        if _INDENTED.match(line) and (blank or lines):
            lines.append(line)
        elif not line.strip() and lines:
            lines.append("")
        elif lines:
            yield textwrap.dedent("\n".join(lines))
            lines = []
        blank = not line.strip()
