"""The values that an item allows in one place, in the form of BFCL's `possible_answer`.

* A list holds the allowed values; "" among them means that the place may stay empty.
* What is not a list is the only allowed value. A value that is a list is wrapped: `[[1, 2]]`.
* An object among the allowed values is read as the arguments of a call are: each of its keys has
  allowed values of its own. The elements of an allowed list are values, objects of that kind too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from verifiers.base import ItemError
from verifiers.values import Normalise, canonical


@dataclass(frozen=True)
class Allowed:
    """The allowed values of one place, simple ones in canonical form, and whether it may be empty.

    `example` is one of them, itself without what may be left out.
    """

    simple: frozenset[Hashable]
    objects: tuple[dict[str, Allowed], ...]
    lists: tuple[tuple[Allowed, ...], ...]
    optional: bool
    example: Any

    def accept(self, value: Any, normalise: Normalise) -> bool:
        """Tell whether a value is one of the allowed ones."""
        if isinstance(value, dict):
            return any(accept_object(one, value, normalise) for one in self.objects)
        if isinstance(value, list):
            return any(_accept_list(one, value, normalise) for one in self.lists)
        return canonical(value, normalise) in self.simple


def parse_allowed(value: Any, place: str, normalise: Normalise) -> Allowed:
    """Read what an item allows in a place, which an ItemError names."""
    if value == []:
        raise ItemError(f"the item's field '{place}' allows no value")
    choices = value if isinstance(value, list) else [value]
    return _parse_choices(choices, isinstance(value, list) and "" in value, place, normalise)


def parse_object(value: dict[str, Any], place: str, normalise: Normalise) -> dict[str, Allowed]:
    """Read an object whose keys have allowed values each; raises ItemError."""
    return {key: parse_allowed(one, f"{place}.{key}", normalise) for key, one in value.items()}


def accept_object(allowed: dict[str, Allowed], value: dict[str, Any], normalise: Normalise) -> bool:
    """Tell whether an object has an allowed value in each place, and nothing else."""
    if not all(key in value or one.optional for key, one in allowed.items()):
        return False
    return all(key in allowed and allowed[key].accept(value[key], normalise) for key in value)


def example_object(allowed: dict[str, Allowed]) -> dict[str, Any]:
    """Return an accepted object without what may be left out."""
    return {key: one.example for key, one in allowed.items() if not one.optional}


def _parse_choices(choices: list[Any], optional: bool, place: str, normalise: Normalise) -> Allowed:
    objects = tuple(parse_object(one, place, normalise) for one in choices if isinstance(one, dict))
    lists = tuple(
        tuple(_parse_choices([element], False, place, normalise) for element in one)
        for one in choices
        if isinstance(one, list)
    )
    simple = [one for one in choices if not isinstance(one, dict | list)]
    if isinstance(choices[0], dict):
        example: Any = example_object(objects[0])
    elif isinstance(choices[0], list):
        example = [element.example for element in lists[0]]
    else:
        example = choices[0]
    return Allowed(
        frozenset(canonical(one, normalise) for one in simple), objects, lists, optional, example
    )


def _accept_list(allowed: tuple[Allowed, ...], value: list[Any], normalise: Normalise) -> bool:
    return len(allowed) == len(value) and all(
        one.accept(element, normalise) for one, element in zip(allowed, value, strict=True)
    )
