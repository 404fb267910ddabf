"""A chat answer as it comes, in OpenAI's chunks.

Chunks of several choices come in the order in which they are made, each with its choice's index. A
tool call is one delta, once the call is complete.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence

from app.api import sse
from app.api.chat_answer import Answer, Spoken, checked, tool_call, usage
from app.api.errors import ApiError, error_event
from app.api.wire import Json
from app.engine.errors import EngineError
from app.engine.stream import Stream
from app.engine.tool_calls import Piece, Reading
from verifiers import ToolCall


async def chunks(answer: Answer, *, with_usage: bool) -> AsyncIterator[str]:
    """Events: the role, what is said as it comes, why it ended, and the usage if asked for."""
    extra: Json = {"usage": None} if with_usage else {}
    choices = [_Choice(answer, index) for index in range(len(answer.rows))]
    for choice in choices:
        yield _event(answer, choice.first(), extra)
    try:
        async for index, text in _merged(answer.rows):
            parts = choices[index].end() if text is None else choices[index].more(text)
            for part in parts:
                yield _event(answer, part, extra)
    except (ApiError, EngineError) as error:
        yield sse.event(json.dumps(error_event(error)))
        return
    if with_usage:
        tokens = usage([row.result() for row in answer.rows]).model_dump()
        yield sse.event(json.dumps(_frame(answer) | {"choices": [], "usage": tokens}))
    yield sse.event("[DONE]")


class _Choice:
    """What the client has been told of one choice."""

    def __init__(self, answer: Answer, index: int) -> None:
        self._answer = answer
        self._index = index
        self._row = answer.rows[index]
        form = answer.form
        self._reader = form.reader(answer.engine.tool_form) if form.tools else None
        self._spoken = None
        if self._row.sampling.logprobs is not None:
            self._spoken = Spoken(answer.engine, self._row)
        self._text = ""
        self._content = ""
        self._calls: list[ToolCall] = []

    def first(self) -> Json:
        """Who speaks."""
        return self._part({"role": "assistant", "content": "", "refusal": None})

    def more(self, text: str) -> Iterator[Json]:
        """What is certain with this text, which adds to what came before."""
        self._text += text
        yield from self._said([text] if self._reader is None else self._reader.push(text))

    def end(self) -> Iterator[Json]:
        """What was held back, and why the choice is over; raises ApiError if it broke off."""
        completion = self._row.result()
        if self._reader is not None:
            yield from self._said(self._reader.finish())
        reading = Reading(self._content, tuple(self._calls))
        reason = checked(self._answer, completion, reading)
        yield self._part({}, reason)

    def _said(self, pieces: Sequence[Piece]) -> Iterator[Json]:
        for piece in pieces:
            if isinstance(piece, str):
                self._content += piece
                yield self._part({"content": piece})
            else:
                call = tool_call(piece).model_dump() | {"index": len(self._calls)}
                self._calls.append(piece)
                yield self._part({"tool_calls": [call]})

    def _part(self, delta: Json, reason: str | None = None) -> Json:
        """A choice as a chunk has it, with the log-probabilities of what has come since."""
        logprobs: Json | None = None
        if self._spoken is not None and "role" not in delta:
            tokens = [token.model_dump() for token in self._spoken.tokens(self._text)]
            logprobs = {"content": tokens, "refusal": None}
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }


async def _merged(rows: Sequence[Stream]) -> AsyncIterator[tuple[int, str | None]]:
    """Text of several rows as it comes, each with its row's number; None where a row is over."""
    texts = [aiter(row) for row in rows]
    waiting = {asyncio.ensure_future(anext(one, None)): at for at, one in enumerate(texts)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index, text = waiting.pop(task), task.result()
                yield index, text
                if text is not None:
                    waiting[asyncio.ensure_future(anext(texts[index], None))] = index
    finally:
        for task in waiting:
            task.cancel()


def _event(answer: Answer, choice: Json, extra: Json) -> str:
    return sse.event(json.dumps(_frame(answer) | {"choices": [choice]} | extra))


def _frame(answer: Answer) -> Json:
    return {
        "id": answer.id,
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
        "system_fingerprint": answer.fingerprint,
    }
