"""Chat completions in OpenAI's shapes, whole or streamed.

The task's system prompt is put in front unless the request brings its own; its tools and its
response schema hold unless the request names some. A client that goes away takes its rows out of
the engine.
"""

from collections.abc import Sequence

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from app.api import chat_stream, sse
from app.api.bodies import JsonRoute
from app.api.chat_answer import Answer, whole
from app.api.chat_request import answer_form, submit
from app.api.chat_schemas import ChatCompletion, ChatCreate
from app.api.models import resolve
from app.engine.stream import Stream
from app.engine.text import Completion
from app.state import Parts, Running

router = APIRouter(prefix="/chat/completions", route_class=JsonRoute)


@router.post("", response_model=ChatCompletion)
async def create(request: Request, body: ChatCreate, parts: Running) -> Response:
    """Answers a conversation."""
    answer = await run_in_threadpool(_submit, parts, body)
    if body.stream:
        options = body.stream_options
        usage = options is not None and options.include_usage
        return sse.EventStream(chat_stream.chunks(answer, with_usage=usage), answer.cancel)
    try:
        completions = await _finished(request, answer.rows)
        # Checking an answer against its schema may take a while.
        finished = await run_in_threadpool(whole, answer, completions)
        return JSONResponse(finished.model_dump(mode="json"))
    finally:
        answer.cancel()


def _submit(parts: Parts, body: ChatCreate) -> Answer:
    """Starts the rows of a request."""
    answerer = resolve(parts, body.model)
    form = answer_form(body, answerer.task)
    return Answer(
        engine=parts.engine,
        rows=submit(parts, body, answerer.task, answerer.expert, form),
        form=form,
        stopping=parts.stopping,
        model=answerer.name,
        fingerprint=f"{parts.engine.info.base_hash[:12]}-{(answerer.expert or 'base')[:12]}",
    )


async def _finished(request: Request, rows: Sequence[Stream]) -> list[Completion]:
    """What the rows have said; they are cancelled when the client goes away before."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        for row in rows:
            row.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        for row in rows:
            async for _ in row:
                pass
        group.cancel_scope.cancel()
    return [row.result() for row in rows]
