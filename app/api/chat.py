"""Chat completions in OpenAI's shapes, whole or streamed.

The task's system prompt is put in front unless the request brings its own, and the task's tools
unless the request names some. A client that goes away takes its row out of the engine.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from app.api import sse
from app.api.chat_schemas import ChatChoice, ChatCompletion, ChatCreate, ChatMessage, Usage
from app.api.errors import ApiError, error_event
from app.api.models import Answerer, resolve
from app.api.wire import Json
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.engine.text import Completion
from app.night.data import conversation
from app.state import Parts, Running

router = APIRouter(prefix="/chat/completions")

DEFAULT_MAX_TOKENS = 512


@dataclass(frozen=True)
class Answer:
    """A row in the engine and what every part of its answer says about it."""

    stream: Stream
    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))


@router.post("", response_model=ChatCompletion)
async def create(request: Request, body: ChatCreate, parts: Running) -> Response:
    """Answers a conversation."""
    answer = await run_in_threadpool(_submit, parts, body)
    if body.stream:
        options = body.stream_options
        usage = options is not None and options.include_usage
        return sse.EventStream(_streamed(parts, answer, usage=usage), answer.stream.cancel)
    completion = await _whole(request, answer.stream)
    if completion.error is not None:
        raise ApiError(_failed(parts), completion.error, code="generation_failed")
    return JSONResponse(_public(answer, completion).model_dump(mode="json"))


def _submit(parts: Parts, body: ChatCreate) -> Answer:
    """Starts a row for the request."""
    answerer = resolve(parts, body.model)
    prompt = _encoded(parts, body, answerer)
    room = max(1, parts.engine.max_context - len(prompt))
    stream = parts.engine.submit(prompt, _sampling(body, room), answerer.expert)
    fingerprint = f"{parts.engine.info.base_hash[:12]}-{(answerer.expert or 'base')[:12]}"
    return Answer(stream, answerer.name, fingerprint)


def _encoded(parts: Parts, body: ChatCreate, answerer: Answerer) -> tuple[int, ...]:
    """The prompt's tokens."""
    task = answerer.task
    messages = conversation(
        [message.plain() for message in body.messages], task.system_prompt if task else ""
    )
    tools: list[Json] | None = task.tools if task else None
    if body.tools is not None:
        tools = [tool.plain() for tool in body.tools]
    if body.tool_choice == "none":
        tools = None
    try:
        return parts.engine.encode(messages, tools or None)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value", param="messages") from error


def _sampling(body: ChatCreate, room: int) -> Sampling:
    """How to decode; without a limit the answer may be long, but fits into the context."""
    limit = body.max_completion_tokens or body.max_tokens or min(DEFAULT_MAX_TOKENS, room)
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    return Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=seed,
        max_tokens=limit,
        stop=tuple(body.stop or ()),
    )


async def _whole(request: Request, stream: Stream) -> Completion:
    """The finished answer; the row is cancelled when the client goes away before."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        stream.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            async for _ in stream:
                pass
            group.cancel_scope.cancel()
        return stream.result()
    finally:
        stream.cancel()


async def _streamed(parts: Parts, answer: Answer, *, usage: bool) -> AsyncIterator[str]:
    """OpenAI's chunks: the role, the text as it comes, the reason it ended, the usage if asked."""
    stream = answer.stream
    extra: Json = {"usage": None} if usage else {}
    yield _chunk(answer, {"role": "assistant", "content": "", "refusal": None}, None, extra)
    async for text in stream:
        yield _chunk(answer, {"content": text}, None, extra)
    completion = stream.result()
    if completion.error is not None:
        event = error_event(_failed(parts), completion.error, code="generation_failed")
        yield sse.event(json.dumps(event))
        return
    yield _chunk(answer, {}, _reason(completion), extra)
    if usage:
        tokens = _usage(completion).model_dump()
        yield sse.event(json.dumps(_frame(answer) | {"choices": [], "usage": tokens}))
    yield sse.event("[DONE]")


def _failed(parts: Parts) -> int:
    """The status of a row that broke off: its own fault, or that of a service going down."""
    return 503 if parts.stopping.is_set() else 500


def _chunk(answer: Answer, delta: Json, reason: str | None, extra: Json) -> str:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return sse.event(json.dumps(_frame(answer) | {"choices": [choice]} | extra))


def _frame(answer: Answer) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
        "system_fingerprint": answer.fingerprint,
    }


def _public(answer: Answer, completion: Completion) -> ChatCompletion:
    choice = ChatChoice(
        message=ChatMessage(content=completion.text), finish_reason=_reason(completion)
    )
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[choice],
        usage=_usage(completion),
        system_fingerprint=answer.fingerprint,
    )


def _reason(completion: Completion) -> Any:
    """OpenAI's word; a cancelled row has nobody left to read it, and was cut short."""
    return "stop" if completion.finish_reason == "stop" else "length"


def _usage(completion: Completion) -> Usage:
    answered = len(completion.tokens)
    return Usage(
        prompt_tokens=completion.prompt_tokens,
        completion_tokens=answered,
        total_tokens=completion.prompt_tokens + answered,
    )
