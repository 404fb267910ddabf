"""Which waiting rows start, on which lane, and how their prompts are read: a chunk a step.

Rows start in the order they came, as long as the keys and values of all that are under way stay
within a budget of bytes, whatever they may still generate included.  Rows that are read together
have prompts of about the same length, since a batch is as wide as its longest row, and one expert
where several wait for it: what their prompts share is then read once.  Several such groups take
turns on a lane, a chunk each, so that a short prompt does not wait for the end of a long one; and
between two chunks, rows that are already answering get their next token.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
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
# Prompts are read on all lanes, but rows answer on one until it has so many: a step streams all
# weights once for every lane that has rows.
_FULL = 64
# Groups that take turns on one lane: a new one waits for at most so many chunks.
_GROUPS = 4


@dataclass
class _Join:
    rows: list[Stream]
    home: Lane  # where they will answer
    steps: Pending
    pending: list[mx.array]  # the chunk to evaluate next


@dataclass
class _Group:
    """Rows that will be read together, on one lane."""

    lane: int
    expert: str | None
    mixed: bool  # whether its rows may have several experts
    rows: list[Stream]


class Admission:
    """Rows on their way from the queue into the lanes.

    Args:
        lanes: where rows run.
        slots: where their experts are held.
        rows: prompts read together on one lane, at most.
        total_bytes: what the keys and values of all rows may take; one row always fits.
        token_bytes: keys and values of one token.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        slots: ExpertSlots,
        rows: int,
        total_bytes: int,
        token_bytes: int,
    ) -> None:
        self._lanes = lanes
        self._slots = slots
        self._rows = rows
        self._total_bytes = total_bytes
        self._token_bytes = token_bytes
        # For each lane what joins it, what has the next turn first.
        self._joins: list[deque[_Join]] = [deque() for _ in lanes]

    @property
    def rows(self) -> list[Stream]:
        """Rows whose prompts are being read."""
        return [row for joins in self._joins for join in joins for row in join.rows]

    @property
    def lanes(self) -> int:
        """Lanes on which prompts are being read."""
        return sum(bool(joins) for joins in self._joins)

    def start(self, waiting: deque[Stream]) -> None:
        """Take rows from the queue onto the lanes.

        A row that cannot start is told and leaves; one that has to wait stays at the head.  Others
        may append to the queue meanwhile.
        """
        groups: list[_Group] = []
        crowd = Counter(stream.expert for stream in list(waiting))
        for _ in range(len(waiting)):
            stream = waiting.popleft()
            if stream.cancelled:
                stream.finish()
                continue
            group = self._place(stream, groups, alone=crowd[stream.expert] < 2)
            if group is None:
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
            if not group.rows:
                groups.append(group)
            group.rows.append(stream)
        for group in groups:
            home = self._home()
            steps = self._lanes[group.lane].admit(group.rows, home)
            self._joins[group.lane].append(_Join(group.rows, home, steps, []))

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

    def _place(self, stream: Stream, groups: list[_Group], *, alone: bool) -> _Group | None:
        """The group that the row starts with, an empty one if it begins it; ``None`` = not now."""
        open_ = [g for g in groups if len(g.rows) < self._rows and _alike(g.rows, stream)]
        own = [g for g in open_ if g.mixed == alone and (alone or g.expert == stream.expert)]
        reading = [sum(_tokens(join.rows) for join in joins) for joins in self._joins]
        begun = [len(joins) for joins in self._joins]
        for group in groups:
            reading[group.lane] += _tokens(group.rows)
            begun[group.lane] += 1
        fresh = [
            _Group(lane, stream.expert, alone, [])
            for lane in sorted(range(len(reading)), key=reading.__getitem__)
            if begun[lane] < _GROUPS
        ]
        held = sum(reading) + sum(lane.columns for lane in self._lanes)
        # Rather with its like, then in a group of its own, then with any.
        for group in [*own, *fresh, *open_]:
            after = held + _tokens([*group.rows, stream]) - _tokens(group.rows)
            if after * self._token_bytes <= self._total_bytes or not held:
                return group
        return None

    def _home(self) -> Lane:
        """Where the next group's rows will answer: the first lane until it is full."""
        joins = [join for joins in self._joins for join in joins]
        rows = [
            len(lane.rows) + sum(len(join.rows) for join in joins if join.home is lane)
            for lane in self._lanes
        ]
        return self._lanes[0 if rows[0] < _FULL else rows.index(min(rows))]

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


def _tokens(rows: Sequence[Stream]) -> int:
    """Columns of rows that are read together: all as many as the longest."""
    return len(rows) * max((len(row.prompt) + row.sampling.max_tokens for row in rows), default=0)


def _alike(share: Sequence[Stream], stream: Stream) -> bool:
    lengths = [len(row.prompt) for row in (*share, stream)]
    return max(lengths) <= _ALIKE_FACTOR * min(lengths) + _ALIKE_TOKENS
