"""`state`: the calls in a completion are carried out on a model of devices; the end state counts.

The configuration declares the start state and the actions (`verifiers/actions.py`). The item's
`state` says what must be different in the end: an object that is laid over the start state, key by
key, so it may name only what changes, or everything. `null` or `{}` means that nothing must change.
With `start_reference`, the item also has an object that is laid over the start state first.

Score = `calls_weight` * calls + (1 - `calls_weight`) * changes, where

* calls is the mean over the calls of 1 for a valid one, half of that with other text around it, and
  0 for one that is broken or invalid (no such action, a wrong argument, no such device), which also
  changes nothing. Without a call it is 1 if nothing must change, else 0;
* changes is (wanted changes made - unwanted changes) / wanted changes, not below 0. Where nothing
  must change it is 1 for no change, else 0. A change is that of one value from start to end: what
  is switched on and off again has not changed. A wanted change to a wrong value is not made, and is
  not unwanted either.

Where nothing must change, and where other text is ignored, calls of declared actions count in
whatever form `verifiers/calls.py` finds them, and in other forms than the documented ones they are
half valid at best.

Passes when both are 1, and where nothing must change, only if besides calls that change nothing
there is no attempt to call a declared action in whatever form (`verifiers/attempts.py`). With one
of an action that has effects, broken calls among them, everything is 0: nobody can tell what it
would have changed. A completion that makes more than 64 calls fails with score 0.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from verifiers.actions import Action, ActionName, InvalidCall, slot_of
from verifiers.base import (
    NOTHING_RIGHT,
    GraderConfig,
    GraderConfigError,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.calls import MAX_CALLS, attempts_more, read_calls, read_everything, write_calls
from verifiers.devices import Devices, Node, Path, Start, flatten, make_devices, make_start
from verifiers.plans import Goal, counted, plan
from verifiers.readings import Reading, Shape
from verifiers.templates import ItemPath, item_value
from verifiers.values import Normalise, canonical


class StateConfig(GraderConfig):
    """Configuration of `state`."""

    type: Literal["state"]
    start: dict[str, Any] = Field(description="The start state.")
    actions: dict[ActionName, Action] = Field(min_length=1, max_length=100)
    reference: ItemPath = Field(
        default="state", description="Path of what is to be different in the item; {{item.x}} too."
    )
    start_reference: ItemPath | None = Field(
        default=None,
        description="Path of what differs from `start` at first, which every item then has.",
    )
    syntax: Literal["json", "call", "tools"] = Field(
        default="json", description="How calls are written, as for function_call."
    )
    surrounding: Literal["refuse", "ignore"] = Field(
        default="refuse", description="Text around the calls."
    )
    lists: Literal["ordered", "unordered"] = Field(
        default="ordered", description="Whether the order of a list's elements matters."
    )
    normalise: Normalise = Normalise()
    calls_weight: float = Field(default=0.1, ge=0, lt=1)
    no_call_text: str = Field(
        default="none",
        min_length=1,
        max_length=1000,
        description="The text to learn from when nothing must change.",
    )


@dataclass(frozen=True)
class Wanted:
    """What an item wants: the start, and the values that are to differ from it in the end."""

    start: Start
    different: dict[Path, Any]


@dataclass(frozen=True)
class DeviceState(Judge[StateConfig, Wanted]):
    """Carries calls out and compares the state that they lead to."""

    devices: Devices
    start: Start

    def answers(self, item: dict[str, Any], expected: Wanted) -> tuple[str, ...]:
        """Calls that lead to the wanted state, none where no plan is found.

        Where nothing must change this is the configured `no_call_text`. None for `tools`, whose
        calls are not text.
        """
        del item
        ordered = self.config.lists == "ordered"
        calls = plan(Goal(self.devices, expected.start, expected.different, ordered), MAX_CALLS)
        if calls is None:
            return ()
        text = write_calls(calls, self.config.syntax) if calls else self.config.no_call_text
        return () if text is None else (text,)

    def expect(self, item: dict[str, Any]) -> Wanted:
        """The start, with the item's laid over it, and what the item changes in it."""
        start = self.start
        if self.config.start_reference is not None:
            over = _object(item, self.config.start_reference)
            start = make_start(_laid_over(self.config.start, over), self.config.normalise)
        place = self.config.reference
        changes = _object(item, place)
        _check_keys(start.tree, changes, place)
        different = {
            path: value
            for path, value in flatten(changes).items()
            if not self._same(value, start.values[path])
        }
        return Wanted(start, different)

    def compare(self, sample: Sample, expected: Wanted) -> Outcome:
        """Sub-scores are `calls` and `changes`."""
        readings = self._readings(sample, nothing_wanted=not expected.different)
        if len(readings) > MAX_CALLS:
            return NOTHING_RIGHT
        changed, valid = self._carry_out(readings, expected.start)
        made = sum(
            path in changed and self._same(changed[path], value)
            for path, value in expected.different.items()
        )
        unwanted = sum(
            path not in expected.different and not self._same(value, expected.start.values[path])
            for path, value in changed.items()
        )
        many = len(expected.different)
        calls = sum(valid) / len(valid) if valid else float(not many)
        changes = max(0.0, (made - unwanted) / many if many else 1.0 - unwanted)
        weight = self.config.calls_weight
        # min: rounding may carry the mean of ones just above one.
        score = min(1.0, weight * calls + (1 - weight) * changes)
        passed = calls == changes == 1.0
        if not many and changes == 1.0 and self._attempts(sample, harmless=passed):
            return Outcome(False, 0.0, {"calls": 0.0, "changes": 0.0})
        return Outcome(passed, 1.0 if passed else score, {"calls": calls, "changes": changes})

    def _attempts(self, sample: Sample, harmless: bool) -> bool:
        """Look for attempts to call actions with effects, or without them, too."""
        actions = self.config.actions.items()
        names = [name for name, action in actions if harmless or action.effects]
        return attempts_more(sample, self.config.syntax, names, only=True)

    def _readings(self, sample: Sample, nothing_wanted: bool) -> tuple[Reading, ...]:
        syntax, ignore = self.config.syntax, self.config.surrounding == "ignore"
        if ignore or nothing_wanted:
            return read_everything(sample, syntax, ignore, self.config.actions.keys())
        return read_calls(sample, syntax, ignore)

    def _carry_out(
        self, readings: tuple[Reading, ...], start: Start
    ) -> tuple[dict[Path, Any], list[float]]:
        """Return the values that were set, and of each call how well formed and valid it is."""
        changed: dict[Path, Any] = {}
        state = ChainMap(changed, start.values)
        valid: list[float] = []
        for reading in readings:
            try:
                if reading.shape is Shape.BROKEN:
                    raise InvalidCall
                arguments = dict(reading.arguments)
                changed.update(self.devices.apply(start.tree, state, reading.name, arguments))
                valid.append(reading.shape.value)
            except InvalidCall:
                valid.append(0.0)
        return changed, valid

    def _same(self, one: Any, other: Any) -> bool:
        return self._form(one) == self._form(other)

    def _form(self, value: Any) -> Hashable:
        normalise = self.config.normalise
        if self.config.lists == "unordered" and isinstance(value, list):
            return frozenset(counted(value, normalise).items())
        return canonical(value, normalise)


def _object(item: dict[str, Any], place: str) -> dict[str, Any]:
    """Return an object of the item, an empty one for null; raises ItemError."""
    value = item_value(item, place)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ItemError(f"the item's field '{place}' is not null or a JSON object")
    return value


def _laid_over(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _laid_over(below, value)
        else:
            merged[key] = value
    return merged


def _check_keys(tree: Node, changes: dict[str, Any], place: str) -> None:
    """Raise ItemError where a change is of something that no action could reach."""
    for key, value in changes.items():
        here = f"{place}.{key}"
        if key not in tree.children:
            raise ItemError(f"the item's field '{here}' is not in the state")
        node = tree.children[key]
        if (node is not None) != isinstance(value, dict):
            raise ItemError(f"the item's field '{here}' is an object here or in the state only")
        if node is not None:
            _check_keys(node, value, here)


def _make(config: StateConfig) -> DeviceState:
    devices = make_devices(config.actions, config.normalise)
    start = make_start(config.start, config.normalise)
    if config.start_reference is None:
        _check_paths(config, devices, start)
    return DeviceState(config, devices, start)


def _check_paths(config: StateConfig, devices: Devices, start: Start) -> None:
    """Raise GraderConfigError where an effect's path leads nowhere, whatever the arguments."""
    for name, action in config.actions.items():
        for index, effect in enumerate(action.effects):
            anywhere = ".".join("*" if slot_of(one) else one for one in effect.path.split("."))
            try:
                devices.resolve(start.tree, anywhere, {})
            except InvalidCall:
                raise GraderConfigError(
                    f"actions.{name}.effects.{index}.path", "leads to no value in the state"
                ) from None


STATE = family(StateConfig, _make)
