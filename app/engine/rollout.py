"""A population of experts over the same prompts, evaluated as rows of shared batches.

Every candidate is one group of the batch (``app.engine.layers``).  The prompts' common prefix is
prefilled once per candidate and attended to in place; what differs is prefilled and decoded for
all candidates together; rows that have finished leave.  The functions are generators that yield
after each engine step, so that the scheduler can serve a user in between; their return value is
the result.  On CPU the groups are divided over the lanes (one MLX stream each), which advance
together.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.cache import Layout, shared_prefix
from app.engine.layers import Edits
from app.engine.maths import logsumexp
from app.engine.sampling import Sampling, choose
from app.engine.text import Completion, Decode, RowText

FloatArray = npt.NDArray[np.float32]
Steps = Generator[None, None, None]


@dataclass(frozen=True)
class RolloutLimits:
    """How much one engine step and one batch may hold.

    Attributes:
        step_tokens: tokens prefilled per lane and step: bounds how long a user waits.
        batch_tokens: tokens whose keys and values one lane's batch may hold: bounds memory.
    """

    step_tokens: int = 1024
    batch_tokens: int = 16384


@dataclass(frozen=True)
class Work:
    """One lane's share: some candidates over some prompts.

    Attributes:
        flat: (P, total) candidates, ``None`` for the plain base (one candidate).
        candidates, prompts: their numbers in the whole rollout.
    """

    flat: FloatArray | None
    candidates: Sequence[int]
    prompts: Sequence[int]


def share(
    flat: FloatArray | None, prompts: int, lanes: int, batch_tokens: int, prefix: int, each: int
) -> list[list[Work]]:
    """Cut a rollout into rounds of at most one piece of work per lane.

    Whole candidates go to a lane while they fit; with fewer candidates than lanes the prompts are
    divided instead.  A lane's batch holds ``batch_tokens``, and one row if even that is too much:
    a candidate takes ``prefix`` of them, each of its rows ``each``.
    """
    count = 1 if flat is None else flat.shape[0]
    rows = max(1, (batch_tokens - prefix) // each)
    by_prompt = min(prompts, max(-(-prompts // rows), lanes // count if count < lanes else 1))
    spans = np.array_split(np.arange(prompts), by_prompt)
    whole = batch_tokens // (prefix + each * len(spans[0]))
    per_lane = max(1, min(-(-count // lanes), whole))
    pieces = [
        Work(
            None if flat is None else flat[start : start + per_lane],
            range(start, min(start + per_lane, count)),
            [int(i) for i in span],
        )
        for start in range(0, count, per_lane)
        for span in spans
    ]
    return [pieces[i : i + lanes] for i in range(0, len(pieces), lanes)]


def _count(flat: FloatArray | None, sequences: Sequence[Tokens]) -> int:
    """Number of candidates, the base being one."""
    count = 1 if flat is None else flat.shape[0]
    if count == 0 or len(sequences) == 0 or not all(len(tokens) for tokens in sequences):
        raise ValueError("a rollout needs a candidate, and prompts and references with tokens")
    return count


def common_prefix(prompts: Sequence[Tokens]) -> int:
    """Tokens that all prompts share, leaving each at least one of its own."""
    shared = min(len(p) for p in prompts) - 1
    for prompt in prompts[1:]:
        shared = min(shared, shared_prefix(prompts[0], prompt))
    return shared


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

    def generate(
        self, flat: FloatArray | None, prompts: Sequence[Tokens], sampling: Sampling
    ) -> Generator[None, None, list[list[Completion]]]:
        """Completions [candidate][prompt] of every candidate on every prompt.

        A sampled row's random stream is keyed by the seed and its candidate and prompt numbers.
        A row whose hidden state is not finite ends with ``finish_reason`` error. Raises
        ``ValueError`` if there is no candidate, no prompt or a prompt without tokens.
        """
        count = _count(flat, prompts)
        results: list[list[Completion | None]] = [[None] * len(prompts) for _ in range(count)]
        split = common_prefix(prompts)
        longest = max(len(p) for p in prompts) - split
        each = longest + sampling.max_tokens
        limit = self._limits.batch_tokens
        for round_ in share(flat, len(prompts), len(self._lanes), limit, split, each):
            shares = [
                _Share(self, work, prompts, split, lane, sampling)
                for work, lane in zip(round_, self._lanes, strict=False)
            ]
            yield from _together([s.prefill() for s in shares])
            yield from _together([s.decode_all() for s in shares])
            for piece in shares:
                for row in piece.rows:
                    done = row.text.completion(len(prompts[row.prompt]), row.error)
                    results[row.candidate][row.prompt] = done
        return [[c for c in line if c is not None] for line in results]

    def likelihood(
        self, flat: FloatArray | None, prompts: Sequence[Tokens], references: Sequence[Tokens]
    ) -> Generator[None, None, FloatArray]:
        """Mean log-likelihood per token of each reference after its prompt: (P, N) fp32.

        NaN where a candidate's logits are not finite. Raises ``ValueError`` as ``generate``
        does, and for a reference without tokens.
        """
        count = _count(flat, [*prompts, *references])
        result = np.full((count, len(prompts)), np.nan, dtype=np.float32)
        split = common_prefix(prompts)
        whole = [np.concatenate([p, r]) for p, r in zip(prompts, references, strict=True)]
        # The last reference token is predicted, never an input.
        inputs = [tokens[split:-1] for tokens in whole]
        each = max(len(i) for i in inputs)
        limit = self._limits.batch_tokens
        for round_ in share(flat, len(prompts), len(self._lanes), limit, split, each):
            shares = [
                _Scored(self, work, prompts[0][:split], inputs, references, lane)
                for work, lane in zip(round_, self._lanes, strict=False)
            ]
            yield from _together([s.run(result) for s in shares])
        return result

    def start(
        self, flat: FloatArray | None, prefix: Tokens, pad: npt.NDArray[np.int32], capacity: int
    ) -> Batch:
        """A batch whose groups have ``prefix`` prefilled: lazily, nothing is evaluated."""
        runtime = self._runtime
        groups = 1 if flat is None else flat.shape[0]
        edits = runtime.edits(None if flat is None else mx.array(flat))
        if len(prefix) == 0:
            return Batch.fresh(runtime, groups, pad, capacity, edits)
        nothing = np.zeros(groups, dtype=np.int32)
        shared = Batch.fresh(runtime, groups, nothing, len(prefix), edits)
        runtime.forward(shared, np.tile(prefix, (groups, 1)))
        return Batch.fresh(runtime, groups, pad, capacity, edits, shared.filled())

    @property
    def runtime(self) -> Runtime:
        """The base model."""
        return self._runtime

    @property
    def decode(self) -> Decode:
        """Token ids -> text."""
        return self._decode

    def chunks(self, work: Work, tokens_each: int) -> list[tuple[FloatArray | None, range]]:
        """A lane's candidates in runs that stay within a step's tokens."""
        per_step = max(1, self._limits.step_tokens // tokens_each)
        total = len(work.candidates)
        return [
            (
                None if work.flat is None else work.flat[i : i + per_step],
                range(i, min(i + per_step, total)),
            )
            for i in range(0, total, per_step)
        ]


def _together(steps: Sequence[Generator[list[mx.array], None, None]]) -> Steps:
    """Advance the lanes' generators side by side, evaluating what they yield in one call."""
    running = list(steps)
    while running:
        pending: list[mx.array] = []
        alive = []
        for step in running:
            outputs = next(step, None)
            if outputs is not None:
                pending.extend(outputs)
                alive.append(step)
        if pending:
            mx.eval(pending)
            yield
        running = alive


@dataclass
class _Row:
    candidate: int
    prompt: int
    text: RowText
    sampling: Sampling
    error: str | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or self.text.finish is not None


class _Share:
    """One lane's rows of a generation: prefill in chunks, then decode all of them together."""

    def __init__(
        self,
        population: Population,
        work: Work,
        prompts: Sequence[Tokens],
        split: int,
        lane: mx.Stream,
        sampling: Sampling,
    ) -> None:
        self._population = population
        self._work = work
        self._prefix = prompts[0][:split]
        self._tokens, self._pad = right_aligned([prompts[p][split:] for p in work.prompts])
        self._lane = lane
        self._sampling = sampling
        self._batch: Batch | None = None
        self._slots: list[list[_Row | None]] = []  # rows of the batch by group; None: filler
        eos = population.runtime.eos
        self.rows = [
            _Row(c, p, RowText(population.decode, sampling, eos), self._keyed(c, p))
            for c in work.candidates
            for p in work.prompts
        ]
        self._last = np.zeros(len(self.rows), dtype=np.int32)

    def _keyed(self, candidate: int, prompt: int) -> Sampling:
        if self._sampling.temperature == 0:
            return self._sampling
        key = np.random.SeedSequence([self._sampling.seed, candidate, prompt])
        return replace(self._sampling, seed=int(key.generate_state(1)[0]))

    def prefill(self) -> Generator[list[mx.array], None, None]:
        """Yields what to evaluate, once per chunk of candidates."""
        width = self._tokens.shape[1]
        each = len(self._prefix) + self._tokens.size
        capacity = width + self._sampling.max_tokens
        parts: list[Batch] = []
        per_group = len(self._work.prompts)
        for flat, span in self._population.chunks(self._work, each):
            rows = self.rows[span.start * per_group : span.stop * per_group]
            with mx.stream(self._lane):
                pad = np.tile(self._pad, len(span))
                batch = self._population.start(flat, self._prefix, pad, capacity)
                tokens = np.tile(self._tokens, (len(span), 1))
                hidden = self._population.runtime.forward(batch, tokens)
                chosen, finite = self._choose(hidden, rows)
            yield [chosen, finite, *batch.tensors()]
            self._take(rows, chosen, finite, span.start * per_group)
            parts.append(batch)
        groups: list[list[_Row | None]] = [
            list(self.rows[i : i + per_group]) for i in range(0, len(self.rows), per_group)
        ]
        with mx.stream(self._lane):
            flat_all = None if self._work.flat is None else mx.array(self._work.flat)
            edits = self._population.runtime.edits(flat_all)
            self._batch = stacked(parts, edits)
        self._slots = groups

    def decode_all(self) -> Generator[list[mx.array], None, None]:
        """Yields what to evaluate, once per decoded column, until every row has finished."""
        self._compact()
        while self._batch is not None:
            live = [row for group in self._slots for row in group]
            with mx.stream(self._lane):
                tokens = self._last[:, None]
                hidden = self._population.runtime.forward(self._batch, tokens)
                chosen, finite = self._choose(hidden, live)
            yield [chosen, finite, *self._batch.tensors()]
            self._take(live, chosen, finite, 0)
            self._compact()

    def _choose(self, hidden: mx.array, rows: Sequence[_Row | None]) -> tuple[mx.array, mx.array]:
        last = hidden[:, -1]
        logits = self._population.runtime.logits(last)
        filler = (Sampling(), 0)
        plan = [(row.sampling, len(row.text.tokens)) if row else filler for row in rows]
        chosen = choose(logits, plan)
        return chosen, mx.isfinite(last).all(axis=-1)

    def _take(
        self, rows: Sequence[_Row | None], chosen: mx.array, finite: mx.array, start: int
    ) -> None:
        tokens, sound = np.array(chosen).astype(np.int32), np.array(finite)
        self._last[start : start + len(rows)] = tokens
        for row, token, fine in zip(rows, tokens, sound, strict=True):
            if row is None or row.done:
                continue
            if not fine:
                row.error = "the model's hidden state is not finite"
                continue
            row.text.push(int(token))

    def _compact(self) -> None:
        """Let finished rows leave once a quarter of the batch is finished.

        Groups stay equally long: a shorter one is filled with copies of a row, which are ignored.
        """
        assert self._batch is not None
        per_group = self._batch.layout.rows
        alive = [[i for i, row in enumerate(g) if row and not row.done] for g in self._slots]
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
    batch = Batch(layout, [], edits)
    for caches in zip(*(b.layers for b in parts), strict=True):
        batch.layers.append(caches[0].beside(caches[1:], layout))
    return batch


class _Scored:
    """One lane's part of a likelihood: one pass per chunk of candidates."""

    def __init__(
        self,
        population: Population,
        work: Work,
        prefix: Tokens,
        inputs: Sequence[Tokens],
        references: Sequence[Tokens],
        lane: mx.Stream,
    ) -> None:
        self._population = population
        self._work = work
        self._prefix = prefix
        self._lane = lane
        self._references = [references[p] for p in work.prompts]
        self._tokens, self._pad = right_aligned([inputs[p] for p in work.prompts])

    def run(self, result: FloatArray) -> Generator[list[mx.array], None, None]:
        """Fills this lane's part of ``result``; yields what to evaluate, once per chunk."""
        runtime, width = self._population.runtime, self._tokens.shape[1]
        longest = max(len(r) for r in self._references)
        targets, missing = right_aligned(self._references)
        counted = np.arange(longest)[None, :] >= missing[:, None]
        each = len(self._prefix) + self._tokens.size
        for flat, span in self._population.chunks(self._work, each):
            with mx.stream(self._lane):
                pad = np.tile(self._pad, len(span))
                batch = self._population.start(flat, self._prefix, pad, width)
                hidden = runtime.forward(batch, np.tile(self._tokens, (len(span), 1)))
                # Right-aligned rows end at the same column: the last `longest` predict.
                mask = np.tile(counted, (len(span), 1)).reshape(-1)
                picked = hidden[:, width - longest :].reshape(-1, hidden.shape[-1])
                picked = picked[mx.array(np.flatnonzero(mask).astype(np.int32))]
                wanted = mx.array(np.tile(targets, (len(span), 1)).reshape(-1)[mask])
                logits = runtime.logits(picked).astype(mx.float32)
                chosen = mx.take_along_axis(logits, wanted[:, None], axis=-1)[:, 0]
                logp = chosen - logsumexp(logits)
            yield [logp]
            sums = np.zeros(mask.shape, dtype=np.float64)
            sums[mask] = np.array(logp)
            means = sums.reshape(len(span), len(self._references), longest).sum(-1)
            means /= counted.sum(-1)
            numbers = [self._work.candidates[i] for i in span]
            result[np.ix_(numbers, list(self._work.prompts))] = means
