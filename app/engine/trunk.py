"""The layers below those that an iteration changes: what leaves them, computed once.

A depth-limited iteration of ``trainers.fura_s`` leaves the lower layers as they are, for all its
candidates and mostly for the whole run.  The hidden states that enter the first changed layer are
then a function of the tokens alone, and are kept from one iteration to the next.

Each row is run by itself.  In a batch, its last bits would depend on the rows beside it, hence on
what was kept, and a run that was interrupted would not go on bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from app.engine.batch import Batch, Runtime, Tokens
from app.engine.cache import LayerTensors
from app.engine.work import FloatArray

_Key = tuple[int, bytes, bytes, bytes]  # first layer, coordinates below it, prefix, row


@dataclass(frozen=True)
class _Prefix:
    hidden: mx.array  # (1, T, hidden)
    layers: LayerTensors


class Trunk:
    """Hidden states that enter a layer, least recently used ones dropped.

    Args:
        runtime: the base model.
        lanes: streams over which new rows are divided.
        budget_bytes: what the kept states may take.
    """

    def __init__(self, runtime: Runtime, lanes: Sequence[mx.Stream], budget_bytes: int) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._budget = budget_bytes
        self._held = 0
        self._rows: OrderedDict[_Key, mx.array] = OrderedDict()
        self._prefix: tuple[_Key, _Prefix] | None = None

    def enter(
        self, first: int, centre: FloatArray, prefix: Tokens, rows: Sequence[Tokens]
    ) -> tuple[mx.array, list[mx.array]]:
        """What enters layer ``first`` under ``centre``: (1, T, hidden), and (S, hidden) per row.

        ``prefix`` is read before each of the rows.
        """
        end = self._runtime.first_coordinate(first)
        below = hashlib.sha256(centre[:end].tobytes()).digest()
        keys = [(first, below, prefix.tobytes(), row.tobytes()) for row in rows]
        before = self._read_prefix((first, below, prefix.tobytes(), b""), centre, prefix)
        missing = {key: row for key, row in zip(keys, rows, strict=True) if key not in self._rows}
        for turn, (key, row) in enumerate(missing.items()):
            with mx.stream(self._lanes[turn % len(self._lanes)]):
                self._rows[key] = self._run(first, centre, before, row)
            self._held += self._rows[key].nbytes
        mx.eval([self._rows[key] for key in missing])
        found = [self._rows[key] for key in keys]
        for key in keys:
            self._rows.move_to_end(key)
        while self._held > self._budget:
            self._held -= self._rows.popitem(last=False)[1].nbytes
        return before.hidden, found

    def clear(self) -> None:
        """Drop everything."""
        self._rows.clear()
        self._prefix, self._held = None, 0

    def _run(self, first: int, centre: FloatArray, prefix: _Prefix, row: Tokens) -> mx.array:
        """(S, hidden) states of one row; lazy."""
        runtime = self._runtime
        edits = runtime.edits(centre[None])
        nothing = np.zeros(1, dtype=np.int32)
        batch = Batch.fresh(runtime, 1, nothing, len(row), edits, prefix.layers, span=range(first))
        return runtime.run(batch, runtime.embed(row[None]))[0]

    def _read_prefix(self, key: _Key, centre: FloatArray, tokens: Tokens) -> _Prefix:
        if self._prefix is None or self._prefix[0] != key:
            with mx.stream(self._lanes[0]):
                hidden = self._runtime.embed(tokens[None])
                edits = self._runtime.edits(centre[None])
                read = _Prefix(*self._runtime.read(hidden, edits, range(key[0])))
            mx.eval(read.hidden, read.layers)
            self._prefix = (key, read)
        return self._prefix[1]
