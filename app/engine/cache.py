"""Key-value memory of a batch.

Rows are *right-aligned*: a row with fewer tokens has padding columns on its left, so that every
decode step writes one column for all rows.  A batch is P groups of R rows; a group may have a
*prefix*, prompt tokens that all its rows share.  The prefix's keys and values are stored once per
group and attended to in place, in one matmul per group (as Hydragen, arXiv 2402.05099), never
repeated per row or copied per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.maths import softmax_parts

Visible = npt.NDArray[np.bool_]
LayerTensors = list[tuple[mx.array, mx.array]]  # per layer: keys and values, (rows, Hkv, T, D)


@dataclass(frozen=True)
class Context:
    """Right-aligned columns that were read before a batch, one row for each place in a group.

    Attributes:
        pad: (R,) int32, padding columns at the left.
        width: columns.
    """

    pad: npt.NDArray[np.int32]
    width: int


class Layout:
    """Where the tokens of a batch's rows lie; one object shared by all its layers.

    Attributes:
        groups, rows: P and R; B = P * R rows, the rows of a group side by side.
        prefix: T, tokens of each group's shared prefix (0 = none).
        pad: (B,) int32, padding columns at the left of each row.
        context: columns between prefix and row that all groups share; ``None`` = none.
        cursor: columns filled so far.
    """

    def __init__(
        self,
        groups: int,
        rows: int,
        prefix: int,
        pad: npt.NDArray[np.int32],
        context: Context | None = None,
    ) -> None:
        self.groups = groups
        self.rows = rows
        self.prefix = prefix
        self.pad = pad
        self.context = context
        self.cursor = 0
        self.length = 0
        self.positions = mx.array(0)
        self._places = np.array(0)
        self._masks: dict[tuple[str, int | None], mx.array | None] = {}

    def begin(self, length: int) -> None:
        """Prepare a forward pass over ``length`` new columns: positions and masks."""
        self.length = length
        first = self.prefix + self.cursor - self.pad
        if self.context is not None:
            first = first + np.tile(self.context.width - self.context.pad, self.groups)
        self.positions = mx.array(first.astype(np.int32))
        self._places = first[:, None] + np.arange(length)  # (B, L)
        self._masks = {}

    def end(self) -> None:
        """The columns of this pass are filled."""
        self.cursor += self.length

    def mask(self, part: str, window: int | None) -> mx.array | None:
        """(B or 1, 1, 1, L or 1, C) bool, True where a query may see a column.

        ``part``: own, prefix or context columns.  ``None`` = all see everything.
        """
        key = part, window
        if key not in self._masks:
            made = {"own": self._own, "prefix": self._prefix, "context": self._context}[part]
            visible = made(window)  # (B or 1, L or 1, C)
            self._masks[key] = None if visible.all() else mx.array(visible[:, None, None])
        return self._masks[key]

    def _own(self, window: int | None) -> Visible:
        query = np.arange(self.cursor, self.cursor + self.length)[:, None]  # (L, 1)
        column = np.arange(self.cursor + self.length)[None, :]  # (1, C)
        causal = column <= query
        if window is not None:
            causal &= column > query - window
        return causal[None] & (column[None] >= self.pad[:, None, None])

    def _prefix(self, window: int | None) -> Visible:
        if window is None:  # only a sliding window hides any of it
            return np.ones((1, 1, self.prefix), dtype=np.bool_)
        return np.arange(self.prefix) > self._places[:, :, None] - window

    def _context(self, window: int | None) -> Visible:
        assert self.context is not None
        pad = np.tile(self.context.pad, self.groups)[:, None, None]
        column = np.arange(self.context.width)
        real = column >= pad
        if window is None:
            return real
        return real & (self.prefix + column - pad > self._places[:, :, None] - window)


class GroupKV:
    """Keys and values of one layer of a batch.

    Args:
        layout: shared by the layers.
        capacity: columns to reserve.
        prefix: keys and values of the shared prefix, (P, Hkv, T, D), or (1, Hkv, T, D) if all
            groups share it, or ``None``.
        context: keys and values of the layout's context, (R, Hkv, W, D), or ``None``.
        own: keys and values of columns filled already, (B, Hkv, cursor, D), or ``None``.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        prefix: tuple[mx.array, mx.array] | None = None,
        own: tuple[mx.array, mx.array] | None = None,
        context: tuple[mx.array, mx.array] | None = None,
    ) -> None:
        self.layout = layout
        self.capacity = capacity
        self.prefix = prefix
        self.context = context
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
        """Store k and v, (B, Hkv, L, D); attention of q, (B, H, L, D), over all that is before."""
        rows, heads, length, depth = q.shape
        kv_heads = k.shape[1]
        keys, values = self._store(k, v)
        # (B, Hkv, rep * L, D): the queries of one key head side by side
        q = (q * scale).reshape(rows, kv_heads, -1, depth)
        parts: dict[str, _Store] = {"own": _Rows(keys, values)}
        if self.prefix is not None:
            shared = _Grouped if length == 1 else _Broadcast
            parts["prefix"] = shared(self.prefix[0][:, None], self.prefix[1][:, None])
        if self.context is not None:
            parts["context"] = _Broadcast(self.context[0][None], self.context[1][None])
        scores = []
        for name, store in parts.items():
            seen = store.scores(q).reshape(rows, kv_heads, heads // kv_heads, length, -1)
            hidden = _hide(seen, self.layout.mask(name, window))
            scores.append(hidden.reshape(rows, kv_heads, q.shape[2], -1))
        weights, total = softmax_parts(scores)
        out = mx.zeros_like(q)
        for store, weight in zip(parts.values(), weights, strict=True):
            out = out + store.values(weight.astype(v.dtype))
        return (out / total).astype(v.dtype).reshape(rows, heads, length, depth)


class Joined:
    """Stores of one layer side by side: one pass over the rows of several batches.

    Args:
        stores: of the batches, in the order of their rows.
        positions: (B,) position of the first new token of each row of all of them.
    """

    def __init__(self, stores: Sequence[GroupKV], positions: mx.array) -> None:
        self._stores = stores
        self.positions = positions

    def attend(
        self, q: mx.array, k: mx.array, v: mx.array, scale: float, window: int | None
    ) -> mx.array:
        """Every store's own rows, as ``GroupKV.attend``: (B, H, L, D)."""
        ends = np.cumsum([len(store.layout.pad) for store in self._stores])[:-1].tolist()
        shares = zip(mx.split(q, ends), mx.split(k, ends), mx.split(v, ends), strict=True)
        outputs = [
            store.attend(a, b, c, scale, window)
            for store, (a, b, c) in zip(self._stores, shares, strict=True)
        ]
        return mx.concatenate(outputs)


class _Store(Protocol):
    """Keys and values that queries (B, Hkv, Q, D) meet, Q of them for each key head."""

    def scores(self, q: mx.array) -> mx.array:
        """(B, Hkv, Q, D) -> (B, Hkv, Q, T)."""

    def values(self, weights: mx.array) -> mx.array:
        """(B, Hkv, Q, T) -> (B, Hkv, Q, D)."""


@dataclass(frozen=True)
class _Rows:
    """Keys and values that each row has for itself, (B, Hkv, C, D)."""

    keys: mx.array
    held: mx.array

    def scores(self, q: mx.array) -> mx.array:
        """(B, Hkv, Q, D) -> (B, Hkv, Q, C)."""
        return q @ self.keys.swapaxes(-1, -2)

    def values(self, weights: mx.array) -> mx.array:
        """(B, Hkv, Q, C) -> (B, Hkv, Q, D)."""
        return weights @ self.held


@dataclass(frozen=True)
class _Broadcast:
    """Keys and values that rows share, (P or 1, R or 1, Hkv, T, D) for P groups of R rows.

    One matmul per row and head, without a copy: the way when a row has many queries.
    """

    keys: mx.array
    held: mx.array

    def scores(self, q: mx.array) -> mx.array:
        """(B, Hkv, Q, D) -> (B, Hkv, Q, T)."""
        return self._apply(q, self.keys.swapaxes(-1, -2))

    def values(self, weights: mx.array) -> mx.array:
        """(B, Hkv, Q, T) -> (B, Hkv, Q, D)."""
        return self._apply(weights, self.held)

    def _apply(self, left: mx.array, right: mx.array) -> mx.array:
        groups, places = right.shape[:2]
        # One of the two is 1: rows are (groups, per group) or (candidates, places).
        split = (groups, -1) if places == 1 else (-1, places)
        out = left.reshape(*split, *left.shape[1:]) @ right
        return out.reshape(left.shape[0], *out.shape[2:])


@dataclass(frozen=True)
class _Grouped:
    """A prefix as in ``_Broadcast``, one matmul per group and head: the way to decode a column."""

    keys: mx.array
    held: mx.array

    def scores(self, q: mx.array) -> mx.array:
        """(B, Hkv, Q, D) -> (B, Hkv, Q, T)."""
        return self._apply(q, self.keys[:, 0].swapaxes(-1, -2))

    def values(self, weights: mx.array) -> mx.array:
        """(B, Hkv, Q, T) -> (B, Hkv, Q, D)."""
        return self._apply(weights, self.held[:, 0])

    def _apply(self, left: mx.array, right: mx.array) -> mx.array:
        groups, (_, kv_heads, queries, depth) = right.shape[0], left.shape
        grouped = left.reshape(groups, -1, kv_heads, queries, depth).swapaxes(1, 2)
        out = grouped.reshape(groups, kv_heads, -1, depth) @ right
        out = out.reshape(groups, kv_heads, -1, queries, out.shape[-1]).swapaxes(1, 2)
        return out.reshape(left.shape[0], kv_heads, queries, -1)


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
