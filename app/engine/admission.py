"""Which waiting rows start, on which lane, and how their prompts are read: a chunk a step.

Rows start in the order they came.  Those that are read together on a lane have prompts of about the
same length, since a batch is as wide as its longest row; and a lane takes no more rows than their
keys and values may take bytes, whatever they may still generate included.  Several such groups take
turns on a lane, a chunk each, so that a short prompt does not wait for the end of a long one; and
between two chunks, rows that are already answering get their next token.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from app.engine.lanes import Lane
from app.engine.slots import ExpertSlots, NoFreeSlot
from app.engine.stream import Stream
from app.engine.work import Pending

log = logging.getLogger("nightowl.engine")
# Prompts that are read together: the longest at most twice the shortest, give or take a little.
_ALIKE_FACTOR, _ALIKE_TOKENS = 2, 64
# Groups that take turns on one lane: a new one waits for at most so many chunks.
_GROUPS = 4


@dataclass
class _Join:
    rows: list[Stream]
    steps: Pending
    pending: list[mx.array]  # the chunk to evaluate next


class Admission:
    """Rows on their way from the queue into the lanes.

    Args:
        lanes: where rows run.
        slots: where their experts are held.
        rows: prompts read together on one lane, at most.
        lane_bytes: what the keys and values of one lane's rows may take; one row always fits.
        token_bytes: keys and values of one token.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        slots: ExpertSlots,
        rows: int,
        lane_bytes: int,
        token_bytes: int,
    ) -> None:
        self._lanes = lanes
        self._slots = slots
        self._rows = rows
        self._lane_bytes = lane_bytes
        self._token_bytes = token_bytes
        # For each lane what joins it, what has the next turn first.
        self._joins: list[deque[_Join]] = [deque() for _ in lanes]

    @property
    def rows(self) -> list[Stream]:
        """Rows whose prompts are being read."""
        return [row for joins in self._joins for join in joins for row in join.rows]

    def start(self, waiting: deque[Stream]) -> None:
        """Take rows from the queue onto the lanes.

        A row that cannot start is told and leaves; one that has to wait stays at the head.  Others
        may append to the queue meanwhile.
        """
        shares: list[list[Stream]] = [[] for _ in self._lanes]
        for _ in range(len(waiting)):
            stream = waiting.popleft()
            if stream.cancelled:
                stream.finish()
                continue
            number = self._place(stream, shares)
            if number is None:
                waiting.appendleft(stream)
                break
            try:
                stream.slot = self._slots.acquire(stream.expert)
            except NoFreeSlot:
                waiting.appendleft(stream)
                break
            except Exception as error:
                log.warning("expert could not be loaded", exc_info=True)
                stream.finish(f"the expert could not be loaded: {error}")
                continue
            shares[number].append(stream)
        for lane, joins, rows in zip(self._lanes, self._joins, shares, strict=True):
            if rows:
                joins.append(_Join(rows, lane.admit(rows), []))

    def step(self) -> list[Stream]:
        """Read one chunk on every lane; returns rows that have joined or are over."""
        done: list[Stream] = []
        for number, joins in enumerate(self._joins):
            if joins and not joins[0].pending:
                done += self._resume(number)  # builds the first chunk
        turns = [number for number, joins in enumerate(self._joins) if joins and joins[0].pending]
        pending = [self._joins[number][0].pending for number in turns]
        try:
            mx.eval(pending)
            sound = turns
        except Exception:
            sound = [number for number in turns if self._evaluates(number, done)]
        for number in sound:
            joins = self._joins[number]
            current = joins[0]
            done += self._resume(number)
            if joins and joins[0] is current:
                joins.rotate(-1)
        return done

    def fail(self, message: str) -> None:
        """End every row that is on its way."""
        for row in self.rows:
            row.finish(message)
        for joins in self._joins:
            joins.clear()

    def _resume(self, number: int) -> list[Stream]:
        """Let the join whose turn it is build its next chunk; its rows if it is over."""
        join = self._joins[number][0]
        try:
            join.pending = next(join.steps, [])
        except Exception as error:
            return self._fail(number, error)
        if join.pending:
            return []
        return self._joins[number].popleft().rows

    def _place(self, stream: Stream, shares: list[list[Stream]]) -> int | None:
        """The emptiest lane that can take the row now."""
        held = [
            [*lane.rows, *(row for join in joins for row in join.rows), *share]
            for lane, joins, share in zip(self._lanes, self._joins, shares, strict=True)
        ]
        for number in sorted(range(len(held)), key=lambda n: len(held[n])):
            share, together = shares[number], [*held[number], stream]
            longest = max(len(row.prompt) + row.sampling.max_tokens for row in together)
            fits = len(together) * longest * self._token_bytes <= self._lane_bytes
            turn = bool(share) or len(self._joins[number]) < _GROUPS
            alike = len(share) < self._rows and _alike(share, stream)
            if turn and alike and (fits or len(together) == 1):
                return number
        return None

    def _evaluates(self, number: int, done: list[Stream]) -> bool:
        """Whether a lane's chunk can be computed; what breaks it breaks only its own rows."""
        try:
            mx.eval(self._joins[number][0].pending)
        except Exception as error:
            done += self._fail(number, error)
            return False
        return True

    def _fail(self, number: int, error: Exception) -> list[Stream]:
        log.error("a prefill failed", exc_info=error)
        rows = self._joins[number].popleft().rows
        for row in rows:
            row.finish(f"the prompt could not be processed: {error}")
        return rows


def _alike(share: Sequence[Stream], stream: Stream) -> bool:
    lengths = [len(row.prompt) for row in (*share, stream)]
    return max(lengths) <= _ALIKE_FACTOR * min(lengths) + _ALIKE_TOKENS
