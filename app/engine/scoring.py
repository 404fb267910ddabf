"""Log-likelihood of reference answers under every candidate of a population.

Needs no decoding.  When all candidates agree below some layer (a depth-limited iteration of
``trainers.fura_s``), those layers see the same input under every candidate: they run once, as the
*trunk*, and only the layers above run per candidate.
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

# Positions whose logits are made at once: (rows, vocabulary) arrays must stay in the cache.
_HEAD_ROWS = 128


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


def make_trunk(
    runtime: Runtime, edits: Edits | None, prefix: Tokens, rows: Sequence[Tokens], first: int
) -> Trunk:
    """Run the layers below ``first`` over the prompts once; lazy."""
    tokens, pad = right_aligned(rows)
    below = range(first)
    nothing = np.zeros(1, dtype=np.int32)
    before: LayerTensors | None = None
    head = runtime.embed(prefix[None])
    if len(prefix):
        shared = Batch.fresh(runtime, 1, nothing, len(prefix), edits, span=below)
        head = runtime.run(shared, head)
        before = shared.filled()
    own = Batch.fresh(runtime, 1, pad, tokens.shape[1], edits, before, span=below)
    return Trunk(first, head, runtime.run(own, runtime.embed(tokens)), pad)


class Scoring:
    """One lane's part of a likelihood: one pass per chunk of candidates.

    Args:
        runtime: the base model.
        work: the lane's candidates and prompts.
        trunk: the shared lower part, over all prompts.
        references: the answers to all prompts.
        lane: the stream to run on.
        step_tokens: tokens of one pass.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Work,
        trunk: Trunk,
        references: Sequence[Tokens],
        lane: mx.Stream,
        step_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._trunk = trunk
        self._lane = lane
        self._step_tokens = step_tokens
        self._pad = trunk.pad[list(work.prompts)]
        self._references = [references[p] for p in work.prompts]

    def run(self, result: FloatArray) -> Pending:
        """Fills this lane's part of ``result`` (P, N); yields what to evaluate, once per chunk."""
        targets, missing = right_aligned(self._references)
        longest = targets.shape[1]
        counted = np.arange(longest)[None, :] >= missing[:, None]  # (N, longest)
        share = 1 - self._trunk.first / self._runtime.layers
        each = self._trunk.prefix.shape[1] + len(self._pad) * self._trunk.rows.shape[1]
        for flat, span in self._work.chunks(self._step_tokens, max(1, int(each * share))):
            groups = len(span)
            mask = np.tile(counted, (groups, 1)).reshape(-1)
            wanted = np.tile(targets, (groups, 1)).reshape(-1)[mask]
            with mx.stream(self._lane):
                hidden = self._above(flat, groups)
                # Right-aligned rows end at the same column: the last `longest` predict.
                last = hidden[:, hidden.shape[1] - longest :].reshape(-1, hidden.shape[-1])
                picked = last[mx.array(np.flatnonzero(mask).astype(np.int32))]
                logp = self._log_probabilities(picked, mx.array(wanted))
            yield [logp]
            sums = np.zeros(mask.shape, dtype=np.float64)
            sums[mask] = np.array(logp)
            means = sums.reshape(groups, -1, longest).sum(-1) / counted.sum(-1)
            numbers = [self._work.candidates[i] for i in span]
            result[np.ix_(numbers, list(self._work.prompts))] = means

    def _above(self, flat: FloatArray | None, groups: int) -> mx.array:
        """Hidden states (groups * N, S, hidden) after the layers from the trunk's end up."""
        runtime, trunk = self._runtime, self._trunk
        edits = runtime.edits(None if flat is None else mx.array(flat))
        span = range(trunk.first, runtime.layers)
        prefix: LayerTensors | None = None
        if trunk.prefix.shape[1]:
            nothing = np.zeros(groups, dtype=np.int32)
            length = trunk.prefix.shape[1]
            shared = Batch.fresh(runtime, groups, nothing, length, edits, span=span)
            runtime.run(shared, mx.repeat(trunk.prefix, groups, axis=0))
            prefix = shared.filled()
        rows = trunk.rows[mx.array(list(self._work.prompts))]
        capacity = rows.shape[1]
        pad = np.tile(self._pad, groups)
        own = Batch.fresh(runtime, groups, pad, capacity, edits, prefix, span=span)
        return runtime.run(own, mx.concatenate([rows] * groups))

    def _log_probabilities(self, hidden: mx.array, wanted: mx.array) -> mx.array:
        """(M, hidden) and (M,) token ids -> (M,) fp32 log-probabilities of those tokens."""
        parts = []
        for start in range(0, hidden.shape[0], _HEAD_ROWS):
            rows = hidden[start : start + _HEAD_ROWS]
            logits = self._runtime.logits(rows).astype(mx.float32)
            ids = wanted[start : start + _HEAD_ROWS, None]
            chosen = mx.take_along_axis(logits, ids, axis=-1)[:, 0]
            parts.append(chosen - logsumexp(logits))
        return mx.concatenate(parts)
