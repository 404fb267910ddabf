"""What is taken out of the sandbox to be looked at: JSON of a bounded size, and builtins.

A value that comes out is built again outside, where nothing ends what takes too long. Tuples that
hold each other many times over are small until they are the key of a dict or an element of a set:
then Python hashes them, and walks through every path. So what a value is made of is looked at
inside first, where time and memory are bounded, by a function that the code cannot reach: it, and
the builtins that it needs, are bound anew with each value, before the value is computed.
"""

from __future__ import annotations

from typing import Any

from verifiers import sandbox
from verifiers.values import Normalise, canonical, json_problem

_EXACTLY = Normalise(casefold=False, strip=False, numbers=False)
_SCALARS = (str, int, float, bool, type(None))
_CONTAINERS = (tuple, list, dict, set, frozenset)
_BY_VALUE = (type, *_SCALARS)

# `most` counts values down; a list that is held in many places counts in each.
_LOOK = """
def _nightowl_look(most, isinstance, scalars, str, range, value):
    level = [value]
    while level:
        below = []
        for one in level:
            most -= 1
            if most < 0:
                return ()
            if isinstance(one, scalars):
                continue
            match one:
                case {**pairs}:
                    for key in one:
                        if not isinstance(key, str):
                            return ()
                    below += [*one.values()]
                case [*inner] if not isinstance(one, range):
                    below += inner
                case _:
                    return ()
        level = below
    return (value,)
_nightowl_look(_nightowl_most, _nightowl_is, _nightowl_scalars, _nightowl_str, _nightowl_range, """
# Quicker to read, and to read it is most of the time that a short test takes.
_LOOK_AT_SCALAR = (
    "(lambda isinstance, scalars, value: (value,) if isinstance(value, scalars) else ())"
    "(_nightowl_is, _nightowl_scalars, "
)


class NotJson(Exception):
    """The value is no JSON, or is of more parts than there may be."""


def json_value(session: sandbox.Session, expression: str, most: int) -> Any:
    """Return the value of an expression, tuples being lists or tuples.

    It has at most so many parts, itself included, keys not. Raises NotJson, and what
    `Session.value` raises.
    """
    inputs = {"_nightowl_most": most, "_nightowl_str": str, "_nightowl_range": range}
    return _found(session, f"{_LOOK}(\n{expression}\n))", **inputs)


def scalar_value(session: sandbox.Session, expression: str) -> Any:
    """Return the value of an expression, a text, a number, true, false or null.

    Raises NotJson, and what `Session.value` raises.
    """
    return _found(session, f"{_LOOK_AT_SCALAR}(\n{expression}\n))")


def _found(session: sandbox.Session, look: str, **inputs: Any) -> Any:
    genuine = {
        "_nightowl_is": sandbox.known_builtins()["isinstance"],
        "_nightowl_scalars": _SCALARS,
    }
    found = session.value(look, **genuine, **inputs)
    if not found:
        raise NotJson
    return found[0]


def are_genuine(session: sandbox.Session, known: dict[str, Any]) -> bool:
    """Whether builtins have the meaning that they have in a fresh interpreter.

    Functions are compared inside. The identity of some classes does not survive the way in; so
    what stands in their place is taken out, once it is certain to be a class, or, for `type` alone,
    to look like it.
    """
    if not known:
        return True
    inputs = {
        "_nightowl_known": list(known.values()),
        "_nightowl_is": sandbox.known_builtins()["isinstance"],
        "_nightowl_repr": sandbox.known_builtins()["repr"],
        "_nightowl_scalars": _SCALARS,
        "_nightowl_containers": _CONTAINERS,
    }
    checks = [_seen(name, place, one) for place, (name, one) in enumerate(known.items())]
    try:
        seen = session.value(f"[{', '.join(checks)}]", **inputs)
    except sandbox.Raised:
        return False
    wanted = (one if isinstance(one, _BY_VALUE) else True for one in known.values())
    pairs = zip(seen, wanted, strict=True)
    return all(type(one) is type(other) and one == other for one, other in pairs)


def _seen(name: str, place: int, known: Any) -> str:
    """The expression of what is looked at outside in the place of a builtin."""
    if isinstance(known, type):  # isinstance raises for a second argument that is no class
        is_class = f"_nightowl_is(0, {name}) in (True, False)"
        if known is type:  # which is a function there
            is_class = f"_nightowl_repr({name}) == '<built-in function type>'"
        return f"not _nightowl_is({name}, _nightowl_containers) and {is_class} and {name}"
    if isinstance(known, _SCALARS):
        return f"{name} if _nightowl_is({name}, _nightowl_scalars) else ()"
    return f"{name} is _nightowl_known[{place}]"


def same_json(value: Any, wanted: Any) -> bool:
    """Whether a value is a JSON value, tuples being lists.

    The value is of strings, numbers and the like, lists, tuples, and dicts of these.
    """
    if isinstance(wanted, list):
        if not isinstance(value, list | tuple) or len(value) != len(wanted):
            return False
        return all(map(same_json, value, wanted))
    if isinstance(wanted, dict):
        if not isinstance(value, dict) or value.keys() != wanted.keys():
            return False
        return all(same_json(value[key], one) for key, one in wanted.items())
    if isinstance(value, list | tuple | dict) or json_problem(value) is not None:
        return False
    return canonical(value, _EXACTLY) == canonical(wanted, _EXACTLY)
