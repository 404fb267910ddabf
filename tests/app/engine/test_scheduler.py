"""The engine as the service sees it: users' rows and rollouts, on a thread of its own.

Nothing here waits for time to pass. Where the order of things matters the engine's thread is held
inside the loading of an expert (``Library.hold``), or acts itself between two of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.engine.scheduler import Engine  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from app.engine.errors import ContextOverflow, EngineBusy
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.engine.text import Completion
from tests import tiny
from tests.app.engine import rigs
from tests.app.engine.library import GREEDY, Library, answers, started

Families = Callable[[str], Path]


def stock_greedy(module: Any, prompt: rigs.Tokens, count: int, eos: frozenset[int]) -> list[int]:
    """What mlx-lm's own generation says."""
    tokens = []
    for token, _ in generate_step(mx.array(prompt), module, max_tokens=count):
        tokens.append(int(token))
        if tokens[-1] in eos:
            break
    return tokens


# -- what rows say --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_batch_of_the_base_says_what_stock_mlx_lm_says(
    family: str, folder_of: Families, stocks: Callable[[str], Any], library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20, 9, 31, 2])
    module = stocks(family)
    with started(folder_of(family), library) as engine:
        together = answers(engine, prompts)
        alone = [engine.submit(p, GREEDY).result() for p in prompts]
        eos = engine._worker._runtime.eos
    for prompt, one, many in zip(prompts, alone, together, strict=True):
        expected = stock_greedy(module, prompt, GREEDY.max_tokens, eos)
        for completion in (one, many):
            rigs.assert_same_tokens(
                completion.tokens, expected, lambda t: rigs.logits_of(module, t), prompt
            )
            assert completion.prompt_tokens == len(prompt)


def test_a_batch_of_experts_says_what_each_edited_model_says(
    engine: Engine, library: Library, folder_of: Families
) -> None:
    prompts = rigs.prompts_of([13, 20, 9, 31, 2, 15])
    names = ["a", None, "b", "a", "b", None]
    completions = answers(engine, prompts, *names)
    for name in ("a", "b", None):
        flat = library.flat[name] if name else np.zeros_like(library.flat["a"])
        module = rigs.edited(folder_of("llama"), library.basis, flat)

        def logits(tokens: list[int], module: Any = module) -> rigs.FloatArray:
            return rigs.logits_of(module, tokens)

        for index in (i for i, n in enumerate(names) if n == name):
            expected = rigs.greedy_of(logits, prompts[index], 6, engine._worker._runtime.eos)
            got = completions[index].tokens
            rigs.assert_same_tokens(got, expected, logits, prompts[index])


def test_a_chat_is_encoded_by_the_models_template_and_answered_in_text(engine: Engine) -> None:
    prompt = engine.encode([{"role": "user", "content": "turn on the light"}])
    text = engine._worker._model.tokenizer.decode(list(prompt))
    assert text == "<|im_start|>user\nturn on the light<|im_end|>\n<|im_start|>assistant\n"
    stream = engine.submit(prompt, GREEDY)
    deltas = list(stream)
    completion = stream.result()
    assert "".join(deltas) == completion.text == engine.decode(completion.tokens)


def test_plain_text_is_encoded_with_or_without_its_end(engine: Engine) -> None:
    plain = engine.encode_text("turn on é")
    assert engine.decode(plain) == "turn on é"
    assert engine.encode_text("turn on é", end=True) == (*plain, 2)
    assert engine.encode_text("", end=True) == (2,)


def test_messages_that_the_template_refuses_are_a_value_error(engine: Engine) -> None:
    with pytest.raises(ValueError, match="refuses these messages"):
        engine.encode([{"content": 5, "role": {}}, "no message"])  # type: ignore[list-item]


def test_a_stop_string_ends_a_row_and_is_not_shown(engine: Engine) -> None:
    prompt = rigs.prompts_of([13])[0]
    warm = Sampling(temperature=4, seed=3, max_tokens=24)
    whole = engine.submit(prompt, warm).result()
    stop = whole.text[8:11]
    before = whole.text.index(stop)
    assert before > 3
    stream = engine.submit(prompt, replace(warm, stop=("never", stop)))
    deltas = list(stream)
    completion = stream.result()
    assert completion.finish_reason == "stop"
    assert completion.text == "".join(deltas) == whole.text[:before]
    assert completion.tokens == whole.tokens[: len(completion.tokens)]
    assert len(completion.tokens) < 24


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_row_has_no_more_tokens_than_its_limit(limit: int, engine: Engine) -> None:
    completion = engine.submit(rigs.prompts_of([13])[0], Sampling(max_tokens=limit)).result()
    assert len(completion.tokens) == limit
    assert completion.finish_reason == "length"


def test_a_seeded_row_says_the_same_in_any_company(engine: Engine, library: Library) -> None:
    prompt, *others = rigs.prompts_of([13, 20, 9, 8])
    warm = Sampling(temperature=3, seed=4, max_tokens=8)
    alone = engine.submit(prompt, warm, "a").result()
    with library.hold(engine):
        company = [engine.submit(p, Sampling(temperature=1, seed=4), "b") for p in others]
        again = engine.submit(prompt, warm, "a")
        other = engine.submit(prompt, Sampling(temperature=3, seed=5, max_tokens=8), "a")
    assert again.result() == alone
    assert other.result().tokens != alone.tokens
    for stream in company:
        stream.cancel()


# -- rows that come, go and fail ------------------------------------------------------------------


def test_a_cancelled_row_ends_with_the_text_it_has_and_others_go_on(
    engine: Engine, library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20])
    expected = engine.submit(prompts[1], GREEDY).result()
    with library.hold(engine):
        stream = engine.submit(prompts[0], Sampling(max_tokens=400))
        emit = stream.emit

        def emit_and_leave(delta: str) -> None:
            emit(delta)
            if delta:
                stream.cancel()

        stream.emit = emit_and_leave  # type: ignore[method-assign]
        other = engine.submit(prompts[1], GREEDY)
    deltas = list(stream)
    completion = stream.result()
    assert completion.finish_reason == "cancelled"
    assert completion.text == "".join(deltas) != ""
    assert len(completion.tokens) < 10
    assert other.result() == expected


def test_a_row_cancelled_while_it_waits_is_never_started(engine: Engine, library: Library) -> None:
    with library.hold(engine):
        stream = engine.submit(rigs.prompts_of([13])[0], GREEDY, "not loaded either")
        stream.cancel()
    assert stream.result() == Completion("", (), "cancelled", 13)
    assert list(stream) == []


def test_an_expert_that_cannot_be_loaded_fails_its_row_alone(
    engine: Engine, library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20, 9])
    expected = answers(engine, prompts, "a", None, "a")
    with library.hold(engine):
        streams = [
            engine.submit(p, GREEDY, e) for p, e in zip(prompts, ["a", "gone", None], strict=True)
        ]
    good, bad, base = (stream.result() for stream in streams)
    assert bad.finish_reason == "error"
    assert "version gone is not in the store" in (bad.error or "")
    assert good == expected[0]
    assert base == engine.submit(prompts[2], GREEDY).result()


def test_an_expert_that_is_no_number_fails_its_row_alone(engine: Engine) -> None:
    prompts = rigs.prompts_of([13, 20])
    [sound] = answers(engine, prompts[:1], "a")
    good, bad = answers(engine, prompts, "a", "broken")
    assert good == sound
    assert (bad.finish_reason, bad.text) == ("error", "")
    assert "not finite" in (bad.error or "")


def test_a_prefill_that_breaks_fails_its_rows_and_the_engine_goes_on(own: Engine) -> None:
    prompt = rigs.prompts_of([13])[0]
    expected = own.submit(prompt, GREEDY).result()
    for lane in own._worker._lanes:
        lane._placed = no_memory  # type: ignore[method-assign]
    failed = own.submit(prompt, GREEDY, "a").result()
    assert failed.finish_reason == "error"
    assert "no memory" in (failed.error or "")
    for lane in own._worker._lanes:
        del lane._placed
    assert own.submit(prompt, GREEDY).result() == expected
    assert own.submit(prompt, GREEDY, "b").result().error is None  # its slot was given back


def no_memory(*_: object) -> Any:
    raise RuntimeError("no memory")


def test_more_experts_than_slots_take_turns(own: Engine, library: Library) -> None:
    """One slot: the second expert waits until the first is idle, the base never waits."""
    prompts = rigs.prompts_of([13, 20, 9, 15])
    with library.hold(own):
        streams = [
            own.submit(p, GREEDY, e) for p, e in zip(prompts[:3], ["a", "b", None], strict=True)
        ]
    completions = [stream.result() for stream in streams]
    assert [completion.error for completion in completions] == [None] * 3
    for prompt, name, completion in zip(prompts, ["a", "b", None], completions, strict=False):
        assert own.submit(prompt, GREEDY, name).result() == completion


def test_an_expert_is_read_once_until_it_is_forgotten(
    folder_of: Families, library: Library
) -> None:
    library.read.clear()
    prompt = rigs.prompts_of([13])[0]
    with started(folder_of("llama"), library) as engine:
        first = [engine.submit(prompt, GREEDY, "a").result() for _ in range(3)]
        assert library.read == ["a"]
        assert engine.health()["last_swap_ms"] > 0
        engine.forget("a")
        engine.forget("never seen")
        again = engine.submit(prompt, GREEDY, "a").result()
    assert library.read == ["a", "a"]
    assert [*first, again] == [first[0]] * 4


def test_too_many_waiting_rows_are_refused(own: Engine, library: Library) -> None:
    prompt = rigs.prompts_of([5])[0]
    with library.hold(own):
        streams = [own.submit(prompt, GREEDY) for _ in range(3)]
        assert own.health()["waiting_rows"] == 3
        with pytest.raises(EngineBusy, match="3 requests are waiting"):
            own.submit(prompt, GREEDY)
    assert len({stream.result() for stream in streams}) == 1
    assert own.submit(prompt, GREEDY).result().error is None


def test_a_waiting_row_that_was_cancelled_leaves_its_place_at_once(
    own: Engine, library: Library
) -> None:
    prompt = rigs.prompts_of([5])[0]
    with library.hold(own):
        streams = [own.submit(prompt, GREEDY) for _ in range(3)]
        streams[1].cancel()
        streams.append(own.submit(prompt, GREEDY))
        with pytest.raises(EngineBusy):
            own.submit(prompt, GREEDY)
    assert [len(stream.result().tokens) > 0 for stream in streams] == [True, False, True, True]


def test_rows_that_are_dismissed_end_at_once_with_an_error_and_the_engine_goes_on(
    own: Engine, library: Library
) -> None:
    prompt = rigs.prompts_of([5])[0]
    with library.hold(own) as holding:
        streams = [own.submit(prompt, GREEDY) for _ in range(2)]
        own.dismiss()
        ended = [stream.result(timeout_s=60).error for stream in (holding, *streams)]
        assert ended == ["the service is shutting down"] * 3  # the thread stands still
    assert own.submit(prompt, GREEDY).result().error is None


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(engine: Engine) -> None:
    prompt = rigs.prompts_of([500])[0]
    assert engine.max_context == 512
    with pytest.raises(ContextOverflow, match="500 tokens and 13") as caught:
        engine.submit(prompt, Sampling(max_tokens=13))
    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.limit) == (500, 13, 512)
    with pytest.raises(ValueError, match="no tokens"):
        engine.submit([], GREEDY)


# -- asynchronous readers -------------------------------------------------------------------------


async def read(stream: Stream) -> str:
    return "".join([delta async for delta in stream])


def test_rows_can_be_read_by_an_event_loop(engine: Engine) -> None:
    prompts = rigs.prompts_of([13, 20, 9])

    async def all_of_them() -> list[str]:
        streams = [engine.submit(p, GREEDY) for p in prompts]
        return await asyncio.gather(*(read(stream) for stream in streams))

    texts = asyncio.run(all_of_them())
    assert texts == [completion.text for completion in answers(engine, prompts)]


def test_a_reader_whose_loop_has_ended_harms_nobody(engine: Engine, library: Library) -> None:
    prompt = rigs.prompts_of([13])[0]
    kept: list[Any] = []

    async def leave() -> Stream:
        stream = engine.submit(prompt, Sampling(max_tokens=400))
        reader = stream.__aiter__()
        await anext(reader)
        kept.append(reader)  # not closed: its loop is gone first
        return stream

    loop = asyncio.new_event_loop()
    stream = loop.run_until_complete(leave())
    loop.close()
    assert stream.result().finish_reason in ("cancelled", "length", "stop")
    assert engine.submit(prompt, GREEDY).result().error is None
    kept.clear()
