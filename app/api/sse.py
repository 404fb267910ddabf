"""Server-sent events: how one is written, and the response that carries them."""

from collections.abc import AsyncIterator

from fastapi.responses import StreamingResponse

KEEP_ALIVE = ": keep-alive\n\n"


def event(data: str, *, id: int | None = None, type: str | None = None) -> str:
    """One event as text; `data` holds no line breaks (JSON never does)."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if type is None else [f"event: {type}"]
    return "\n".join([*lines, f"data: {data}"]) + "\n\n"


def response(events: AsyncIterator[str]) -> StreamingResponse:
    """A stream of events; the iterator is cancelled when the client goes away."""
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )
