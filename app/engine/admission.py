"""Which waiting rows start, on which lane, and how their prompts are read: a chunk a step.

Rows start in the order they came.  Those that start together on a lane have prompts of about the
same length, since a batch is as wide as its longest row; and a lane takes no more rows than their
keys and values may take bytes, whatever they may still generate included.  Between two chunks of a
long prompt, rows that are already answering get their next token.
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
        self._joins: dict[int, _Join] = {}  # lane number -> what joins it

    @property
    def rows(self) -> list[Stream]:
        """Rows whose prompts are being read."""
        return [row for join in self._joins.values() for row in join.rows]

    def start(self, waiting: deque[Stream]) -> None:
        """Take rows from the queue onto lanes that are not reading prompts.

        A row that cannot start is told and leaves; one that has to wait stays at the head.  Others
        may append to the queue meanwhile.
        """
        free = [number for number in range(len(self._lanes)) if number not in self._joins]
        shares: dict[int, list[Stream]] = {number: [] for number in free}
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
        for number, rows in shares.items():
            if rows:
                self._joins[number] = _Join(rows, self._lanes[number].admit(rows), [])

    def step(self) -> list[Stream]:
        """Read the next chunk on every lane; returns rows that have joined or are over."""
        done: list[Stream] = []
        for number in [n for n, join in self._joins.items() if not join.pending]:
            done += self._resume(number)  # builds the first chunk
        pending = {number: join.pending for number, join in self._joins.items()}
        try:
            mx.eval(list(pending.values()))
        except Exception:
            done += self._fail_those_of(pending)
        for number in list(self._joins):
            done += self._resume(number)
        return done

    def _resume(self, number: int) -> list[Stream]:
        """Let a join use what was evaluated and build the next chunk; its rows if it is over."""
        join = self._joins[number]
        try:
            join.pending = next(join.steps, [])
        except Exception as error:
            return self._fail(number, error)
        return [] if join.pending else self._joins.pop(number).rows

    def fail(self, message: str) -> list[Stream]:
        """End every row that is on its way; returns them."""
        rows = self.rows
        self._joins.clear()
        for row in rows:
            row.finish(message)
        return rows

    def _place(self, stream: Stream, shares: dict[int, list[Stream]]) -> int | None:
        """The emptiest lane that can take the row now."""
        for number in sorted(shares, key=lambda n: len(self._lanes[n].rows) + len(shares[n])):
            share = shares[number]
            together = [*self._lanes[number].rows, *share, stream]
            longest = max(len(row.prompt) + row.sampling.max_tokens for row in together)
            fits = len(together) * longest * self._token_bytes <= self._lane_bytes
            if len(share) < self._rows and _alike(share, stream) and (fits or len(together) == 1):
                return number
        return None

    def _fail_those_of(self, pending: dict[int, list[mx.array]]) -> list[Stream]:
        """What broke an evaluation of several lanes breaks only its own."""
        failed: list[Stream] = []
        for number, arrays in pending.items():
            try:
                mx.eval(arrays)
            except Exception as error:
                failed += self._fail(number, error)
        return failed

    def _fail(self, number: int, error: Exception) -> list[Stream]:
        log.error("a prefill failed", exc_info=error)
        rows = self._joins.pop(number).rows
        for row in rows:
            row.finish(f"the prompt could not be processed: {error}")
        return rows


def _alike(share: Sequence[Stream], stream: Stream) -> bool:
    lengths = [len(row.prompt) for row in (*share, stream)]
    return max(lengths) <= _ALIKE_FACTOR * min(lengths) + _ALIKE_TOKENS
