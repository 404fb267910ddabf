"""Key-value memory of a batch, and the cache of prompt prefixes.

Rows are *right-aligned*: a row with fewer tokens has padding columns on its left, so that every
decode step writes one column for all rows.  A batch is P groups of R rows; a group may have a
*prefix*, prompt tokens that all its rows share.  The prefix's keys and values are stored once per
group and attended to in place, in one matmul per group (as Hydragen, arXiv 2402.05099), never
repeated per row or copied per step.  A prefix is never shared between experts: its keys and
values depend on the expert.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.maths import softmax

LayerTensors = list[tuple[mx.array, mx.array]]  # per layer: keys and values, (rows, Hkv, T, D)


class Layout:
    """Where the tokens of a batch's rows lie; one object shared by all its layers.

    Attributes:
        groups, rows: P and R; B = P * R rows, the rows of a group side by side.
        prefix: T, tokens of each group's shared prefix (0 = none).
        pad: (B,) int32, padding columns at the left of each row.
        cursor: columns filled so far.
    """

    def __init__(self, groups: int, rows: int, prefix: int, pad: npt.NDArray[np.int32]) -> None:
        self.groups = groups
        self.rows = rows
        self.prefix = prefix
        self.pad = pad
        self.cursor = 0
        self.length = 0
        self.positions = mx.array(0)
        self._masks: dict[int | None, mx.array | None] = {}
        self._prefix_masks: dict[int | None, mx.array | None] = {}

    def begin(self, length: int) -> None:
        """Prepare a forward pass over ``length`` new columns: positions and masks."""
        self.length = length
        first = self.prefix + self.cursor - self.pad
        self.positions = mx.array(first.astype(np.int32))
        self._masks = {}
        self._prefix_masks = {}

    def end(self) -> None:
        """The columns of this pass are filled."""
        self.cursor += self.length

    def mask(self, window: int | None) -> mx.array | None:
        """(B or 1, 1, 1, L, C) bool, True where a query may see a column; ``None`` = everywhere."""
        if window not in self._masks:
            self._masks[window] = self._own_mask(window)
        return self._masks[window]

    def _own_mask(self, window: int | None) -> mx.array | None:
        query = np.arange(self.cursor, self.cursor + self.length)[:, None]  # (L, 1)
        column = np.arange(self.cursor + self.length)[None, :]  # (1, C)
        causal = column <= query
        if window is not None:
            causal &= column > query - window
        visible = causal[None] & (column[None] >= self.pad[:, None, None])  # (B, L, C)
        if visible.all():
            return None
        return mx.array(visible[:, None, None])

    def prefix_mask(self, window: int | None) -> mx.array | None:
        """(B, 1, 1, L, T) bool over the shared prefix; only a sliding window hides any of it."""
        if window not in self._prefix_masks:
            self._prefix_masks[window] = self._window_mask(window)
        return self._prefix_masks[window]

    def _window_mask(self, window: int | None) -> mx.array | None:
        if window is None:
            return None
        column = np.arange(self.cursor, self.cursor + self.length)
        position = self.prefix + column[None, :] - self.pad[:, None]  # (B, L)
        visible = np.arange(self.prefix) > position[:, :, None] - window  # (B, L, T)
        if visible.all():
            return None
        return mx.array(visible[:, None, None])


class GroupKV:
    """Keys and values of one layer of a batch.

    Args:
        layout: shared by the layers.
        capacity: columns to reserve.
        prefix: keys and values of the shared prefix, (P, Hkv, T, D), or ``None``.
        own: keys and values of columns filled already, (B, Hkv, cursor, D), or ``None``.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        prefix: tuple[mx.array, mx.array] | None = None,
        own: tuple[mx.array, mx.array] | None = None,
    ) -> None:
        self.layout = layout
        self.capacity = capacity
        self.prefix = prefix
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        if own is not None:
            self.keys, self.values = (_widen(part, capacity) for part in own)

    @property
    def positions(self) -> mx.array:
        """(B,) position of the first new token of each row."""
        return self.layout.positions

    def own(self) -> tuple[mx.array, mx.array]:
        """Filled columns, (B, Hkv, cursor, D) each."""
        assert self.keys is not None and self.values is not None
        filled = self.layout.cursor
        return self.keys[:, :, :filled], self.values[:, :, :filled]

    def beside(self, others: Sequence[GroupKV], layout: Layout) -> GroupKV:
        """One store of the groups of several, which have the same columns and prefix length."""
        caches = (self, *others)
        own = (
            mx.concatenate([c.own()[0] for c in caches]),
            mx.concatenate([c.own()[1] for c in caches]),
        )
        prefix = None
        if self.prefix is not None:
            found = [c.prefix for c in caches if c.prefix is not None]
            prefix = (
                mx.concatenate([k for k, _ in found]),
                mx.concatenate([v for _, v in found]),
            )
        return GroupKV(layout, self.capacity, prefix, own)

    def _store(self, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        start, stop = self.layout.cursor, self.layout.cursor + k.shape[2]
        if stop > self.capacity:
            raise ValueError(f"key-value store of {self.capacity} columns is full")
        if self.keys is None and stop == self.capacity:
            self.keys, self.values = k, v  # one pass fills it all: nothing to reserve
            return k, v
        if self.keys is None or self.values is None:
            shape = (k.shape[0], k.shape[1], self.capacity, k.shape[3])
            self.keys, self.values = mx.zeros(shape, k.dtype), mx.zeros(shape, v.dtype)
        self.keys[:, :, start:stop] = k
        self.values[:, :, start:stop] = v
        return self.keys[:, :, :stop], self.values[:, :, :stop]

    def attend(
        self, q: mx.array, k: mx.array, v: mx.array, scale: float, window: int | None
    ) -> mx.array:
        """Store k and v, (B, Hkv, L, D); attention of q, (B, H, L, D), over prefix and columns."""
        rows, heads, length, depth = q.shape
        kv_heads = k.shape[1]
        repeats = heads // kv_heads
        keys, values = self._store(k, v)
        q = (q * scale).reshape(rows, kv_heads, repeats, length, depth)
        own = self._scores(q.reshape(rows, kv_heads, repeats * length, depth), keys)
        own = _hide(own.reshape(rows, kv_heads, repeats, length, -1), self.layout.mask(window))
        if self.prefix is None:
            weights = softmax(own)
            out = weights.reshape(rows, kv_heads, repeats * length, -1) @ values
            return out.reshape(rows, heads, length, depth)
        before = self._prefix_scores(q, self.prefix[0])
        before = _hide(before, self.layout.prefix_mask(window))
        weights = softmax(mx.concatenate([before, own], axis=-1))
        split = self.layout.prefix
        out = weights[..., split:].reshape(rows, kv_heads, repeats * length, -1) @ values
        out = out.reshape(rows, kv_heads, repeats, length, depth)
        out = out + self._prefix_values(weights[..., :split], self.prefix[1])
        return out.reshape(rows, heads, length, depth)

    @staticmethod
    def _scores(q: mx.array, keys: mx.array) -> mx.array:
        return q @ keys.transpose(0, 1, 3, 2)

    def _prefix_scores(self, q: mx.array, keys: mx.array) -> mx.array:
        """(B, Hkv, rep, L, D) x (P, Hkv, T, D) -> (B, Hkv, rep, L, T): one matmul per group."""
        rows, kv_heads, repeats, length, depth = q.shape
        groups, per_group = self.layout.groups, self.layout.rows
        grouped = q.reshape(groups, per_group, kv_heads, repeats * length, depth)
        grouped = grouped.transpose(0, 2, 1, 3, 4).reshape(groups, kv_heads, -1, depth)
        scores = grouped @ keys.transpose(0, 1, 3, 2)
        scores = scores.reshape(groups, kv_heads, per_group, repeats * length, -1)
        return scores.transpose(0, 2, 1, 3, 4).reshape(rows, kv_heads, repeats, length, -1)

    def _prefix_values(self, weights: mx.array, values: mx.array) -> mx.array:
        """(B, Hkv, rep, L, T) x (P, Hkv, T, D) -> (B, Hkv, rep, L, D)."""
        rows, kv_heads, repeats, length, span = weights.shape
        groups, per_group = self.layout.groups, self.layout.rows
        grouped = weights.reshape(groups, per_group, kv_heads, repeats * length, span)
        grouped = grouped.transpose(0, 2, 1, 3, 4).reshape(groups, kv_heads, -1, span)
        out = (grouped @ values).reshape(groups, kv_heads, per_group, repeats * length, -1)
        return out.transpose(0, 2, 1, 3, 4).reshape(rows, kv_heads, repeats, length, -1)


def _hide(scores: mx.array, visible: mx.array | None) -> mx.array:
    """Scores with hidden columns at the dtype's minimum; finite, so that a row of padding whose
    columns are all hidden yields numbers that nobody reads instead of NaN."""
    if visible is None:
        return scores
    lowest = mx.array(mx.finfo(scores.dtype).min, scores.dtype)
    return mx.where(visible, scores, lowest)


def _widen(part: mx.array, capacity: int) -> mx.array:
    """(B, Hkv, c, D) -> (B, Hkv, capacity, D), zeros on the right."""
    missing = capacity - part.shape[2]
    return mx.pad(part, [(0, 0), (0, 0), (0, missing), (0, 0)]) if missing else part


@dataclass
class PrefixEntry:
    """Keys and values of one prompt under one expert: (1, Hkv, T, D) per layer."""

    tokens: npt.NDArray[np.int32]
    layers: LayerTensors
    nbytes: int


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

    def longest(self, expert: str, tokens: npt.NDArray[np.int32]) -> tuple[int, LayerTensors]:
        """The longest shared prefix with any prompt of ``expert``: its length and tensors."""
        best, best_key = 0, -1
        for key, (owner, entry) in self._entries.items():
            if owner != expert:
                continue
            shared = shared_prefix(entry.tokens, tokens)
            if shared > best:
                best, best_key = shared, key
        if best == 0:
            return 0, []
        self._entries.move_to_end(best_key)
        return best, self._entries[best_key][1].layers

    def add(self, expert: str, tokens: npt.NDArray[np.int32], layers: LayerTensors) -> None:
        """Keep a prompt's tensors, evicting the least recently used beyond the budget."""
        nbytes = sum(k.nbytes + v.nbytes for k, v in layers)
        if nbytes > self.budget_bytes:
            return
        self._entries[self._next] = (expert, PrefixEntry(tokens, layers, nbytes))
        self._next += 1
        self.held_bytes += nbytes
        while self.held_bytes > self.budget_bytes:
            _, (_, old) = self._entries.popitem(last=False)
            self.held_bytes -= old.nbytes

    def forget(self, expert: str) -> None:
        """Drop every entry of an expert that is gone."""
        for key in [k for k, (owner, _) in self._entries.items() if owner == expert]:
            self.held_bytes -= self._entries.pop(key)[1].nbytes

    def clear(self) -> None:
        """Drop everything."""
        self._entries.clear()
        self.held_bytes = 0


def shared_prefix(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    """Number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    differ = np.flatnonzero(a[:length] != b[:length])
    return int(differ[0]) if len(differ) else length
