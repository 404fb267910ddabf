"""From a chat request to the engine's rows: the prompt, how to decode, the form of the answer."""

from __future__ import annotations

import secrets

import numpy as np

from app.answering import AnswerForm, FormError
from app.api.chat_schemas import ChatCreate, NamedTool, ObjectFormat, SchemaFormat
from app.api.errors import ApiError
from app.api.wire import Json
from app.engine.grammar import Grammar
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.night.data import conversation
from app.state import Parts
from storage.tables import Task

DEFAULT_MAX_TOKENS = 512


def submit(
    parts: Parts, body: ChatCreate, task: Task | None, expert: str | None, form: AnswerForm
) -> tuple[Stream, ...]:
    """Starts a row for each choice asked for; all of them or, where one is refused, none."""
    prompt = _encoded(parts, body, task)
    room = max(1, parts.engine.max_context - len(prompt))
    grammar = _compiled(parts, body, form)
    seed = secrets.randbits(63) if body.seed is None else body.seed % 2**64
    rows: list[Stream] = []
    try:
        for index in range(body.n or 1):
            sampling = _sampling(body, room, choice_seed(seed, index), grammar)
            rows.append(parts.engine.submit(prompt, sampling, expert))
    except Exception:
        for row in rows:
            row.cancel()
        raise
    return tuple(rows)


def answer_form(body: ChatCreate, task: Task | None) -> AnswerForm:
    """What the answer has to be; where the request says nothing, what the task says."""
    tools, choice = _offered(body, task), body.tool_choice
    if isinstance(choice, NamedTool):
        tools = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    forced = isinstance(choice, NamedTool) or choice == "required"
    if forced and not tools:
        raise ApiError(
            400,
            "tool_choice: there is no such tool to call",
            code="invalid_value",
            param="tool_choice",
        )
    return AnswerForm(
        schema=_schema(body, task),
        tools=tuple(tools),
        required=forced,
        several=body.parallel_tool_calls is not False and not isinstance(choice, NamedTool),
    )


def choice_seed(seed: int, index: int) -> int:
    """Key of the random stream of a choice: the first one's is the request's own."""
    if index == 0:
        return seed
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def _offered(body: ChatCreate, task: Task | None) -> list[Json]:
    """The tools that the model is shown: the request's, else the task's."""
    if body.tool_choice == "none":
        return []
    if body.tools is not None:
        return [tool.plain() for tool in body.tools]
    return list(task.tools or []) if task else []


def _schema(body: ChatCreate, task: Task | None) -> Json | None:
    match body.response_format:
        case None:
            return task.response_schema if task else None
        case ObjectFormat():
            return {"type": "object"}
        case SchemaFormat(json_schema=named):
            return named.body
    return None


def _encoded(parts: Parts, body: ChatCreate, task: Task | None) -> tuple[int, ...]:
    """The prompt's tokens."""
    messages = conversation(
        [message.plain() for message in body.messages], task.system_prompt if task else ""
    )
    try:
        return parts.engine.encode(messages, _offered(body, task) or None)
    except ValueError as error:
        raise ApiError(400, str(error), code="invalid_value", param="messages") from error


def _compiled(parts: Parts, body: ChatCreate, form: AnswerForm) -> Grammar | None:
    """The grammar of the answer; raises ApiError."""
    try:
        return form.checked_grammar(parts.engine)
    except FormError as error:
        of_request = isinstance(body.response_format, SchemaFormat)
        schema = "response_format.json_schema.schema" if of_request else None
        param = "tools" if error.part == "tools" else schema
        message = f"{param}: {error}" if param else f"the task's response_schema: {error}"
        raise ApiError(400, message, code="invalid_schema", param=param) from error


def _sampling(body: ChatCreate, room: int, seed: int, grammar: Grammar | None) -> Sampling:
    """How to decode; without a limit the answer may be long, but fits into the context."""
    limit = body.max_completion_tokens or body.max_tokens or min(DEFAULT_MAX_TOKENS, room)
    return Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=seed,
        max_tokens=limit,
        stop=tuple(body.stop or ()),
        grammar=grammar,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
