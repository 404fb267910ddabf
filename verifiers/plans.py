"""A sequence of calls that brings devices from one state to another, found greedily.

Each step takes a value that is not yet as wanted, tries the calls whose effects could change it
that way, and makes the one after which the state is nearest to the wanted one. That finds what
people ask of an assistant; it is no search, and gives up where every call leads away at first.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verifiers.actions import (
    EXACT,
    Action,
    Change,
    Effect,
    InvalidCall,
    Remove,
    SetValue,
    Toggle,
    as_exact,
    as_json,
    is_plain_number,
    slot_of,
)
from verifiers.devices import Devices, Path, Start, State
from verifiers.values import Normalise, canonical

Call = tuple[str, dict[str, Any]]
Bindings = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """Where the devices are to be brought: the values that are to differ from the start's."""

    devices: Devices
    start: Start
    different: Mapping[Path, Any]
    lists_are_ordered: bool

    def wanted(self, path: Path) -> Any:
        """Return the value that is wanted in the end."""
        return self.different.get(path, self.start.values[path])

    def differing(self, state: State, changed: Iterable[Path]) -> list[Path]:
        """Return the values that are not as wanted, given those that are not as at the start."""
        places = dict.fromkeys((*self.different, *changed))
        return [path for path in places if self._far(state[path], self.wanted(path))]

    def distance(self, state: State, changed: Iterable[Path]) -> float:
        """Add up how far each value is from the wanted one."""
        places = dict.fromkeys((*self.different, *changed))
        return sum(self._far(state[path], self.wanted(path)) for path in places)

    def _far(self, value: Any, wanted: Any) -> float:
        """Return 0 for the same value; more than 1, and more the farther, for lists and numbers."""
        normalise = self.devices.normalise
        if canonical(value, normalise) == canonical(wanted, normalise):
            return 0.0
        if isinstance(value, list) and isinstance(wanted, list):
            have, want = counted(value, normalise), counted(wanted, normalise)
            wrong = (have - want).total() + (want - have).total()
            return wrong + 1.0 if wrong or self.lists_are_ordered else 0.0
        if is_plain_number(value) and is_plain_number(wanted):
            gap = abs(as_exact(value, EXACT) - as_exact(wanted, EXACT))
            return 1.0 + float(gap / (1 + gap))
        return 1.0


def plan(goal: Goal, most: int) -> list[Call] | None:
    """Return at most so many calls after which the state is as wanted, None if none are found."""
    changed: dict[Path, Any] = {}
    state = ChainMap(changed, goal.start.values)
    calls: list[Call] = []
    while goal.differing(state, changed):
        step = _best_step(goal, state, changed)
        if step is None or len(calls) == most:
            return None
        calls.append(step)
        changed.update(goal.devices.apply(goal.start.tree, state, *step))
    return calls


def counted(values: list[Any], normalise: Normalise) -> Counter[Any]:
    """Count the elements of a list by their canonical forms."""
    return Counter(canonical(value, normalise) for value in values)


def _best_step(goal: Goal, state: State, changed: Mapping[Path, Any]) -> Call | None:
    now = goal.distance(state, changed)
    for path in goal.differing(state, changed):
        best: tuple[float, Call] | None = None
        for call in _candidates(goal, state, path):
            try:
                changes = goal.devices.apply(goal.start.tree, state, *call)
            except InvalidCall:
                continue
            then = {**changed, **changes}
            after = goal.distance(ChainMap(then, goal.start.values), then)
            if after < (now if best is None else best[0]):
                best = after, call
        if best is not None:
            return best[1]
    return None


def _candidates(goal: Goal, state: State, path: Path) -> Iterator[Call]:
    """Make the calls one of whose effects could bring a value nearer."""
    for name, action in goal.devices.actions.items():
        for effect in action.effects:
            bindings = _bind_path(effect.path, path)
            if bindings is None or not _bind_value(effect, goal, state, path, bindings):
                continue
            arguments = _completed(goal, action, bindings)
            if arguments is not None:
                yield name, arguments


def _bind_path(pattern: str, path: Path) -> Bindings | None:
    """Bind parameters so that a pattern leads to a path, None where it cannot."""
    steps = pattern.split(".")
    if len(steps) != len(path):
        return None
    bindings: Bindings = {}
    for step, key in zip(steps, path, strict=True):
        name = slot_of(step)
        if (name and bindings.setdefault(name, key) != key) or (
            not name and step not in (key, "*")
        ):
            return None
    return bindings


def _bind_value(effect: Effect, goal: Goal, state: State, path: Path, bindings: Bindings) -> bool:
    """Bind the parameter of an effect's value; False where no value would bring it nearer."""
    old, wanted = state[path], goal.wanted(path)
    if isinstance(effect, Toggle):
        return isinstance(old, bool)
    name = slot_of(effect.value)
    if name is None or name in bindings:
        return True  # Whether it helps is seen when the call is tried.
    try:
        value = _useful_value(effect, old, wanted, goal.devices.normalise)
    except InvalidCall:
        return False
    bindings[name] = value
    return value is not None


def _useful_value(effect: Effect, old: Any, wanted: Any, normalise: Normalise) -> Any:
    """Return the argument that helps most, None where none does; raises InvalidCall."""
    if isinstance(effect, SetValue):
        return wanted
    if isinstance(effect, Change):
        gap = as_exact(wanted, EXACT) - as_exact(old, EXACT)
        step = gap if effect.op == "increment" else -gap
        return as_json(step) if step > 0 else None
    if not isinstance(old, list) or not isinstance(wanted, list):
        return None
    more, less = (old, wanted) if isinstance(effect, Remove) else (wanted, old)
    left = counted(less, normalise)
    for element in more:
        form = canonical(element, normalise)
        if not left[form]:
            return element
        left[form] -= 1
    return None


def _completed(goal: Goal, action: Action, bindings: Bindings) -> dict[str, Any] | None:
    """Fill the parameters that are still open from the action's other effects."""
    for effect in action.effects:
        name = slot_of(effect.value) if isinstance(effect, SetValue) else None
        if name is not None and name not in bindings:
            value = _wanted_there(goal, effect.path, bindings)
            if value is not None:
                bindings[name] = value
    arguments: dict[str, Any] = {}
    for name, parameter in action.parameters.items():
        if name in bindings:
            arguments[name] = bindings[name]
        elif parameter.default is None and not parameter.optional:
            return None
    return arguments


def _wanted_there(goal: Goal, path: str, bindings: Mapping[str, Any]) -> Any:
    if any(name not in bindings for step in path.split(".") if (name := slot_of(step))):
        return None
    try:
        return goal.wanted(goal.devices.resolve(goal.start.tree, path, bindings)[0])
    except InvalidCall:
        return None
