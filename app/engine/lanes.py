"""Rows of users in flight: continuous batching, each row with its own expert and sampling.

A lane is one batch on one MLX stream.  Rows join after their prompt is prefilled (reusing the
longest prefix that the same expert has seen) and leave as soon as they finish.  A row that fails
leaves alone; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import mlx.core as mx
import numpy as np

from app.engine.batch import Batch, Runtime, Tokens, aligned
from app.engine.cache import LayerTensors, PrefixCache
from app.engine.layers import Edits
from app.engine.sampling import Sampling, choose
from app.engine.text import RowText
from app.engine.work import Pending

# Tokens of one prefill pass, over all its rows: longer prompts take several, between which others
# are served.
_PREFILL_TOKENS = 256


class Row(Protocol):
    """A user's row, as the lane sees it."""

    prompt: Tokens
    sampling: Sampling
    expert: str | None
    slot: int
    text: RowText

    @property
    def cancelled(self) -> bool:
        """The user no longer wants it."""

    def emit(self, delta: str) -> None:
        """New text."""

    def finish(self, error: str | None = None) -> None:
        """The row is over: finished, cancelled or failed."""


class Lane:
    """One batch of users' rows on one stream.

    Args:
        runtime: the base model.
        stream: where its work runs.
        prefixes: prompts' keys and values, shared by the lanes.
        edits_of: slots of the rows -> their edits, ``None`` when all are the plain base.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: mx.Stream,
        prefixes: PrefixCache,
        edits_of: Callable[[Sequence[int]], Edits | None],
    ) -> None:
        self._runtime = runtime
        self._stream = stream
        self._prefixes = prefixes
        self._edits_of = edits_of
        self.rows: list[Row] = []
        self._batch: Batch | None = None
        self._pending: tuple[mx.array, mx.array] | None = None

    def admit(self, rows: Sequence[Row]) -> Pending:
        """Prefill ``rows``, emit their first token and let those that go on join the batch.

        Yields what to evaluate, once per chunk of columns.  Rows that nobody wants any more end
        after the chunk under way once all of them are unwanted.
        """
        with mx.stream(self._stream):
            batch, tokens = self._placed(rows)
        width = tokens.shape[1]
        columns = max(1, _PREFILL_TOKENS // len(rows))
        for start in range(0, width, columns):
            if all(row.cancelled for row in rows):
                for row in rows:
                    row.finish()
                return
            with mx.stream(self._stream):
                hidden = self._runtime.forward(batch, tokens[:, start : start + columns])
                last = start + columns >= width
                chosen, finite = self._choose(hidden, rows) if last else (None, None)
            yield [*batch.tensors(), *(part for part in (chosen, finite) if part is not None)]
        with mx.stream(self._stream):
            self._remember(rows, batch)
        alive = self._deliver(rows, np.array(chosen), np.array(finite))
        if not alive:
            return
        joined = [*self.rows, *(rows[i] for i in alive)]
        with mx.stream(self._stream):
            edits = self._edits_of([row.slot for row in joined])
            if len(alive) < len(rows):
                batch = batch.keep([[i] for i in alive], None, 0)
            parts = [batch] if self._batch is None else [self._batch, batch]
            self._batch = aligned(parts, edits)
        self.rows = joined

    def step(self) -> list[mx.array]:
        """Build the next decode step; returns what to evaluate before ``collect``."""
        self._leave([i for i, row in enumerate(self.rows) if not row.cancelled])
        if self._batch is None:
            return []
        with mx.stream(self._stream):
            self._batch.reserve(1)
            last = np.array([[row.text.tokens[-1]] for row in self.rows], dtype=np.int32)
            hidden = self._runtime.forward(self._batch, last)
            self._pending = self._choose(hidden, self.rows)
        return [*self._pending, *self._batch.tensors()]

    def collect(self) -> int:
        """Hand out the evaluated step's tokens; returns how many."""
        if self._pending is None:
            return 0
        chosen, finite = self._pending
        self._pending = None
        count = len(self.rows)
        self._leave(self._deliver(self.rows, np.array(chosen), np.array(finite)))
        return count

    def fail(self, message: str) -> None:
        """End every row with an error."""
        for row in self.rows:
            row.finish(message)
        self.rows, self._batch, self._pending = [], None, None

    def _placed(self, rows: Sequence[Row]) -> tuple[Batch, Tokens]:
        """A batch that holds what is known of the rows' prompts, and the tokens still to read."""
        known = [self._prefixes.longest(row.expert or "", row.prompt) for row in rows]
        lengths = [len(row.prompt) for row in rows]
        # Every row runs the same number of columns, at least one: the longest unknown part.
        width = max(n - min(k, n - 1) for n, (k, _) in zip(lengths, known, strict=True))
        reused = [max(0, n - width) for n in lengths]
        filled = max(reused)
        pad = np.array([filled + width - n for n in lengths], dtype=np.int32)
        edits = self._edits_of([row.slot for row in rows])
        capacity = filled + width + 1
        if filled:
            tensors = _reused([layers for _, layers in known], reused, filled)
            batch = Batch.resumed(tensors, pad, capacity, edits)
        else:
            batch = Batch.fresh(self._runtime, len(rows), pad, capacity, edits)
        tokens = np.zeros((len(rows), width), dtype=np.int32)
        for index, row in enumerate(rows):
            part = row.prompt[reused[index] :]
            tokens[index, width - len(part) :] = part
        return batch, tokens

    def _remember(self, rows: Sequence[Row], batch: Batch) -> None:
        """Keep prompts that were mostly new, for later prompts of the same expert."""
        pads = batch.layout.pad
        for index, row in enumerate(rows):
            known, _ = self._prefixes.longest(row.expert or "", row.prompt)
            if 2 * known >= len(row.prompt):
                continue
            start = int(pads[index])
            layers: LayerTensors = [
                (
                    mx.contiguous(k[index : index + 1, :, start:]),
                    mx.contiguous(v[index : index + 1, :, start:]),
                )
                for k, v in batch.filled()
            ]
            mx.eval(layers)
            self._prefixes.add(row.expert or "", row.prompt, layers)

    def _choose(self, hidden: mx.array, rows: Sequence[Row]) -> tuple[mx.array, mx.array]:
        last = hidden[:, -1]
        chosen = choose(
            self._runtime.logits(last), [(row.sampling, len(row.text.tokens)) for row in rows]
        )
        return chosen, mx.isfinite(last).all(axis=-1)

    def _deliver(self, rows: Sequence[Row], chosen: np.ndarray, finite: np.ndarray) -> list[int]:
        """Push tokens into the rows; returns the numbers of those that go on."""
        alive = []
        for index, row in enumerate(rows):
            if not finite[index]:
                row.finish("the model's hidden state is not finite")
                continue
            row.emit(row.text.push(int(chosen[index])))
            if row.text.finish is not None:
                row.finish()
                continue
            alive.append(index)
        return alive

    def _leave(self, alive: list[int]) -> None:
        """Keep only the rows numbered ``alive``; cancelled ones are told."""
        if len(alive) == len(self.rows):
            return
        for index in set(range(len(self.rows))) - set(alive):
            if self.rows[index].cancelled:
                self.rows[index].finish()
        self.rows = [self.rows[i] for i in alive]
        if not alive:
            self._batch = None
            return
        assert self._batch is not None
        with mx.stream(self._stream):
            edits = self._edits_of([row.slot for row in self.rows])
            self._batch = aligned([self._batch.keep([[i] for i in alive], None, 0)], edits)


def _reused(known: Sequence[LayerTensors], reused: Sequence[int], filled: int) -> LayerTensors:
    """Reused prefixes right-aligned in ``filled`` columns, per layer (B, Hkv, filled, D)."""
    some = next(layers for layers, count in zip(known, reused, strict=True) if count)

    def column(layer: int, side: int) -> mx.array:
        parts = []
        for layers, count in zip(known, reused, strict=True):
            like = some[layer][side]
            if count == 0:
                shape = (1, like.shape[1], filled, like.shape[3])
                parts.append(mx.zeros(shape, like.dtype))
                continue
            part = layers[layer][side][:, :, :count]
            parts.append(mx.pad(part, [(0, 0), (0, 0), (filled - count, 0), (0, 0)]))
        return mx.concatenate(parts)

    return [(column(layer, 0), column(layer, 1)) for layer in range(len(some))]
