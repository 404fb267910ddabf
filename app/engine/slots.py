"""Experts held ready on the device, each in a slot of its own; least recently used first out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Runtime
from app.engine.layers import Edits

Tensors = Mapping[str, npt.NDArray[np.floating[Any]]]


class NoFreeSlot(Exception):
    """Every slot is in use by rows in flight: wait until one of them is over."""


@dataclass(frozen=True)
class _Slot:
    flat: mx.array  # (total,)
    touched: frozenset[str]  # matrices that it changes


class ExpertSlots:
    """Slots of (total,) coordinates; slot 0 is the plain base and stays zero.

    An array per slot: a table of all would be copied whole to write one of them.

    Args:
        runtime: the base model.
        count: experts held at once.
        source: version id -> tensors; called when an expert is not in a slot.

    Attributes:
        last_read_ms, last_swap_ms: how long it took to read and check the last expert's file, and
            to bring its numbers into a slot; ``None`` before the first.
    """

    def __init__(self, runtime: Runtime, count: int, source: Callable[[str], Tensors]) -> None:
        self._runtime = runtime
        self._source = source
        base = mx.zeros(runtime.coordinates.total)
        mx.eval(base)
        self._slots: list[_Slot] = [_Slot(base, frozenset())] * (count + 1)
        self._free = list(range(count, 0, -1))
        self._held: dict[str, int] = {}  # in order of last use
        self._pins: dict[str, int] = {}
        self.last_read_ms: float | None = None
        self.last_swap_ms: float | None = None

    def acquire(self, expert: str | None) -> int:
        """The expert's slot, loaded if needed and pinned until ``release``.

        Raises ``NoFreeSlot``, and whatever the source raises for a bad file.
        """
        if expert is None:
            return 0
        slot = self._held.pop(expert, None)
        if slot is None:
            slot = self._load(expert)
        self._held[expert] = slot
        self._pins[expert] = self._pins.get(expert, 0) + 1
        return slot

    def release(self, expert: str | None) -> None:
        """One row less uses the expert."""
        if expert is None:
            return
        self._pins[expert] -= 1
        if self._pins[expert] == 0:
            del self._pins[expert]

    def forget(self, expert: str) -> None:
        """Free the slot of an expert that no row uses; one in use is left to age out."""
        if expert in self._held and expert not in self._pins:
            self._free.append(self._held.pop(expert))

    def edits(self, slots: Sequence[int]) -> Edits | None:
        """The edits of rows in these slots; ``None`` when all are the plain base."""
        if not any(slots):
            return None
        held = [self._slots[slot] for slot in slots]
        touched = frozenset[str]().union(*(slot.touched for slot in held))
        return self._runtime.edits(mx.stack([slot.flat for slot in held]), touched)

    def _load(self, expert: str) -> int:
        idle = None if self._free else self._idle()
        started = time.perf_counter()
        tensors = self._source(expert)
        read = time.perf_counter()
        flat = self._runtime.coordinates.join(tensors)
        if idle is not None:
            self._free.append(self._held.pop(idle))
        slot = self._free.pop()
        touched = self._runtime.coordinates.touched(flat[None])
        self._slots[slot] = _Slot(mx.array(flat), touched)
        mx.eval(self._slots[slot].flat)
        self.last_read_ms = 1000 * (read - started)
        self.last_swap_ms = 1000 * (time.perf_counter() - read)
        return slot

    def _idle(self) -> str:
        """The least recently used expert that no row uses."""
        idle = next((e for e in self._held if e not in self._pins), None)
        if idle is None:
            raise NoFreeSlot
        return idle
