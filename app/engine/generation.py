"""Answers of a population: one lane's rows, prefilled in chunks and decoded together.

The prompts' common prefix is prefilled once per candidate and attended to in place; rows that have
finished leave the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.cache import Layout
from app.engine.choice import Choice, decide, texts
from app.engine.layers import Edits
from app.engine.sampling import Sampling
from app.engine.text import Decode, RowText
from app.engine.work import FloatArray, Pending, Work


@dataclass
class _Row:
    candidate: int
    prompt: int
    text: RowText


class Generation:
    """One lane's rows of a generation: prefill in chunks, then decode all of them together."""

    def __init__(
        self,
        runtime: Runtime,
        decode: Decode,
        work: Work,
        prompts: Sequence[Tokens],
        split: int,
        lane: mx.Stream,
        sampling: Sampling,
        step_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._step_tokens = step_tokens
        self._work = work
        self._touched = None if work.flat is None else runtime.coordinates.touched(work.flat)
        self._prefix = prompts[0][:split]
        self._tokens, self._pad = right_aligned([prompts[p][split:] for p in work.prompts])
        self._lane = lane
        self._sampling = sampling
        self._batch: Batch | None = None
        self._slots: list[list[_Row | None]] = []  # rows of the batch by group; None: filler
        self.rows = [
            _Row(c, p, RowText(decode, self._keyed(c, p), runtime.eos))
            for c in work.candidates
            for p in work.prompts
        ]
        self._last = np.zeros(len(self.rows), dtype=np.int32)

    def _keyed(self, candidate: int, prompt: int) -> Sampling:
        if self._sampling.temperature == 0:
            return self._sampling
        key = np.random.SeedSequence([self._sampling.seed, candidate, prompt])
        return replace(self._sampling, seed=int(key.generate_state(1)[0]))

    def prefill(self) -> Pending:
        """Yields what to evaluate, once per chunk of candidates."""
        width = self._tokens.shape[1]
        each = len(self._prefix) + self._tokens.size
        capacity = width + self._sampling.max_tokens
        parts: list[Batch] = []
        per_group = len(self._work.prompts)
        for flat, span in self._work.chunks(self._step_tokens, each):
            rows = self.rows[span.start * per_group : span.stop * per_group]
            with mx.stream(self._lane):
                pad = np.tile(self._pad, len(span))
                batch = self._start(flat, pad, capacity)
                tokens = np.tile(self._tokens, (len(span), 1))
                hidden = self._runtime.forward(batch, tokens)
                choice = self._choose(hidden, rows)
            yield [*choice.arrays, *batch.tensors()]
            self._take(rows, choice, span.start * per_group)
            parts.append(batch)
        groups: list[list[_Row | None]] = [
            list(self.rows[i : i + per_group]) for i in range(0, len(self.rows), per_group)
        ]
        with mx.stream(self._lane):
            self._batch = stacked(parts, self._runtime.edits(self._work.flat, self._touched))
        self._slots = groups

    def decode_all(self) -> Pending:
        """Yields what to evaluate, once per decoded column, until every row has finished."""
        self._compact()
        while self._batch is not None:
            live = [row for group in self._slots for row in group]
            with mx.stream(self._lane):
                tokens = self._last[:, None]
                hidden = self._runtime.forward(self._batch, tokens)
                choice = self._choose(hidden, live)
            yield [*choice.arrays, *self._batch.tensors()]
            self._take(live, choice, 0)
            self._compact()

    def _start(self, flat: FloatArray | None, pad: npt.NDArray[np.int32], capacity: int) -> Batch:
        """A batch whose groups have the prefix prefilled: lazily, nothing is evaluated."""
        runtime = self._runtime
        groups = 1 if flat is None else flat.shape[0]
        edits = runtime.edits(flat, self._touched)
        if len(self._prefix) == 0:
            return Batch.fresh(runtime, groups, pad, capacity, edits)
        nothing = np.zeros(groups, dtype=np.int32)
        shared = Batch.fresh(runtime, groups, nothing, len(self._prefix), edits)
        runtime.forward(shared, np.tile(self._prefix, (groups, 1)))
        return Batch.fresh(runtime, groups, pad, capacity, edits, shared.filled())

    def _choose(self, hidden: mx.array, rows: Sequence[_Row | None]) -> Choice:
        last = hidden[:, -1]
        return decide(last, self._runtime.logits(last), texts(rows))

    def _take(self, rows: Sequence[_Row | None], choice: Choice, start: int) -> None:
        self._last[start : start + len(rows)] = np.array(choice.tokens).astype(np.int32)
        choice.hand_out(texts(rows))

    def _compact(self) -> None:
        """Let finished rows leave once a quarter of the batch is finished.

        Groups stay equally long: a shorter one is filled with copies of a row, which are ignored.
        """
        assert self._batch is not None
        per_group = self._batch.layout.rows
        alive = [[i for i, row in enumerate(g) if row and not row.text.over] for g in self._slots]
        longest = max((len(a) for a in alive), default=0)
        if longest == 0:
            self._batch = None
            return
        kept = [g for g, rows in enumerate(alive) if rows]
        if len(kept) * longest > 0.75 * len(self._slots) * per_group:
            return
        fillers = [[None] * (longest - len(alive[g])) for g in kept]
        picks = [
            [g * per_group + i for i in alive[g] + alive[g][:1] * len(filler)]
            for g, filler in zip(kept, fillers, strict=True)
        ]
        self._slots = [
            [*(self._slots[g][i] for i in alive[g]), *filler]
            for g, filler in zip(kept, fillers, strict=True)
        ]
        self._last = self._last[np.array(picks).reshape(-1)]
        with mx.stream(self._lane):
            edits = self._batch.edits
            if edits is not None:
                edits = edits.keep(kept)
            live = [row for group in self._slots for row in group if row]
            left = self._sampling.max_tokens - min(len(row.text.tokens) for row in live)
            self._batch = self._batch.keep(picks, edits, left)


def stacked(parts: Sequence[Batch], edits: Edits | None) -> Batch:
    """Batches of equally long groups side by side, prefixes included."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].layout
    pad = np.concatenate([b.layout.pad for b in parts])
    layout = Layout(sum(b.layout.groups for b in parts), first.rows, first.prefix, pad)
    layout.cursor = first.cursor
    batch = Batch(layout, [], edits, parts[0].span)
    for caches in zip(*(b.layers for b in parts), strict=True):
        batch.layers.append(caches[0].beside(caches[1:], layout))
    return batch
