"""Choosing the next token of each row, on the device, with counter-based randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from app.engine.grammar import Grammar

_COLDEST = 1e-30  # lower temperatures are no fp32 numbers


@dataclass(frozen=True)
class Sampling:
    """How one row is decoded.

    Attributes:
        temperature: 0 = greedy.
        top_p, top_k, min_p: truncations of the distribution; 1, 0 and 0 switch them off.
        seed: key of the row's random stream, not negative; the text depends on it and on
            nothing else in the batch.
        max_tokens: tokens generated at most, the end-of-text token included.
        stop: strings that end the text; they are not part of it.
        grammar: what the text has to follow.
        logprobs: alternatives reported beside each chosen token with its log-probability, 0 for
            the chosen one alone; ``None`` = no log-probabilities.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for what cannot be decoded with."""
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature {self.temperature} is not a number of at least 0")
        if self.seed < 0 or self.max_tokens < 1 or "" in self.stop:
            raise ValueError("seed < 0, max_tokens < 1 or an empty stop string")


def choose(logits: mx.array, rows: Sequence[tuple[Sampling, int]]) -> mx.array:
    """Next tokens (B,) of ``logits`` (B, V).

    ``rows``: each row's sampling and the number of tokens it has generated, the counter of its
    random stream.
    """
    greedy = mx.argmax(logits, axis=-1)
    if all(sampling.temperature == 0 for sampling, _ in rows):
        return greedy
    return mx.stack(
        [
            greedy[index] if sampling.temperature == 0 else _draw(logits[index], sampling, count)
            for index, (sampling, count) in enumerate(rows)
        ]
    )


def _draw(logits: mx.array, sampling: Sampling, count: int) -> mx.array:
    """One token of the truncated distribution, by the Gumbel maximum."""
    # Relative to the best, so that a tiny temperature leaves it at 0 and not all at infinity.
    scaled = logits.astype(mx.float32)
    scaled = (scaled - scaled.max()) / max(sampling.temperature, _COLDEST)
    scaled = truncate(scaled, sampling.top_k, sampling.top_p, sampling.min_p)
    counter = np.random.SeedSequence([sampling.seed, count]).generate_state(1, np.uint64)[0]
    noise = mx.random.gumbel(scaled.shape, key=mx.random.key(int(counter)))
    return mx.argmax(scaled + noise)


def truncate(scaled: mx.array, top_k: int, top_p: float, min_p: float) -> mx.array:
    """(V,) logits with the tokens outside top-k, nucleus and min-p at minus infinity.

    Each is a cut of the whole distribution; a token must survive all three. The best token always
    stays.  ``top_k`` of the vocabulary's size or more keeps everything.
    """
    if not 0 < top_k < scaled.shape[0] and top_p >= 1 and min_p <= 0:
        return scaled
    order = mx.argsort(-scaled)
    ranked = scaled[order]
    keep = mx.ones(ranked.shape, mx.bool_)
    if 0 < top_k < scaled.shape[0]:
        keep = keep & (mx.arange(ranked.shape[0]) < top_k)
    probabilities = mx.softmax(ranked, precise=True)
    if top_p < 1:
        keep = keep & (mx.cumsum(probabilities) - probabilities < top_p)
    if min_p > 0:
        keep = keep & (probabilities >= min_p * probabilities[0])
    keep = keep | (mx.arange(ranked.shape[0]) == 0)
    cut = mx.where(keep, ranked, -mx.inf)
    return cut[mx.argsort(order)]
