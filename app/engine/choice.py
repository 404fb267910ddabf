"""A step's tokens: what grammars allow, chosen on the device for all rows, and handed to the rows.

What goes wrong with one row (its grammar, its random stream, its decoding) ends that row alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.sampling import Sampling, choose, stream_key
from app.engine.text import RowText, TokenLogprob

log = logging.getLogger("nightowl.engine")

_GREEDY = (Sampling(), 0)


@dataclass(frozen=True)
class Likelihoods:
    """Log-probabilities of the rows that want them, lazy.

    Attributes:
        rows: their numbers (A).
        chosen: (A, 1) of the chosen tokens.
        tokens, values: (A, K) the most likely tokens and theirs, in no order.
        counts: how many of them each row wants (A).
    """

    rows: Sequence[int]
    counts: Sequence[int]
    chosen: mx.array
    tokens: mx.array
    values: mx.array


@dataclass(frozen=True)
class Choice:
    """The next tokens of a batch: lazy until ``arrays`` are evaluated.

    Attributes:
        tokens: (B,) chosen.
        sound: (B,) whether the model's output was finite.
        likelihoods: of the rows that want them.
        failed: rows for which no token could be chosen, and why.
    """

    tokens: mx.array
    sound: mx.array
    likelihoods: Likelihoods | None = None
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate before ``hand_out``."""
        own = [self.tokens, self.sound]
        if self.likelihoods is None:
            return own
        return [*own, self.likelihoods.chosen, self.likelihoods.tokens, self.likelihoods.values]

    def hand_out(self, rows: Sequence[RowText | None]) -> list[str]:
        """Push the tokens into rows that are not over; returns what is new of each text.

        A row that cannot go on has its ``error`` set.
        """
        tokens, sound = np.array(self.tokens), np.array(self.sound)
        reports = self._reports()
        deltas = [""] * len(rows)
        for index, row in enumerate(rows):
            if row is None or row.over:
                continue
            if not sound[index]:
                row.error = "the model's hidden state is not finite"
                continue
            if index in self.failed:
                row.error = self.failed[index]
                continue
            try:
                deltas[index] = row.push(int(tokens[index]), reports.get(index))
            except Exception as error:
                log.warning("a row cannot go on", exc_info=True)
                row.error = str(error) or type(error).__name__
        return deltas

    def _reports(self) -> dict[int, TokenLogprob]:
        """Row number -> what to report of its token."""
        if self.likelihoods is None:
            return {}
        chosen = np.array(self.likelihoods.chosen)[:, 0].tolist()
        tokens = np.array(self.likelihoods.tokens).tolist()
        values = np.array(self.likelihoods.values).tolist()
        picked = np.array(self.tokens)
        return {
            row: TokenLogprob(
                int(picked[row]),
                chosen[at],
                tuple(sorted(zip(tokens[at], values[at], strict=True), key=_best_first)[:count]),
            )
            for at, (row, count) in enumerate(
                zip(self.likelihoods.rows, self.likelihoods.counts, strict=True)
            )
        }


class _HasText(Protocol):
    text: RowText


def texts(rows: Sequence[_HasText | None]) -> list[RowText | None]:
    """What ``decide`` and ``hand_out`` look at of a batch's rows; ``None`` stays a filler."""
    return [None if row is None else row.text for row in rows]


def decide(hidden: mx.array, logits: mx.array, rows: Sequence[RowText | None]) -> Choice:
    """The next tokens of rows whose last hidden states (B, H) gave ``logits`` (B, V); lazy.

    ``None`` is a filler, of whose token nobody wants to know; a row that is over is one, too.
    """
    rows = [None if row is None or row.over else row for row in rows]
    failed: dict[int, str] = {}
    allowed = _masked(logits, rows, failed)
    tokens = choose(allowed, [_plan(index, row, failed) for index, row in enumerate(rows)])
    best = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    sound = mx.isfinite(hidden).all(axis=-1) & mx.isfinite(best)
    return Choice(tokens, sound, _likelihoods(logits, tokens, rows), failed)


def _plan(index: int, row: RowText | None, failed: dict[int, str]) -> tuple[Sampling, int]:
    """How to draw for a row: its sampling and the key of its noise."""
    if row is None or row.sampling.temperature == 0:
        return _GREEDY
    try:
        return row.sampling, stream_key(row.sampling, len(row.tokens))
    except Exception as error:
        log.warning("a token cannot be drawn", exc_info=True)
        failed[index] = f"the token cannot be drawn: {error}"
        return _GREEDY


def _masked(logits: mx.array, rows: Sequence[RowText | None], failed: dict[int, str]) -> mx.array:
    """Logits with minus infinity where a row's grammar forbids the token.

    One bit per token goes to the device; without grammars nothing is done.
    """
    matchers = [(i, row.matcher) for i, row in enumerate(rows) if row and row.matcher]
    if not matchers:
        return logits
    count, vocabulary = logits.shape
    packed: npt.NDArray[np.uint32] = np.full(
        (count, -(-vocabulary // 32)), np.iinfo(np.uint32).max, dtype=np.uint32
    )
    for index, matcher in matchers:
        try:
            packed[index] = matcher.mask()[: packed.shape[1]]
        except Exception as error:
            log.warning("a grammar cannot be followed", exc_info=True)
            failed[index] = str(error)
    bits = (mx.array(packed)[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    allowed = bits.reshape(count, -1)[:, :vocabulary].astype(mx.bool_)
    return mx.where(allowed, logits, -mx.inf)


def _likelihoods(
    logits: mx.array, tokens: mx.array, rows: Sequence[RowText | None]
) -> Likelihoods | None:
    """Of the model's own distribution: before temperature, truncation and grammar."""
    wanted = {
        index: row.sampling.logprobs
        for index, row in enumerate(rows)
        if row is not None and row.sampling.logprobs is not None
    }
    if not wanted:
        return None
    index = mx.array(list(wanted))
    own = logits[index].astype(mx.float32)
    own = own - mx.logsumexp(own, axis=-1, keepdims=True)  # (A, V)
    chosen = mx.take_along_axis(own, tokens[index][:, None], axis=-1)
    most = min(max(wanted.values()), own.shape[-1])
    top = mx.argpartition(-own, max(most - 1, 0), axis=-1)[:, :most]
    values = mx.take_along_axis(own, top, axis=-1)
    return Likelihoods(list(wanted), list(wanted.values()), chosen, top, values)


def _best_first(pair: tuple[int, float]) -> tuple[float, int]:
    return -pair[1], pair[0]
