"""Rows of users in flight: continuous batching, each row with its own expert and sampling.

A lane's rows run in one pass per step on one MLX stream.  Their keys and values lie in *cohorts*,
rows whose prompts were read together: a row that joins or leaves does not move those of others.
Rows of one expert whose prompts begin alike have that beginning once, and attend to it in place.
A row that fails leaves alone; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import mlx.core as mx
import numpy as np

from app.engine.batch import Batch, Runtime, Tokens, absorbed, aligned
from app.engine.cache import LayerTensors
from app.engine.choice import Choice, decide, texts
from app.engine.layers import Edits
from app.engine.prefixes import Known, PrefixCache, entry_of, whole
from app.engine.prompts import behind, beside
from app.engine.sampling import Sampling
from app.engine.text import RowText
from app.engine.work import Pending, common_prefix

# Tokens of one prefill pass, over all its rows: longer prompts take several, between which others
# are served.
_PREFILL_TOKENS = 256
# A row takes the beginning that rows of its expert have in place already, rather than a longer one
# of its own, if that is at most so many tokens shorter: their keys and values then lie together.
_SHORTER = 16
# A shorter beginning is read again: to attend to it apart costs more.
_SHORTEST = 16
# A common beginning is read by itself where that saves so many tokens: it costs a pass.
_WORTH_TOKENS = 64
# More cohorts on a lane than this are joined: each has its own attention, some 60 small operations
# a layer. Those with the same beginning are always joined.
_COHORTS = 3


class Row(Protocol):
    """A user's row, as the lane sees it."""

    prompt: Tokens
    sampling: Sampling
    expert: str | None
    slot: int
    text: RowText

    @property
    def cancelled(self) -> bool:
        """The user no longer wants it."""

    def emit(self, delta: str) -> None:
        """New text."""

    def finish(self, error: str | None = None) -> None:
        """The row is over: finished, cancelled or failed."""


@dataclass
class _Cohort:
    """Rows whose keys and values lie together.

    Attributes:
        places: its rows; ``None`` where one is over and its columns are not yet given back.
        batch: their keys and values.
        known: the beginning that they share in place.
    """

    places: list[Row | None]
    batch: Batch
    known: Known | None

    @property
    def rows(self) -> list[Row]:
        """Those that go on."""
        return [row for row in self.places if row is not None]

    def compact(self) -> None:
        """Give back the columns of rows that are over."""
        kept = [place for place, row in enumerate(self.places) if row is not None]
        if len(kept) < len(self.places):
            self.batch = aligned([self.batch.keep([kept], None, 0)], self.prefix)
            self.places = [self.places[place] for place in kept]

    @property
    def prefix(self) -> LayerTensors | None:
        """Keys and values of the beginning."""
        return self.known.tensors() if self.known else None


class Lane:
    """Users' rows on one stream.

    Args:
        runtime: the base model.
        stream: where its work runs.
        prefixes: prompts' keys and values, shared by the lanes.
        edits_of: slots of the rows -> their edits, ``None`` when all are the plain base.
    """

    def __init__(
        self,
        runtime: Runtime,
        stream: mx.Stream,
        prefixes: PrefixCache,
        edits_of: Callable[[Sequence[int]], Edits | None],
    ) -> None:
        self._runtime = runtime
        self._stream = stream
        self._prefixes = prefixes
        self._edits_of = edits_of
        self._cohorts: list[_Cohort] = []
        self._edits: Edits | None = None
        self._pending: Choice | None = None

    @property
    def rows(self) -> list[Row]:
        """Rows that are answering."""
        return [row for cohort in self._cohorts for row in cohort.rows]

    @property
    def columns(self) -> int:
        """Tokens whose keys and values the rows hold or may come to hold."""
        total = 0
        for cohort in self._cohorts:
            left = max(row.sampling.max_tokens - len(row.text.tokens) for row in cohort.rows)
            total += len(cohort.places) * (cohort.batch.layout.cursor + left)
            total += cohort.known.length if cohort.known else 0
        return total

    def admit(self, rows: Sequence[Row], home: Lane | None = None) -> Pending:
        """Read the prompts of ``rows``, emit their first token and let those that go on join.

        ``home``: the lane on which they go on, this one by default.

        Yields what to evaluate, once per chunk of columns.  Rows that nobody wants any more end
        after the chunk under way once all of them are unwanted.
        """
        home = home or self
        alike = len({row.expert for row in rows}) == 1
        slots = [row.slot for row in rows]
        with mx.stream(self._stream):
            edits = self._edits_of(slots[:1] if alike else slots)
        known = (yield from self._common(rows, edits, home)) if alike else None
        with mx.stream(self._stream):
            batch, tokens = self._placed(rows, known, edits)
        hidden = yield from self._read(rows, batch, tokens)
        if hidden is None:
            for row in rows:
                row.finish()
            return
        with mx.stream(self._stream):
            choice = self._choose(hidden, rows)
        yield [*choice.arrays, *batch.tensors()]
        with mx.stream(self._stream):
            self._remember(rows, batch, known)
        places = self._deliver(rows, choice.hand_out(texts(rows)))
        if any(places):
            home._take(_Cohort(places, batch, known))

    def step(self) -> list[mx.array]:
        """Build the next decode step; returns what to evaluate before ``collect``."""
        for cohort in self._cohorts:
            for place, row in enumerate(cohort.places):
                if row is not None and row.cancelled:
                    row.finish()
                    cohort.places[place] = None
        with mx.stream(self._stream):
            self._clear()
            if not self._cohorts:
                return []
            for cohort in self._cohorts:
                cohort.batch.reserve(1)
            places = [row for cohort in self._cohorts for row in cohort.places]
            last = [[row.text.tokens[-1] if row else 0] for row in places]
            batches = [cohort.batch for cohort in self._cohorts]
            hidden = self._runtime.together(batches, np.array(last, dtype=np.int32), self._edits)
            self._pending = self._choose(hidden, places)
        return [*self._pending.arrays, *(array for batch in batches for array in batch.tensors())]

    def collect(self) -> int:
        """Hand out the evaluated step's tokens; returns how many."""
        if self._pending is None:
            return 0
        places = [row for cohort in self._cohorts for row in cohort.places]
        deltas = self._pending.hand_out(texts(places))
        self._pending = None
        start, count = 0, len(self.rows)
        for cohort in self._cohorts:
            stop = start + len(cohort.places)
            cohort.places = self._deliver(cohort.places, deltas[start:stop])
            start = stop
        with mx.stream(self._stream):
            self._clear()
        return count

    def fail(self, message: str) -> None:
        """End every row with an error."""
        for row in self.rows:
            row.finish(message)
        self._cohorts, self._edits, self._pending = [], None, None

    def _placed(
        self, rows: Sequence[Row], known: Known | None, edits: Edits | None
    ) -> tuple[Batch, Tokens]:
        """A batch for the prompts and the tokens to read: behind ``known``, or what each has."""
        prompts = [row.prompt for row in rows]
        if known is not None:
            return behind(self._runtime, known, prompts, edits)
        found = [self._prefixes.longest(row.expert or "", row.prompt) for row in rows]
        return beside(self._runtime, found, prompts, edits)

    def _common(
        self, rows: Sequence[Row], edits: Edits | None, home: Lane
    ) -> Generator[list[mx.array], None, Known | None]:
        """What the prompts of one expert begin with, read here if that saves reading it often."""
        expert = rows[0].expert or ""
        common = rows[0].prompt[: common_prefix([row.prompt for row in rows])]
        longest = self._prefixes.longest(expert, common)
        found = home._in_place(rows[0].expert, common, longest) or longest
        if found is not None and found.length < _SHORTEST:
            found = None
        missing = len(common) - (found.length if found else 0)
        if (len(rows) - 1) * missing < _WORTH_TOKENS:
            return found
        with mx.stream(self._stream):
            batch, tokens = behind(self._runtime, found, [common], edits)
        if (yield from self._read(rows, batch, tokens)) is None:
            return found
        yield batch.tensors()
        with mx.stream(self._stream):
            entry = entry_of(common, whole(found, batch.filled()))
        self._prefixes.add(expert, entry)
        return Known(entry, len(common))

    def _in_place(self, expert: str | None, tokens: Tokens, longest: Known | None) -> Known | None:
        """The beginning of ``tokens`` that a cohort has, unless ``longest`` is much longer."""
        least = longest.length - _SHORTER if longest else 1
        for cohort in self._cohorts:
            known = cohort.known
            if known is None or cohort.rows[0].expert != expert or known.length < least:
                continue
            if np.array_equal(known.entry.tokens[: known.length], tokens[: known.length]):
                return known
        return None

    def _read(
        self, rows: Sequence[Row], batch: Batch, tokens: Tokens
    ) -> Generator[list[mx.array], None, mx.array | None]:
        """Run ``tokens`` in chunks; the last chunk's hidden states, not yet evaluated.

        ``None`` once nobody wants any of the rows.
        """
        columns = max(1, _PREFILL_TOKENS // len(tokens))
        for start in range(0, tokens.shape[1], columns):
            if all(row.cancelled for row in rows):
                return None
            with mx.stream(self._stream):
                hidden = self._runtime.forward(batch, tokens[:, start : start + columns])
            if start + columns >= tokens.shape[1]:
                return hidden
            yield batch.tensors()
        return None

    def _remember(self, rows: Sequence[Row], batch: Batch, known: Known | None) -> None:
        """Keep prompts that were mostly new, for later prompts of the same expert."""
        for index, row in enumerate(rows):
            before = self._prefixes.longest(row.expert or "", row.prompt)
            if before and 2 * before.length >= len(row.prompt):
                continue
            start = int(batch.layout.pad[index])
            one = slice(index, index + 1)
            own = [(k[one, :, start:], v[one, :, start:]) for k, v in batch.filled()]
            entry = entry_of(row.prompt, whole(known, own))
            self._prefixes.add(row.expert or "", entry)

    def _choose(self, hidden: mx.array, rows: Sequence[Row | None]) -> Choice:
        last = hidden[:, -1]
        return decide(last, self._runtime.logits(last), texts(rows))

    def _deliver(self, rows: Sequence[Row | None], deltas: Sequence[str]) -> list[Row | None]:
        """Hand new text to the rows; returns them with ``None`` for those that are over."""
        for row, delta in zip(rows, deltas, strict=True):
            if row is None:
                continue
            if row.text.error is None:
                row.emit(delta)
            if row.text.over:
                row.finish(row.text.error)
        return [None if row is None or row.text.over else row for row in rows]

    def _take(self, cohort: _Cohort) -> None:
        """Let rows that have been read join this lane's."""
        with mx.stream(self._stream):
            cohort.compact()
            self._cohorts.append(cohort)
            self._join_cohorts()
            self._renew_edits()

    def _clear(self) -> None:
        """Drop cohorts without rows, and compact those of which a quarter is over."""
        before = [id(cohort.batch) for cohort in self._cohorts]
        self._cohorts = [cohort for cohort in self._cohorts if cohort.rows]
        for cohort in self._cohorts:
            if len(cohort.rows) <= 0.75 * len(cohort.places):
                cohort.compact()
        if [id(cohort.batch) for cohort in self._cohorts] != before:
            self._renew_edits()

    def _join_cohorts(self) -> None:
        """Join cohorts that have the same beginning, and small ones until there are few."""

        def cost(pair: tuple[_Cohort, _Cohort]) -> tuple[bool, int]:
            one, other = pair
            return one.known is None or one.known != other.known, len(one.rows) + len(other.rows)

        while len(self._cohorts) > 1:
            one, other = min(combinations(self._cohorts, 2), key=cost)
            apart = cost((one, other))[0]
            if apart and len(self._cohorts) <= _COHORTS:
                return
            one.compact()
            other.compact()
            alike = one.known == other.known
            parts = [c.batch if alike else absorbed(c.batch) for c in (one, other)]
            batch = aligned(parts, one.prefix if alike else None)
            self._cohorts = [c for c in self._cohorts if c is not one and c is not other]
            places = [*one.places, *other.places]
            self._cohorts.append(_Cohort(places, batch, one.known if alike else None))

    def _renew_edits(self) -> None:
        """The edits of all places, those of rows that are over being the base's."""
        places = [row for cohort in self._cohorts for row in cohort.places]
        self._edits = self._edits_of([row.slot if row else 0 for row in places])
