"""Log-likelihood of reference answers under every candidate of a population.

Needs no decoding.  When all candidates agree below some layer (a depth-limited iteration of
``trainers.fura_s``), those layers see the same input under every candidate: they run once, as the
*trunk*, and only the layers above run per candidate.

A candidate then differs little from the centre of the population, and the head (a matmul over the
whole vocabulary and as many exponentials) would cost more than its few layers.  So the head is
*shortlisted*: at each position, the normaliser sums over the tokens that are likely under the
centre, plus the reference.  What is left out holds a known share of the centre's probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.cache import LayerTensors
from app.engine.layers import Edits
from app.engine.maths import logsumexp
from app.engine.work import FloatArray, Pending, Work

# Positions whose logits are made at once. MLX allocates ahead of what it computes, so that eight or
# so (rows, vocabulary) arrays exist at a time.
_HEAD_ROWS = 32


@dataclass
class Trunk:
    """What all candidates share: hidden states that enter layer ``first``.

    Attributes:
        first: the lowest layer in which candidates differ; 0: the states are embeddings.
        prefix: (1, T, hidden) states of the prompts' common prefix.
        rows: (N, S, hidden) states of the rest, right-aligned.
        pad: (N,) padding of each row.
    """

    first: int
    prefix: mx.array
    rows: mx.array
    pad: npt.NDArray[np.int32]


@dataclass
class TrunkPrefix:
    """The common prefix below layer ``first``: the same in every iteration that keeps those layers.

    Attributes:
        hidden: (1, T, hidden) states that enter layer ``first``.
        layers: keys and values below it; ``None`` if there is no prefix.
    """

    hidden: mx.array
    layers: LayerTensors | None


def make_prefix(runtime: Runtime, edits: Edits | None, prefix: Tokens, first: int) -> TrunkPrefix:
    """Run the layers below ``first`` over the prefix; lazy."""
    hidden = runtime.embed(prefix[None])
    if not len(prefix):
        return TrunkPrefix(hidden, None)
    nothing = np.zeros(1, dtype=np.int32)
    shared = Batch.fresh(runtime, 1, nothing, len(prefix), edits, span=range(first))
    hidden = runtime.run(shared, hidden)
    return TrunkPrefix(hidden, shared.filled())


def make_trunk(
    runtime: Runtime,
    edits: Edits | None,
    prefix: TrunkPrefix,
    rows: Sequence[Tokens],
    first: int,
    lanes: Sequence[mx.Stream],
) -> Trunk:
    """Run the layers below ``first`` over the prompts once, divided over the lanes; lazy."""
    tokens, pad = right_aligned(rows)
    parts = []
    for lane, part in zip(lanes, np.array_split(np.arange(len(rows)), len(lanes)), strict=True):
        if not len(part):
            continue
        with mx.stream(lane):
            capacity = tokens.shape[1]
            own = Batch.fresh(
                runtime, 1, pad[part], capacity, edits, prefix.layers, span=range(first)
            )
            parts.append(runtime.run(own, runtime.embed(tokens[part])))
    return Trunk(first, prefix.hidden, mx.concatenate(parts), pad)


def above(
    runtime: Runtime, trunk: Trunk, edits: Edits | None, groups: int, prompts: Sequence[int]
) -> mx.array:
    """(groups, N, S, hidden) after the layers from the trunk's end up, for some prompts; lazy."""
    span = range(trunk.first, runtime.layers)
    length = trunk.prefix.shape[1]
    prefix: LayerTensors | None = None
    if length:
        nothing = np.zeros(groups, dtype=np.int32)
        shared = Batch.fresh(runtime, groups, nothing, length, edits, span=span)
        runtime.run(shared, mx.repeat(trunk.prefix, groups, axis=0))
        prefix = shared.filled()
    rows = trunk.rows[mx.array(list(prompts))]
    pad = np.tile(trunk.pad[list(prompts)], groups)
    own = Batch.fresh(runtime, groups, pad, rows.shape[1], edits, prefix, span=span)
    hidden = runtime.run(own, mx.concatenate([rows] * groups))
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
    runtime: Runtime, trunk: Trunk, centre: FloatArray, references: Sequence[Tokens], size: int
) -> Shortlist:
    """The ``size`` most likely other tokens at each position under ``centre`` (1, total); lazy."""
    targets = Targets.of(references)
    everything = range(len(references))
    hidden = above(runtime, trunk, runtime.edits(mx.array(centre)), 1, everything)
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
        trunk: the shared lower part, over all prompts.
        shortlist: tokens that the normaliser sums over; ``None`` for the whole vocabulary.
        references: the answers to all prompts.
        lane: the stream to run on.
        step_tokens: tokens of one pass.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Work,
        trunk: Trunk,
        shortlist: Shortlist | None,
        references: Sequence[Tokens],
        lane: mx.Stream,
        step_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._trunk = trunk
        self._shortlist = shortlist
        self._lane = lane
        self._step_tokens = step_tokens
        self._targets = Targets.of([references[p] for p in work.prompts])

    def run(self, result: FloatArray) -> Pending:
        """Fills this lane's part of ``result`` (P, N); yields what to evaluate, once per chunk."""
        runtime, trunk, prompts = self._runtime, self._trunk, self._work.prompts
        share = 1 - trunk.first / runtime.layers
        each = share * (trunk.prefix.shape[1] + len(prompts) * trunk.rows.shape[1])
        for flat, span in self._work.chunks(self._step_tokens, max(1, int(each))):
            with mx.stream(self._lane):
                edits = runtime.edits(None if flat is None else mx.array(flat))
                hidden = self._targets.pick(above(runtime, trunk, edits, len(span), prompts))
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
