"""Cutting a population's evaluation into what one lane does in one step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.batch import Tokens
from app.engine.prefixes import shared_prefix

FloatArray = npt.NDArray[np.float32]
Pending = Generator[list[mx.array], None, None]  # yields what to evaluate before it goes on


@dataclass(frozen=True)
class RolloutLimits:
    """How much one engine step and one batch may hold.

    Attributes:
        step_tokens: tokens prefilled per lane and step: bounds how long a user waits.
        batch_tokens: tokens whose keys and values one lane's batch may hold: bounds memory.
        shortlist: tokens that a likelihood's normaliser sums over at each position.
        trunk_bytes: hidden states kept between iterations (``app.engine.trunk``).
    """

    step_tokens: int = 1024
    batch_tokens: int = 16384
    shortlist: int = 256
    trunk_bytes: int = 64 << 20


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

    def chunks(self, step_tokens: int, each: int) -> list[tuple[FloatArray | None, range]]:
        """Runs of candidates that stay within a step's tokens, a candidate taking ``each``."""
        per_step = max(1, step_tokens // each)
        total = len(self.candidates)
        return [
            (
                None if self.flat is None else self.flat[i : i + per_step],
                range(i, min(i + per_step, total)),
            )
            for i in range(0, total, per_step)
        ]


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


def count_candidates(flat: FloatArray | None, sequences: Sequence[Tokens]) -> int:
    """Number of candidates, the base being one.

    Raises ``ValueError`` if there is none, no prompt, or a sequence without tokens.
    """
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


def together(steps: Sequence[Pending]) -> Generator[None, None, None]:
    """Advance the lanes' generators side by side, evaluating what they yield in one call.

    Yields after each evaluation: one engine step.
    """
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
