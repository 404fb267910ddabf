"""What any thread hands to the engine thread.

Each engine thread has an inbox of its own.  Closing it is how the thread is told to end, and how a
thread that no longer gets on is cut off: what was handed over is told, and whatever the thread may
still do meets nobody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from app.engine.errors import EngineBusy, EngineError, WorkDropped
from app.engine.stream import Stream

Steps = Generator[None, None, Any]


@dataclass(eq=False)
class Background:
    """A rollout: a generator that gives the engine thread back after every step."""

    steps: Steps
    future: Future[Any] = field(default_factory=Future)


@dataclass(frozen=True)
class Errands:
    """Small things to do between two steps.

    Attributes:
        forget: experts that were deleted.
        dropped: background work that nobody waits for any more.
        tidy: whether memory that is not in use shall be given back.
    """

    forget: frozenset[str]
    dropped: tuple[Background, ...]
    tidy: bool


class Inbox:
    """Rows, background work and errands for one engine thread.

    Args:
        limit: rows that may wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._closed: EngineError | None = None
        self._rows: set[Stream] = set()  # waiting and running
        self._forget: set[str] = set()
        self._dropped: list[Background] = []
        self._tidy = False
        self.waiting: deque[Stream] = deque()
        self.background: deque[Background] = deque()

    # -- called from any thread ---------------------------------------------------------------

    @property
    def closed(self) -> EngineError | None:
        """Why nothing is taken any more, ``None`` while it is."""
        return self._closed

    def put(self, stream: Stream) -> None:
        """Queue a row. Raises ``EngineBusy``, and why the inbox is closed."""
        with self._changed:
            self._check_open()
            # The engine thread takes cancelled ones out, but only after the step under way.
            waiting = sum(not row.cancelled for row in list(self.waiting))
            if waiting >= self._limit:
                raise EngineBusy(f"{self._limit} requests are waiting already: try again")
            stream.when_over(self._gone)
            self._rows.add(stream)
            self.waiting.append(stream)
            self._changed.notify_all()

    def run(self, steps: Steps) -> Future[Any]:
        """Queue background work. Raises why the inbox is closed."""
        work = Background(steps)
        with self._changed:
            self._check_open()
            self.background.append(work)
            self._changed.notify_all()
        return work.future

    def forget(self, expert: str) -> None:
        """Have what is held of an expert freed."""
        with self._changed:
            self._forget.add(expert)
            self._changed.notify_all()

    def tidy(self) -> None:
        """Have memory that is not in use given back."""
        with self._changed:
            self._tidy = True
            self._changed.notify_all()

    def stand_down(self) -> None:
        """Drop the background work, and have the memory it took given back."""
        with self._changed:
            dropped, self.background = list(self.background), deque()
            self._dropped += dropped
            self._tidy = True
            self._changed.notify_all()
        for work in dropped:
            work.future.set_exception(WorkDropped("training was told to make room"))

    def dismiss(self, reason: EngineError) -> None:
        """End all rows now, for a reason; the thread is rid of them after the step under way."""
        with self._changed:
            rows = list(self._rows)
        for row in rows:
            row.cancel()
            row.fail(reason)

    def close(self, reason: EngineError) -> None:
        """Take nothing more: the thread ends after the step under way. The first reason stays."""
        with self._changed:
            self._closed = self._closed or reason
            self._changed.notify_all()

    def fail(self) -> None:
        """Tell whoever still waits for something why a closed inbox was closed."""
        with self._changed:
            assert self._closed is not None
            reason, rows = self._closed, list(self._rows)
            background, self.background = list(self.background), deque()
            self.waiting = deque()
        for row in rows:
            row.fail(reason)
        for work in background:
            work.future.set_exception(reason)

    # -- called from the engine thread ----------------------------------------------------------

    def wait(self, busy: Callable[[], bool], rest_s: Callable[[], float]) -> bool:
        """Sleep until there is something to do; False once closed.

        ``busy``: whether rows are under way. ``rest_s``: how long background work has to wait.
        """
        with self._changed:
            while self._closed is None:
                if self.waiting or self._forget or self._dropped or self._tidy or busy():
                    return True
                rest = rest_s() if self.background else None
                if rest is not None and rest <= 0:
                    return True
                self._changed.wait(rest)
            return False

    def errands(self) -> Errands:
        """What is to be done before the next step."""
        with self._changed:
            errands = Errands(frozenset(self._forget), tuple(self._dropped), self._tidy)
            self._forget, self._dropped, self._tidy = set(), [], False
            return errands

    def head(self) -> Background | None:
        """The background work whose turn it is."""
        with self._changed:
            return self.background[0] if self.background else None

    def settle(self, work: Background, result: Any, error: Exception | None = None) -> None:
        """Background work is over; one that was dropped meanwhile has been told already."""
        with self._changed:
            if work not in self.background:
                return
            self.background.remove(work)
        if error is None:
            work.future.set_result(result)
        else:
            work.future.set_exception(error)

    def _check_open(self) -> None:
        if self._closed is not None:
            # Always the same object: without this its traceback would grow with every request.
            raise self._closed.with_traceback(None)

    def _gone(self, stream: Stream) -> None:
        with self._changed:
            self._rows.discard(stream)
