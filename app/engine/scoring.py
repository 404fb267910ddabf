"""Log-likelihood of reference answers under every candidate of a population.

Needs no decoding.  Candidates of evolution strategies differ little from their *centre*, the vector
they are drawn around, and so three things are done once for all of them:

* The *prompts* are read by the centre; a candidate computes only the columns that predict the
  answer, over the keys and values of that reading.  Measured by automatic differentiation on the
  demo's commands, the gradient keeps its direction (cosine 0.997 for the last two layers, 0.996
  for the last five, 0.987 after training) at a fifth of the tokens.
* When candidates agree below some layer (a depth-limited iteration of ``trainers.fura_s``), those
  layers are run under the centre, and only the layers above per candidate.
* The head, a matmul over the whole vocabulary and as many exponentials, would cost more than a
  candidate's few layers.  So it is *shortlisted*: at each position, the normaliser sums over the
  tokens that are likely under the centre, plus the reference.  What is left out holds a known
  share of the centre's probability.

A candidate that is its own centre is scored exactly, but for the shortlist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.cache import Context, LayerTensors
from app.engine.layers import Edits
from app.engine.maths import logsumexp
from app.engine.work import FloatArray, Pending, Work

# Positions whose logits are made at once. MLX allocates ahead of what it computes, so that eight or
# so (rows, vocabulary) arrays exist at a time.
_HEAD_ROWS = 32


@dataclass
class Reading:
    """What candidates take over from their centre.

    Attributes:
        first: the lowest layer in which candidates differ; 0: the states are embeddings.
        prefix: keys and values of the common prefix from layer ``first`` up, (1, Hkv, T, D).
        context: the rest of each prompt but its last token: its columns, and their keys and values
            from layer ``first`` up, (N, Hkv, W, D); ``None`` if no prompt has any.
        states: (N, S, hidden) what enters layer ``first`` at the columns that predict the answer
            (the prompt's last token and the answer without its last), right-aligned.
        pad: (N,) padding of each row of states.
    """

    first: int
    prefix: LayerTensors
    context: tuple[Context, LayerTensors] | None
    states: mx.array
    pad: npt.NDArray[np.int32]

    def tensors(self) -> list[mx.array]:
        """Everything in it, for ``mx.eval``."""
        layers = self.prefix + (self.context[1] if self.context else [])
        return [self.states, *(part for pair in layers for part in pair)]


def read(
    runtime: Runtime,
    edits: Edits | None,
    prefix: mx.array,
    rows: Sequence[mx.array],
    counts: Sequence[int],
    first: int,
) -> Reading:
    """The centre reads the prompts; lazy.

    Args:
        runtime: the base model.
        edits: the centre's.
        prefix: (1, T, hidden) what enters layer ``first`` of the common prefix.
        rows: (S, hidden) the same of each prompt's rest with its answer, without the last token.
        counts: columns of each row that predict the answer, its last ones.
        first: the lowest layer in which candidates differ.
    """
    span = range(first, runtime.layers)
    _, before = runtime.read(prefix, edits, span)
    asked, empty = aligned_states([r[: len(r) - n] for r, n in zip(rows, counts, strict=True)])
    states, pad = aligned_states([r[len(r) - n :] for r, n in zip(rows, counts, strict=True)])
    context = None
    if asked.shape[1]:
        batch = Batch.fresh(runtime, 1, empty, asked.shape[1], edits, before, span=span)
        runtime.run(batch, asked)
        context = Context(empty, asked.shape[1]), batch.filled()
    return Reading(first, before, context, states, pad)


def aligned_states(rows: Sequence[mx.array]) -> tuple[mx.array, npt.NDArray[np.int32]]:
    """(S, hidden) rows -> (N, longest, hidden), zeros on the left, and each row's padding."""
    longest = max(len(row) for row in rows)
    pad = np.array([longest - len(row) for row in rows], dtype=np.int32)
    padded = [mx.pad(row, [(int(n), 0), (0, 0)]) for row, n in zip(rows, pad, strict=True)]
    return mx.stack(padded), pad


def answer(
    runtime: Runtime, reading: Reading, edits: Edits | None, groups: int, prompts: Sequence[int]
) -> mx.array:
    """(groups, N, S, hidden) at some prompts' answer columns, after the last layer; lazy."""
    index = mx.array(list(prompts))
    context = None
    if reading.context is not None:
        columns, layers = reading.context
        mine = Context(columns.pad[list(prompts)], columns.width)
        context = mine, [(keys[index], values[index]) for keys, values in layers]
    rows = reading.states[index]
    pad = np.tile(reading.pad[list(prompts)], groups)
    span = range(reading.first, runtime.layers)
    batch = Batch.fresh(
        runtime, groups, pad, rows.shape[1], edits, reading.prefix, span=span, context=context
    )
    hidden = runtime.run(batch, mx.concatenate([rows] * groups))
    return hidden.reshape(groups, *rows.shape)


@dataclass
class Targets:
    """The reference tokens of some prompts and where they are predicted.

    Attributes:
        ids: (M,) int32 tokens, prompt after prompt.
        counts: (N,) tokens of each prompt's reference.
        grid: (N, longest) bool, True where a token of the right-aligned references stands.
    """

    ids: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    grid: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, references: Sequence[Tokens]) -> Targets:
        """Targets of these references."""
        tokens, missing = right_aligned(references)
        grid = np.arange(tokens.shape[1])[None, :] >= missing[:, None]
        return cls(tokens[grid], grid.sum(axis=1), grid)

    def pick(self, hidden: mx.array) -> mx.array:
        """(P, N, S, hidden) -> (P, M, hidden): right-aligned rows end at the same column."""
        groups, depth = hidden.shape[0], hidden.shape[-1]
        last = hidden[:, :, hidden.shape[2] - self.grid.shape[1] :].reshape(groups, -1, depth)
        return last[:, mx.array(np.flatnonzero(self.grid).astype(np.int32))]

    def means(self, values: npt.NDArray[np.float32]) -> FloatArray:
        """(P, M) values per token -> (P, N) means per prompt."""
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]])
        sums = np.add.reduceat(values.astype(np.float64), starts, axis=1)
        means: FloatArray = (sums / self.counts).astype(np.float32)
        return means


@dataclass
class Shortlist:
    """Head rows of the tokens that matter at each position.

    Attributes:
        rows: (M, K + 1, hidden), the reference token's first.
        prompt: (M,) number of each position's prompt.
    """

    rows: mx.array
    prompt: npt.NDArray[np.int64]


def make_shortlist(
    runtime: Runtime,
    reading: Reading,
    centre: Edits | None,
    references: Sequence[Tokens],
    size: int,
) -> Shortlist:
    """The ``size`` most likely other tokens at each position under the centre; lazy."""
    targets = Targets.of(references)
    hidden = answer(runtime, reading, centre, 1, range(len(references)))
    logits = runtime.logits(targets.pick(hidden)[0]).astype(mx.float32)
    wanted = mx.array(targets.ids)[:, None]
    others = mx.put_along_axis(logits, wanted, mx.array(-mx.inf), axis=-1)
    best = mx.argpartition(-others, size, axis=-1)[:, :size]
    ids = mx.concatenate([wanted.astype(best.dtype), best], axis=-1)
    prompt = np.repeat(np.arange(len(references)), targets.counts)
    return Shortlist(runtime.head_rows(ids), prompt)


class Scoring:
    """One lane's part of a likelihood: one pass per chunk of candidates.

    Args:
        runtime: the base model.
        work: the lane's candidates and prompts.
        reading: what the centre has read, over all prompts.
        shortlist: tokens that the normaliser sums over; ``None`` for the whole vocabulary.
        references: the answers to all prompts.
        lane: the stream to run on.
        step_tokens: tokens of one pass.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Work,
        reading: Reading,
        shortlist: Shortlist | None,
        references: Sequence[Tokens],
        lane: mx.Stream,
        step_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._reading = reading
        self._shortlist = shortlist
        self._lane = lane
        self._step_tokens = step_tokens
        self._targets = Targets.of([references[p] for p in work.prompts])

    def run(self, result: FloatArray) -> Pending:
        """Fills this lane's part of ``result`` (P, N); yields what to evaluate, once per chunk."""
        runtime, prompts = self._runtime, self._work.prompts
        each = len(prompts) * self._reading.states.shape[1]
        for flat, span in self._work.chunks(self._step_tokens, each):
            with mx.stream(self._lane):
                # Layers that no candidate changes are not run here.
                edits = runtime.edits(flat, runtime.coordinates.sizes)
                states = answer(runtime, self._reading, edits, len(span), prompts)
                hidden = self._targets.pick(states)
                logp = self._short(hidden) if self._shortlist else self._whole(hidden)
            yield [logp]
            numbers = [self._work.candidates[i] for i in span]
            result[np.ix_(numbers, list(prompts))] = self._targets.means(np.array(logp))

    def _whole(self, hidden: mx.array) -> mx.array:
        """(P, M, hidden) -> (P, M) fp32 log-probabilities of the reference tokens."""
        groups, count, depth = hidden.shape
        hidden = hidden.reshape(-1, depth)
        wanted = mx.array(np.tile(self._targets.ids, groups))[:, None]
        parts: list[mx.array] = []
        for start in range(0, hidden.shape[0], _HEAD_ROWS):
            rows = hidden[start : start + _HEAD_ROWS]
            if parts:  # one after the other: else all are in memory at once
                rows = mx.depends(rows, parts[-1])
            logits = self._runtime.logits(rows).astype(mx.float32)
            chosen = mx.take_along_axis(logits, wanted[start : start + _HEAD_ROWS], axis=-1)
            parts.append(chosen[:, 0] - logsumexp(logits))
        return mx.concatenate(parts).reshape(groups, count)

    def _short(self, hidden: mx.array) -> mx.array:
        """As ``_whole``, over the shortlist: one small matmul per position for all candidates."""
        assert self._shortlist is not None
        mine = np.flatnonzero(np.isin(self._shortlist.prompt, list(self._work.prompts)))
        rows = self._shortlist.rows[mx.array(mine.astype(np.int32))]  # (M, K + 1, hidden)
        logits = hidden.transpose(1, 0, 2) @ rows.transpose(0, 2, 1)  # (M, P, K + 1)
        logits = logits.astype(mx.float32)
        return (logits[..., 0] - logsumexp(logits)).T
