"""Choosing the next token of each row, on the device, with counter-based randomness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from app.engine import platform as _platform  # noqa: F401  (before any MLX call)


@dataclass(frozen=True)
class Sampling:
    """How one row is decoded.

    Attributes:
        temperature: 0 = greedy.
        top_p, top_k, min_p: truncations of the distribution; 1, 0 and 0 switch them off.
        seed: key of the row's random stream; the text depends on it and on nothing else in the
            batch.
        max_tokens: tokens generated at most, the end-of-text token included.
        stop: strings that end the text; they are not part of it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


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
    scaled = logits.astype(mx.float32) / sampling.temperature
    scaled = truncate(scaled, sampling.top_k, sampling.top_p, sampling.min_p)
    counter = np.random.SeedSequence([sampling.seed, count]).generate_state(1, np.uint64)[0]
    noise = mx.random.gumbel(scaled.shape, key=mx.random.key(int(counter)))
    return mx.argmax(scaled + noise)


def truncate(scaled: mx.array, top_k: int, top_p: float, min_p: float) -> mx.array:
    """(V,) logits with the tokens outside top-k, nucleus and min-p at minus infinity.

    The best token always stays.  ``top_k`` of the vocabulary's size or more keeps everything.
    """
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
