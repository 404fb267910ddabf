"""Choosing the next token of each row, on the device, with counter-based randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from app.engine.grammar import Grammar

_COLDEST = 1e-30  # lower temperatures are no fp32 numbers
_TOGETHER = 32  # rows drawn in one pass: bounds the memory it takes
MAX_LOGPROBS = 20


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
        if math.isnan(self.top_p) or math.isnan(self.min_p):
            raise ValueError("top_p or min_p is not a number")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise ValueError(f"logprobs {self.logprobs} is not within 0 to {MAX_LOGPROBS}")

    def truncates(self, vocabulary: int) -> bool:
        """Whether any of the distribution may be cut off."""
        return 0 < self.top_k < vocabulary or self.top_p < 1 or self.min_p > 0


def stream_key(sampling: Sampling, count: int) -> int:
    """Key of the noise with which a row draws the token after its first ``count``."""
    state = np.random.SeedSequence([sampling.seed, count]).generate_state(1, np.uint64)
    return int(state[0])


def choose(logits: mx.array, rows: Sequence[tuple[Sampling, int]]) -> mx.array:
    """Next tokens (B,) of ``logits`` (B, V); each row's sampling and the key of its noise.

    A row's token depends on nothing else in the batch.
    """
    greedy = mx.argmax(logits, axis=-1)
    warm = [index for index, (sampling, _) in enumerate(rows) if sampling.temperature > 0]
    if not warm:
        return greedy
    parts = [warm[start : start + _TOGETHER] for start in range(0, len(warm), _TOGETHER)]
    drawn = [_draw(logits[mx.array(part)], [rows[index] for index in part]) for part in parts]
    return mx.put_along_axis(greedy, mx.array(warm), mx.concatenate(drawn), axis=0)


def _draw(logits: mx.array, rows: Sequence[tuple[Sampling, int]]) -> mx.array:
    """A token of each row's truncated distribution, by the Gumbel maximum."""
    temperatures = mx.array([[max(sampling.temperature, _COLDEST)] for sampling, _ in rows])
    # Relative to the best, so that a tiny temperature leaves it at 0 and not all at infinity.
    scaled = logits.astype(mx.float32)
    scaled = (scaled - scaled.max(axis=-1, keepdims=True)) / temperatures
    scaled = truncate(scaled, [sampling for sampling, _ in rows])
    size = scaled.shape[-1:]
    keys = mx.stack([mx.random.key(key) for _, key in rows])
    noise = mx.vmap(lambda key: mx.random.gumbel(size, key=key))(keys)
    return mx.argmax(scaled + noise, axis=-1)


def truncate(scaled: mx.array, rows: Sequence[Sampling]) -> mx.array:
    """(B, V) logits with the tokens outside top-k, nucleus and min-p at minus infinity.

    Each is a cut of the whole distribution; a token must survive all three. The best token always
    stays.  ``top_k`` of the vocabulary's size or more keeps everything.
    """
    size = scaled.shape[-1]
    cut = [index for index, row in enumerate(rows) if row.truncates(size)]
    if not cut:
        return scaled
    if len(cut) == len(rows):
        return _truncated(scaled, rows)
    some = mx.array(cut)
    scaled[some] = _truncated(scaled[some], [rows[index] for index in cut])
    return scaled


def _truncated(scaled: mx.array, rows: Sequence[Sampling]) -> mx.array:
    size = scaled.shape[-1]
    top_k = mx.array([[min(row.top_k, size) or size] for row in rows])
    top_p, min_p = (mx.array([[getattr(row, name)] for row in rows]) for name in ("top_p", "min_p"))
    order = mx.argsort(-scaled, axis=-1)
    ranked = mx.take_along_axis(scaled, order, axis=-1)
    rank = mx.arange(size)
    probabilities = mx.softmax(ranked, axis=-1, precise=True)
    before = mx.cumsum(probabilities, axis=-1) - probabilities
    keep = (rank < top_k) & ((before < top_p) | (top_p >= 1))
    keep = keep & (probabilities >= min_p * probabilities[:, :1])
    kept = mx.where(keep | (rank == 0), ranked, -mx.inf)
    return mx.put_along_axis(scaled, order, kept, axis=-1)
