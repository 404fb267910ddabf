"""Server-sent events: how one is written, and the response that carries them."""

from collections.abc import AsyncIterator, Callable

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

KEEP_ALIVE = ": keep-alive\n\n"


def event(data: str, *, id: int | None = None, type: str | None = None) -> str:
    """One event as text; `data` holds no line breaks (JSON never does)."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if type is None else [f"event: {type}"]
    return "\n".join([*lines, f"data: {data}"]) + "\n\n"


class EventStream(StreamingResponse):
    """A response of events. `close` is called at its end, however early the client goes away.

    The iterator alone could not see to that: it may be dropped before its first step.
    """

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None] | None = None) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._close is not None:
                self._close()
