"""Keys and values of prompts that were read before, for later prompts that begin alike.

An entry belongs to one expert: keys and values depend on the expert.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.cache import LayerTensors

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class PrefixEntry:
    """Keys and values of one prompt under one expert: (1, Hkv, T, D) per layer."""

    tokens: Tokens
    layers: LayerTensors

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(k.nbytes + v.nbytes for k, v in self.layers)


@dataclass(frozen=True)
class Known:
    """The first ``length`` tokens of an entry."""

    entry: PrefixEntry
    length: int

    def tensors(self) -> LayerTensors:
        """Their keys and values, (1, Hkv, length, D) per layer, in place."""
        return [(k[:, :, : self.length], v[:, :, : self.length]) for k, v in self.entry.layers]


@dataclass
class PrefixCache:
    """Prompts' keys and values, reused by later prompts of the same expert; LRU within bytes.

    Attributes:
        budget_bytes: what all entries together may hold.
    """

    budget_bytes: int
    held_bytes: int = 0
    _entries: OrderedDict[int, tuple[str, PrefixEntry]] = field(default_factory=OrderedDict)
    _next: int = 0

    def longest(self, expert: str, tokens: Tokens) -> Known | None:
        """The longest shared prefix with any prompt of ``expert``."""
        best, best_key = 0, -1
        for key, (owner, entry) in self._entries.items():
            if owner != expert:
                continue
            shared = shared_prefix(entry.tokens, tokens)
            if shared > best:
                best, best_key = shared, key
        if best == 0:
            return None
        self._entries.move_to_end(best_key)
        return Known(self._entries[best_key][1], best)

    def add(self, expert: str, entry: PrefixEntry) -> None:
        """Keep a prompt, evicting the least recently used beyond the budget."""
        if entry.nbytes > self.budget_bytes:
            return
        self._entries[self._next] = (expert, entry)
        self._next += 1
        self.held_bytes += entry.nbytes
        while self.held_bytes > self.budget_bytes:
            _, (_, old) = self._entries.popitem(last=False)
            self.held_bytes -= old.nbytes

    def forget(self, expert: str) -> None:
        """Drop every entry of an expert that is gone."""
        for key in [k for k, (owner, _) in self._entries.items() if owner == expert]:
            self.held_bytes -= self._entries.pop(key)[1].nbytes


def shared_prefix(a: Tokens, b: Tokens) -> int:
    """Number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length


def entry_of(tokens: Tokens, layers: LayerTensors) -> PrefixEntry:
    """An entry with arrays of its own, evaluated: nothing else is kept alive by it."""
    own = [(mx.contiguous(k), mx.contiguous(v)) for k, v in layers]
    mx.eval(own)
    return PrefixEntry(tokens, own)


def whole(known: Known | None, own: LayerTensors) -> LayerTensors:
    """Keys and values of a beginning and of what follows it, (1, Hkv, T + C, D) per layer."""
    if known is None:
        return own
    return [
        (mx.concatenate([a[0], b[0]], axis=2), mx.concatenate([a[1], b[1]], axis=2))
        for a, b in zip(known.tensors(), own, strict=True)
    ]
