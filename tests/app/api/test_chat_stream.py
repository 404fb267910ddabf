"""The chunks of rows that the test itself writes to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from app.answering import AnswerForm
from app.api.chat_answer import Answer
from app.api.chat_stream import chunks
from app.engine.errors import EngineRestarting
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.engine.text import RowText
from tests.app.serving import Service


def a_row(service: Service) -> Stream:
    sampling = Sampling(max_tokens=2)
    text = RowText(service.parts.engine.decode, sampling, frozenset({2}))
    return Stream(np.array([1], dtype=np.int32), sampling, None, text)


def told(service: Service, rows: list[Stream], *steps: Callable[[], None]) -> list[Any]:
    """What a client is told of rows when, after the opening chunks, a step is done per chunk."""
    answer = Answer(service.parts.engine, tuple(rows), AnswerForm(), threading.Event(), "m", "f")

    async def read() -> list[str]:
        events: list[str] = []
        left = list(steps)
        async for event in chunks(answer, with_usage=False):
            events.append(event.removeprefix("data: ").strip())
            if len(events) >= len(rows) and left:
                left.pop(0)()
        return events

    return [one if one == "[DONE]" else json.loads(one) for one in asyncio.run(read())]


def test_chunks_of_several_rows_come_in_the_order_in_which_they_are_made(service: Service) -> None:
    first, second = a_row(service), a_row(service)
    order = [
        (lambda: second.emit("b")),
        (lambda: first.emit("a")),
        (lambda: second.emit("d")),
        second.finish,
        first.finish,
    ]
    *events, done = told(service, [first, second], *order)
    assert done == "[DONE]"
    seen = [(c["index"], c["delta"].get("content"), c["finish_reason"])
            for event in events for c in event["choices"]]  # fmt: skip
    assert seen[2:] == [
        (1, "b", None),
        (0, "a", None),
        (1, "d", None),
        (1, None, "length"),
        (0, None, "length"),
    ]


def test_an_engine_that_is_restarted_breaks_a_stream_off_with_an_error(service: Service) -> None:
    row = a_row(service)
    lost = EngineRestarting("the engine is being restarted", retry_after_s=5)
    *_, text, last = told(service, [row], lambda: row.emit("a"), lambda: row.fail(lost))
    assert text["choices"][0]["delta"] == {"content": "a"}
    assert last["error"]["code"] == "restarting"
    assert last["error"]["message"] == "the engine is being restarted"
