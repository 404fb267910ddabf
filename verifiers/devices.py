"""A model of devices: a state of named values, and calls of actions that change it.

The state is a JSON object. Whatever in it is no object is a value: a switch, a level, a list. Keys
are never added or removed, so a call that names a device which is not there is invalid. The effects
of a call happen in order, all of them or, if the call is invalid, none.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from verifiers.actions import (
    EXACT,
    Action,
    Change,
    Effect,
    InvalidCall,
    Parameter,
    Scalar,
    as_text,
    is_plain_number,
    result,
    slot_of,
    slots,
)
from verifiers.base import GraderConfigError
from verifiers.values import Normalise, canonical

Path: TypeAlias = tuple[str, ...]
State: TypeAlias = Mapping[Path, Any]


@dataclass(frozen=True)
class Node:
    """The keys of an object in the state, by spelling; None below a key stands for a value."""

    children: dict[str, Node | None]
    spellings: dict[Hashable, str]


@dataclass(frozen=True)
class Start:
    """The state at the start: its keys, and every value by its place."""

    tree: Node
    values: dict[Path, Any]


@dataclass(frozen=True)
class Devices:
    """The actions, and what the listed values of their parameters can be spelled as."""

    actions: dict[str, Action]
    normalise: Normalise
    spellings: dict[tuple[str, str], dict[Hashable, Scalar]]

    def apply(
        self, tree: Node, state: State, name: str, arguments: Mapping[str, Any]
    ) -> dict[Path, Any]:
        """Return the values that a call sets; raises InvalidCall."""
        action = self.actions.get(name)
        if action is None or not arguments.keys() <= action.parameters.keys():
            raise InvalidCall
        values = self._values(name, action, arguments)
        effects = [effect for effect in action.effects if slots(effect) <= values.keys()]
        if action.effects and not effects:
            raise InvalidCall
        changes: dict[Path, Any] = {}
        for effect in effects:
            for path in self.resolve(tree, effect.path, values):
                old = changes.get(path, state[path])
                changes[path] = result(effect, old, values, self.normalise)
        return changes

    def resolve(self, tree: Node, path: str, arguments: Mapping[str, Scalar]) -> list[Path]:
        """Return the places of values that a path leads to; raises InvalidCall without one."""
        found: list[tuple[Path, Node | None]] = [((), tree)]
        for step in path.split("."):
            found = [
                ((*place, key), node.children[key])
                for place, node in found
                if node is not None
                for key in self._keys(node, step, arguments)
            ]
        values = [place for place, node in found if node is None]
        if not values:
            raise InvalidCall
        return values

    def _keys(self, node: Node, step: str, arguments: Mapping[str, Scalar]) -> Iterator[str]:
        name = slot_of(step)
        if step == "*":
            yield from node.children
        elif name is None:
            yield from [step] if step in node.children else []
        else:
            spelled = as_text(arguments[name], Normalise())
            known = spelled in node.children
            key = spelled if known else node.spellings.get(canonical(spelled, self.normalise))
            yield from [] if key is None else [key]

    def _values(self, name: str, action: Action, arguments: Mapping[str, Any]) -> dict[str, Scalar]:
        values: dict[str, Scalar] = {}
        for key, parameter in action.parameters.items():
            if key in arguments:
                values[key] = self._read(parameter, self.spellings[name, key], arguments[key])
            elif parameter.default is not None:
                values[key] = parameter.default
            elif not parameter.optional:
                raise InvalidCall
        return values

    def _read(self, parameter: Parameter, spellings: dict[Hashable, Scalar], value: Any) -> Scalar:
        if isinstance(value, dict | list):
            raise InvalidCall
        spelled = canonical(value, self.normalise)
        if spelled in spellings:
            return spellings[spelled]
        if parameter.values is not None:
            raise InvalidCall
        return parameter.typed(value, self.normalise)


def make_devices(actions: dict[str, Action], normalise: Normalise) -> Devices:
    """Make the model of declared actions; raises GraderConfigError."""
    spellings: dict[tuple[str, str], dict[Hashable, Scalar]] = {}
    for action_name, action in actions.items():
        for name, parameter in action.parameters.items():
            place = f"actions.{action_name}.parameters.{name}"
            spellings[action_name, name] = _spellings(parameter, place, normalise)
        for index, effect in enumerate(action.effects):
            _check_effect(action, effect, f"actions.{action_name}.effects.{index}")
    return Devices(actions, normalise, spellings)


def make_start(value: dict[str, Any], normalise: Normalise) -> Start:
    """Index a start state."""
    return Start(make_tree(value, normalise), flatten(value))


def make_tree(value: dict[str, Any], normalise: Normalise) -> Node:
    """Index the keys of a state; a spelling that could be two keys is neither."""
    children: dict[str, Node | None] = {}
    spellings: dict[Hashable, str] = {}
    ambiguous: set[Hashable] = set()
    for key, inner in value.items():
        children[key] = make_tree(inner, normalise) if isinstance(inner, dict) else None
        spelled = canonical(key, normalise)
        if spelled in spellings:
            ambiguous.add(spelled)
        spellings[spelled] = key
    return Node(children, {one: key for one, key in spellings.items() if one not in ambiguous})


def flatten(value: dict[str, Any], place: Path = ()) -> dict[Path, Any]:
    """Return every value of a state by its place."""
    found: dict[Path, Any] = {}
    for key, inner in value.items():
        here = (*place, key)
        found.update(flatten(inner, here) if isinstance(inner, dict) else {here: inner})
    return found


def _check_effect(action: Action, effect: Effect, place: str) -> None:
    unknown = sorted(slots(effect) - action.parameters.keys())
    if unknown:
        raise GraderConfigError(place, f"the action has no parameter {unknown[0]!r}")
    if not isinstance(effect, Change):
        return
    name = slot_of(effect.value)
    numeric = (
        action.parameters[name].type in ("integer", "number")
        if name
        else is_plain_number(effect.value)
    )
    if not numeric:
        raise GraderConfigError(f"{place}.value", "is not a number")


def _spellings(parameter: Parameter, place: str, normalise: Normalise) -> dict[Hashable, Scalar]:
    """Return every text and value that stands for a listed value; raises GraderConfigError."""
    listed = [canonical(value, EXACT) for value in parameter.values or ()]
    named = [*(parameter.values or ()), *parameter.aliases.values()]
    for value in named if parameter.default is None else [*named, parameter.default]:
        try:
            parameter.typed(value, EXACT)
        except InvalidCall:
            message = f"{value!r} is no {parameter.type} within the bounds"
            raise GraderConfigError(place, message) from None
        if listed and canonical(value, EXACT) not in listed:
            raise GraderConfigError(place, f"{value!r} is not one of the values")
    aliases = {canonical(text, normalise): value for text, value in parameter.aliases.items()}
    return aliases | {canonical(value, normalise): value for value in parameter.values or ()}
