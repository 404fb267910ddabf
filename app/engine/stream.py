"""One user's row: what the engine thread writes and any other thread reads."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from typing import Any

from app.engine.batch import Tokens
from app.engine.errors import EngineError, EngineRestarting
from app.engine.sampling import Sampling
from app.engine.text import Completion, RowText

_END = object()


class Stream:
    """One user's row: its text as it arrives, then its result.

    Iterate it (``for`` or ``async for``, once) or ask for ``result``.
    """

    def __init__(
        self, prompt: Tokens, sampling: Sampling, expert: str | None, text: RowText
    ) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.expert = expert
        self.slot = 0
        self.text = text
        self._deltas: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._future: Future[Completion] = Future()
        self._cancel = threading.Event()
        self._wake: Callable[[], object] | None = None
        self._over: Callable[[Stream], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Nobody waits for it any more."""
        return self._cancel.is_set()

    @property
    def over(self) -> bool:
        """Whether there is a result."""
        return self._future.done()

    def cancel(self) -> None:
        """Stop generating; the result keeps the text so far."""
        self._cancel.set()

    def emit(self, delta: str) -> None:
        """Called by the engine thread with new text; dropped once the row is over."""
        if delta and not self._future.done():
            self._put(delta)

    def finish(self, error: str | None = None) -> None:
        """Called by the engine thread when the row is over; the first call decides."""
        try:
            self._future.set_result(self.text.completion(len(self.prompt), error))
        except InvalidStateError:
            return
        self._end()

    def fail(self, reason: EngineError) -> None:
        """The engine gives the row up, from whichever thread; a row that is over stays as it is."""
        if not isinstance(reason, EngineRestarting):
            self.finish(str(reason))
            return
        self.cancel()  # a thread that was cut off shall not go on with it
        try:
            self._future.set_exception(reason)
        except InvalidStateError:
            return
        self._end()

    def when_over(self, call: Callable[[Stream], None]) -> None:
        """Have ``call`` called once the row is over, from the thread that ends it.

        To be said before the row is handed to the engine.
        """
        self._over = call

    def result(self, timeout_s: float | None = None) -> Completion:
        """Block until the row is over.

        Raises ``EngineRestarting`` for a row that was lost with the engine thread that ran it, and
        ``TimeoutError``.
        """
        return self._future.result(timeout_s)

    def __iter__(self) -> Iterator[str]:
        while (delta := self._deltas.get()) is not _END:
            yield delta

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(ready.set)
        try:
            while True:
                while not self._deltas.empty():
                    delta = self._deltas.get()
                    if delta is _END:
                        return
                    yield delta
                await ready.wait()
                ready.clear()
        finally:
            # The loop may be gone before the row is: waking it would raise in the engine thread.
            self._wake = None

    def _end(self) -> None:
        self._put(_END)
        over, self._over = self._over, None
        if over is not None:
            over(self)

    def _put(self, delta: Any) -> None:
        self._deltas.put(delta)
        wake = self._wake  # read once: the reader's thread may clear it meanwhile
        if wake is None:
            return
        try:
            wake()
        except RuntimeError:  # the reader's event loop is closed: nobody waits for this row
            self._wake = None
            self.cancel()
