"""A population of experts over the same prompts, evaluated as rows of shared batches.

Every candidate is one group of the batch (``app.engine.layers``).  What candidates share is
computed once: keys and values of the prompts' prefix within a candidate, and the layers below
those in which candidates differ across them.  The functions are generators that yield after each
engine step, so that the scheduler can serve a user in between; their return value is the result.
On CPU the groups are divided over the lanes (one MLX stream each), which advance together.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import mlx.core as mx
import numpy as np

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.generation import Generation
from app.engine.sampling import Sampling
from app.engine.scoring import (
    Reading,
    Scoring,
    Shortlist,
    make_shortlist,
    read,
)
from app.engine.text import Completion, Decode
from app.engine.trunk import Trunk
from app.engine.work import (
    FloatArray,
    RolloutLimits,
    Work,
    common_prefix,
    count_candidates,
    share,
    together,
)


class Population:
    """Evaluates candidates on one runtime.

    Args:
        runtime: the base model.
        lanes: one MLX stream per lane.
        decode: token ids -> text.
        limits: sizes of steps and batches.
    """

    def __init__(
        self,
        runtime: Runtime,
        lanes: Sequence[mx.Stream],
        decode: Decode,
        limits: RolloutLimits,
    ) -> None:
        self._runtime = runtime
        self._lanes = lanes
        self._decode = decode
        self._limits = limits
        self._trunk = Trunk(runtime, lanes, limits.trunk_bytes)

    def generate(
        self, flat: FloatArray | None, prompts: Sequence[Tokens], sampling: Sampling
    ) -> Generator[None, None, list[list[Completion]]]:
        """Completions [candidate][prompt] of every candidate on every prompt.

        A sampled row's random stream is keyed by the seed and its candidate and prompt numbers.
        A row whose hidden state is not finite ends with ``finish_reason`` error. Raises
        ``ValueError`` if there is no candidate, no prompt or a prompt without tokens.
        """
        count = count_candidates(flat, prompts)
        results: list[list[Completion | None]] = [[None] * len(prompts) for _ in range(count)]
        split = common_prefix(prompts)
        longest = max(len(p) for p in prompts) - split
        each = longest + sampling.max_tokens
        limit = self._limits.batch_tokens
        for round_ in share(flat, len(prompts), len(self._lanes), limit, split, each):
            shares = [
                self._generation(work, prompts, split, lane, sampling)
                for work, lane in zip(round_, self._lanes, strict=False)
            ]
            yield from together([s.prefill() for s in shares])
            yield from together([s.decode_all() for s in shares])
            for piece in shares:
                for row in piece.rows:
                    done = row.text.completion(len(prompts[row.prompt]))
                    results[row.candidate][row.prompt] = done
        return [[c for c in line if c is not None] for line in results]

    def likelihood(
        self,
        flat: FloatArray,
        prompts: Sequence[Tokens],
        references: Sequence[Tokens],
        centre: FloatArray,
        first: int = 0,
    ) -> Generator[None, None, FloatArray]:
        """Mean log-likelihood per token of each reference after its prompt: (P, N) fp32.

        NaN where a candidate's logits are not finite.  ``centre``: (total,) what the candidates
        are drawn around; it reads the prompts and chooses the normaliser's shortlist
        (``app.engine.scoring``).  ``first``: the lowest layer in which the candidates differ.
        Raises ``ValueError`` as ``generate`` does, for a reference without tokens, a centre that
        is not finite, and for candidates that differ from it below ``first``.
        """
        count = count_candidates(flat, [*prompts, *references])
        result = np.full((count, len(prompts)), np.nan, dtype=np.float32)
        reading = self._read(flat, prompts, references, centre, first)
        shortlist = self._shortlist(centre, reading, references)
        mx.eval(reading.tensors(), shortlist.rows if shortlist else [])
        yield
        each = reading.states.shape[1]
        limits = self._limits
        for round_ in share(flat, len(prompts), len(self._lanes), limits.batch_tokens, 0, each):
            lanes = [
                Scoring(
                    self._runtime, work, reading, shortlist, references, lane, limits.step_tokens
                )
                for work, lane in zip(round_, self._lanes, strict=False)
            ]
            yield from together([scoring.run(result) for scoring in lanes])
        return result

    def energies(
        self, flat: FloatArray | None, texts: Sequence[Tokens]
    ) -> Generator[None, None, FloatArray]:
        """How much of each matrix's output passes through each coordinate on these texts.

        (total,) mean of sigma^2 (V^T x)^2 over all positions, relative to the mean of its matrix.
        ``flat``: the one expert (1, total) to measure under, or the base.
        """
        count_candidates(flat, texts)
        edits = self._runtime.edits(flat)
        split = common_prefix(texts)
        total: dict[str, mx.array] = {}
        before = None
        if split:
            with mx.stream(self._lanes[0]):
                start = np.zeros(1, dtype=np.int32)
                shared = Batch.fresh(self._runtime, 1, start, split, edits)
                total = self._runtime.measured(shared, texts[0][None, :split], mx.ones(split))
                before = shared.filled()
        own = [text[split:] for text in texts]
        rows = max(1, self._limits.step_tokens // max(len(text) for text in own))
        for at in range(0, len(own), rows):
            tokens, pad = right_aligned(own[at : at + rows])
            counted = np.arange(tokens.shape[1])[None, :] >= pad[:, None]
            with mx.stream(self._lanes[0]):
                batch = Batch.fresh(self._runtime, 1, pad, tokens.shape[1], edits, before)
                weights = mx.array(counted.reshape(-1).astype(np.float32))
                total = _added(total, self._runtime.measured(batch, tokens, weights))
            mx.eval(total)
            yield
        return self._runtime.relative_energies(total)

    def release(self) -> None:
        """Drop what is kept from one rollout to the next."""
        self._trunk.clear()

    def _read(
        self,
        flat: FloatArray,
        prompts: Sequence[Tokens],
        references: Sequence[Tokens],
        centre: FloatArray,
        first: int,
    ) -> Reading:
        if not np.isfinite(centre).all():
            raise ValueError("the centre's coordinates are not finite numbers")
        runtime, end = self._runtime, self._runtime.first_coordinate(first)
        if (flat[:, :end] != centre[:end]).any():
            raise ValueError(f"the candidates differ from their centre below layer {first}")
        split = common_prefix(prompts)
        # The last token of an answer is predicted, never an input.
        rows = [
            np.concatenate([p[split:], r[:-1]]) for p, r in zip(prompts, references, strict=True)
        ]
        prefix, states = self._trunk.enter(first, centre, prompts[0][:split], rows)
        counts = [len(reference) for reference in references]
        with mx.stream(self._lanes[0]):
            edits = runtime.edits(centre[None])
            return read(runtime, edits, prefix, states, counts, first)

    def _shortlist(
        self, centre: FloatArray, reading: Reading, references: Sequence[Tokens]
    ) -> Shortlist | None:
        """Tokens that are likely under the centre; ``None`` where the whole head is as cheap."""
        size = self._limits.shortlist
        if size >= self._runtime.vocabulary:
            return None
        with mx.stream(self._lanes[0]):
            edits = self._runtime.edits(centre[None])
            return make_shortlist(self._runtime, reading, edits, references, size)

    def _generation(
        self,
        work: Work,
        prompts: Sequence[Tokens],
        split: int,
        lane: mx.Stream,
        sampling: Sampling,
    ) -> Generation:
        step = self._limits.step_tokens
        return Generation(self._runtime, self._decode, work, prompts, split, lane, sampling, step)


def _added(total: dict[str, mx.array], more: dict[str, mx.array]) -> dict[str, mx.array]:
    return {name: total[name] + part if total else part for name, part in more.items()}
