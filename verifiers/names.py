"""Which names code uses, binds, and may bind later: what tests depend on, what code can take away.

Names are Python's own business: `symtable` says which are a module's. Code that this Python cannot
read, because it is newer, is searched as text.
"""

from __future__ import annotations

import functools
import re
import symtable
from collections.abc import Collection, Iterator
from typing import NamedTuple

_GLOBAL = re.compile(r"\bglobal\b([\w\s\\,]*)")
_WORD = re.compile(r"\w+")


class Names(NamedTuple):
    """The names of a module that its code looks up without binding them, and those it binds."""

    used: frozenset[str]
    bound: frozenset[str]


class Module(NamedTuple):
    """The names that a code defines, those it imports, and those it needs from elsewhere.

    A name that it assigns and uses outside of functions is both defined and needed.
    """

    defined: frozenset[str]
    imported: frozenset[str]
    needed: frozenset[str]


def module_of(code: str) -> Module | None:
    """The names of one code; None if it is no Python."""
    try:
        top = symtable.symtable(code, "code", "exec")
        tables = list(_below(top))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    defined = {name for table in tables for name in _declared(table)}
    imported: set[str] = set()
    needed: set[str] = set()
    for symbol in top.get_symbols():
        name = symbol.get_name()
        if symbol.is_imported():
            imported.add(name)
        elif symbol.is_assigned() or symbol.is_namespace():
            defined.add(name)
            if symbol.is_referenced() and not symbol.is_namespace():
                needed.add(name)
        elif symbol.is_referenced():
            needed.add(name)
    inner = {one.get_name() for table in tables for one in table.get_symbols() if one.is_global()}
    needed |= inner - defined - imported
    return Module(frozenset(defined), frozenset(imported), frozenset(needed))


@functools.lru_cache(maxsize=256)
def names_of(codes: tuple[str, ...]) -> Names:
    """The names of codes that run one after the other; one that is no Python has none."""
    used: set[str] = set()
    bound: set[str] = set()
    for code in codes:
        try:
            top = symtable.symtable(code, "code", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for symbol in top.get_symbols():
            if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace():
                bound.add(symbol.get_name())
            elif symbol.is_referenced():
                used.add(symbol.get_name())
        for table in _below(top):
            bound |= set(_declared(table))
            used |= {one.get_name() for one in table.get_symbols() if one.is_global()}
    return Names(frozenset(used - bound), frozenset(bound))


def bound_later(code: str) -> frozenset[str] | None:
    """The module's names that functions of the code may bind when called; None: any at all.

    Functions need `global` for that, or `exec`, which can hide what it does.
    """
    # Beyond ASCII, a name can be spelled in other letters that Python takes for the same.
    if code.isascii() and "global" not in code and "exec" not in code:
        return frozenset()
    try:
        top = symtable.symtable(code, "code", "exec")
        tables = [top, *_below(top)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if re.search(r"\bexec\b", code):
            return None
        return frozenset(name for part in _GLOBAL.findall(code) for name in _WORD.findall(part))
    if any(one.get_name() == "exec" for table in tables for one in table.get_symbols()):
        return None
    return frozenset(name for table in tables for name in _declared(table))


def may_bind(code: str, names: frozenset[str]) -> bool:
    """Whether the functions of the code may bind some of the names when they are called."""
    later = bound_later(code)
    return bool(names) if later is None else not later.isdisjoint(names)


def binds(code: str, names: Collection[str]) -> bool | None:
    """Whether a code binds some of the names as it runs; None if its text does not tell."""
    if not code.isascii() or "eval" in code or "exec" in code:
        return None
    if not any(name in code for name in names):
        return False
    module = module_of(code)
    return None if module is None else not (module.defined | module.imported).isdisjoint(names)


def _below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _below(child)


def _declared(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        binds = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        if binds and symbol.is_declared_global():
            yield symbol.get_name()
