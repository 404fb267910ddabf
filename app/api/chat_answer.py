"""The rows of a chat request, and what they say in OpenAI's shapes."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from app.answering import AnswerForm
from app.api.chat_schemas import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatToolCall,
    ChoiceLogprobs,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from app.api.errors import ApiError
from app.engine.scheduler import Engine
from app.engine.stream import Stream
from app.engine.text import Completion
from app.engine.text import TokenLogprob as EngineLogprob
from app.engine.tool_calls import Reading
from verifiers import ToolCall

Reason = Literal["stop", "length", "tool_calls"]
_LEAST_LOGPROB = -9999.0
"""What OpenAI writes for a token that is out of the question: JSON has no infinity."""


@dataclass(frozen=True)
class Answer:
    """Rows in the engine, one for each choice, and what every part of the answer says of them."""

    engine: Engine
    rows: tuple[Stream, ...]
    form: AnswerForm
    stopping: threading.Event
    model: str
    fingerprint: str
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def cancel(self) -> None:
        """Takes all rows out of the engine."""
        for row in self.rows:
            row.cancel()


def whole(answer: Answer, completions: Sequence[Completion]) -> ChatCompletion:
    """The finished answer; raises ApiError where it is not what it has to be."""
    return ChatCompletion(
        id=answer.id,
        created=answer.created,
        model=answer.model,
        choices=[
            _choice(answer, index, completion) for index, completion in enumerate(completions)
        ],
        usage=usage(completions),
        system_fingerprint=answer.fingerprint,
    )


def checked(answer: Answer, completion: Completion, reading: Reading) -> Reason:
    """Why an answer ended; raises ApiError for one that broke off, or is not as asked.

    One that a limit or the client's own stop string may have cut short is not claimed to be.
    """
    if completion.error is not None:
        if answer.stopping.is_set():
            raise ApiError(503, completion.error, code="stopping")
        raise ApiError(500, completion.error, code="generation_failed")
    if completion.finish_reason != "stop":
        # A cancelled row has nobody left to read it, and was cut short as well.
        return "length"
    fault = answer.form.fault(reading)
    if fault is not None and not answer.rows[0].sampling.stop:
        raise ApiError(500, fault, code="generation_failed")
    return "tool_calls" if reading.calls else "stop"


def usage(completions: Sequence[Completion]) -> Usage:
    """Tokens of a request: the prompt counts once, whatever number of choices it has."""
    prompt = completions[0].prompt_tokens
    answered = sum(len(completion.tokens) for completion in completions)
    return Usage(prompt_tokens=prompt, completion_tokens=answered, total_tokens=prompt + answered)


def tool_call(call: ToolCall) -> ChatToolCall:
    """A call with an id of its own."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return ChatToolCall(
        id=f"call_{secrets.token_hex(12)}",
        function=CalledFunction(name=call.name, arguments=arguments),
    )


class Spoken:
    """Which tokens of a row are part of its text, and how likely they were, as it arrives.

    The end-of-text token is none of them, and neither is what a stop string cut off.
    """

    def __init__(self, engine: Engine, row: Stream) -> None:
        self._engine = engine
        self._row = row
        self._next = 0  # the first token that was not looked at
        self._bytes = 0  # of those before it

    def tokens(self, text: str) -> list[TokenLogprob]:
        """Those that have come since, up to the end of the text so far."""
        end = len(text.encode())
        found: list[TokenLogprob] = []
        # The engine's thread adds to the list meanwhile, and changes nothing that is in it.
        for logprob in self._row.text.logprobs[self._next :]:
            if self._row.sampling.stop and self._bytes >= end:
                break
            self._next += 1
            if self._engine.decode([logprob.token]):
                found.append(self._public(logprob))
                self._bytes += len(self._engine.token_bytes(logprob.token))
        return found

    def _public(self, logprob: EngineLogprob) -> TokenLogprob:
        chosen = self._top(logprob.token, logprob.logprob)
        top = [self._top(token, value) for token, value in logprob.top]
        return TokenLogprob(**chosen.model_dump(), top_logprobs=top)

    def _top(self, token: int, logprob: float) -> TopLogprob:
        raw = self._engine.token_bytes(token)
        return TopLogprob(
            token=raw.decode("utf-8", "replace"),
            bytes=list(raw),
            logprob=max(logprob, _LEAST_LOGPROB),
        )


def _choice(answer: Answer, index: int, completion: Completion) -> ChatChoice:
    reading = answer.form.read(answer.engine.tool_form, completion.text)
    reason = checked(answer, completion, reading)
    calls = [tool_call(call) for call in reading.calls]
    message = ChatMessage(
        content=reading.content if reading.content or not calls else None, tool_calls=calls or None
    )
    logprobs = None
    if completion.logprobs is not None:
        tokens = Spoken(answer.engine, answer.rows[index]).tokens(completion.text)
        logprobs = ChoiceLogprobs(content=tokens)
    return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=reason)
