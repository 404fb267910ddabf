"""The engine as the service sees it: users' rows and rollouts, on a thread of its own.

Nothing here waits for time to pass. Where the order of things matters the engine's thread is held
inside the loading of an expert (``Library.hold``), or acts itself between two of its steps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.engine.scheduler import (  # isort: skip  (before MLX: it sets the platform up)
    ContextOverflow,
    Engine,
    EngineBusy,
    EngineConfig,
    EngineStopped,
    Stream,
)
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from app.engine import models
from app.engine.sampling import Sampling
from app.engine.text import Completion
from tests import tiny
from tests.app.engine import rigs
from trainers.spectral import Basis

GREEDY = Sampling(max_tokens=6)
Families = Callable[[str], Path]


class Library:
    """Experts by name. ``hold-*`` holds the engine's thread until the library lets it go."""

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.flat = {name: rigs.experts(basis, 1, seed)[0] for seed, name in enumerate("abc", 1)}
        self.flat["broken"] = np.full_like(self.flat["a"], np.inf)
        self.read: list[str] = []
        self._entered = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def __call__(self, name: str) -> dict[str, rigs.FloatArray]:
        self.read.append(name)
        if name.startswith("hold"):
            self._entered.release()
            self._go.acquire()
            return self.basis.coordinates.split(np.zeros_like(self.flat["a"]))
        if name not in self.flat:
            raise FileNotFoundError(f"version {name} is not in the store")
        return self.basis.coordinates.split(self.flat[name])

    @contextmanager
    def hold(self, engine: Engine, number: int = 0) -> Iterator[Stream]:
        """The engine's thread stands still, with the row it loads an expert for."""
        prompt = rigs.prompts_of([4])[0]
        stream = engine.submit(prompt, Sampling(max_tokens=1), f"hold-{number}")
        self._entered.acquire()
        try:
            yield stream
        finally:
            self._go.release()


@pytest.fixture(scope="module")
def library(runtimes: Callable[[str], tuple[Any, Basis]]) -> Library:
    return Library(runtimes("llama")[1])


@contextmanager
def started(folder: Path, library: Library, **config: Any) -> Iterator[Engine]:
    engine = Engine(folder, library, EngineConfig(**config))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def engine(folder_of: Families, library: Library) -> Iterator[Engine]:
    """An engine of the tiny llama, for tests that leave it as it was."""
    with started(folder_of("llama"), library) as running:
        yield running


@pytest.fixture
def own(folder_of: Families, library: Library) -> Iterator[Engine]:
    """An engine of the test's own, with one slot."""
    library.read.clear()
    with started(folder_of("llama"), library, slots=1, queue=3) as running:
        yield running


def stock_greedy(module: Any, prompt: rigs.Tokens, count: int, eos: frozenset[int]) -> list[int]:
    """What mlx-lm's own generation says."""
    tokens = []
    for token, _ in generate_step(mx.array(prompt), module, max_tokens=count):
        tokens.append(int(token))
        if tokens[-1] in eos:
            break
    return tokens


def answers(engine: Engine, prompts: list[rigs.Tokens], *experts: str | None) -> list[Completion]:
    """All rows submitted before the engine looks at the first, then their results."""
    named = experts or (None,) * len(prompts)
    streams = [engine.submit(p, GREEDY, e) for p, e in zip(prompts, named, strict=True)]
    return [stream.result() for stream in streams]


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
        eos = engine._runtime.eos
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
            expected = rigs.greedy_of(logits, prompts[index], 6, engine._runtime.eos)
            got = completions[index].tokens
            rigs.assert_same_tokens(got, expected, logits, prompts[index])


def test_a_chat_is_encoded_by_the_models_template_and_answered_in_text(engine: Engine) -> None:
    prompt = engine.encode([{"role": "user", "content": "turn on the light"}])
    text = engine._model.tokenizer.decode(list(prompt))
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
    stream = engine.submit(prompts[0], Sampling(max_tokens=400))
    deltas = iter(stream)
    first = next(deltas)
    with library.hold(engine, 1):
        assert not stream._future.done()
        stream.cancel()
        other = engine.submit(prompts[1], GREEDY)
    completion = stream.result()
    assert completion.finish_reason == "cancelled"
    assert first + "".join(deltas) == completion.text
    assert other.result() == expected


def test_a_row_cancelled_while_it_waits_is_never_started(engine: Engine, library: Library) -> None:
    with library.hold(engine, 2):
        stream = engine.submit(rigs.prompts_of([13])[0], GREEDY, "not loaded either")
        stream.cancel()
    assert stream.result() == Completion("", (), "cancelled", 13)
    assert list(stream) == []


def test_an_expert_that_cannot_be_loaded_fails_its_row_alone(
    engine: Engine, library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20, 9])
    expected = answers(engine, prompts, "a", None, "a")
    with library.hold(engine, 3):
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
    for lane in own._lanes:
        lane._prefill = no_memory  # type: ignore[method-assign]
    failed = own.submit(prompt, GREEDY, "a").result()
    assert failed.finish_reason == "error"
    assert "no memory" in (failed.error or "")
    for lane in own._lanes:
        del lane._prefill
    assert own.submit(prompt, GREEDY).result() == expected
    assert own.submit(prompt, GREEDY, "b").result().error is None  # its slot was given back


def no_memory(*_: object) -> Any:
    raise RuntimeError("no memory")


def test_an_engine_that_breaks_tells_everybody(
    folder_of: Families, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(folder_of("llama"), library)
    engine.start()
    engine._lanes[0].step = no_memory  # type: ignore[method-assign]
    streams = [engine.submit(p, GREEDY) for p in rigs.prompts_of([13, 20])]
    assert all("no memory" in (stream.result().error or "") for stream in streams)
    with pytest.raises(EngineStopped):
        engine.generate(None, rigs.prompts_of([5]), GREEDY)
    assert engine.health()["status"] == "stopped"
    assert "no memory" in caplog.text
    engine.close()


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


# -- background -----------------------------------------------------------------------------------


def test_rollouts_answer_as_users_rows_of_the_same_expert(engine: Engine, library: Library) -> None:
    prompts = rigs.prompts_of([13, 20, 9], shared=4)
    flat = np.stack([library.flat["a"], library.flat["b"]])
    lines = engine.generate(flat, prompts, GREEDY)
    assert lines == [answers(engine, prompts, *[name] * 3) for name in "ab"]
    assert engine.generate(None, prompts, GREEDY) == [answers(engine, prompts)]


def test_likelihood_is_that_of_stock_mlx_lm(engine: Engine, stocks: Callable[[str], Any]) -> None:
    prompts, references = rigs.prompts_of([13, 20]), rigs.prompts_of([2, 5], seed=1)
    [got] = engine.likelihood(None, prompts, references)
    for value, prompt, reference in zip(got, prompts, references, strict=True):
        logits = rigs.logits_of(stocks("llama"), [*prompt, *reference]).astype(np.float64)
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        at = np.arange(len(prompt) - 1, len(prompt) + len(reference) - 1)
        assert abs(value - logp[at, reference].mean()) < 1e-3


class Log:
    """What the engine's thread does, step by step; may act before a chosen one."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[str] = []
        self.before_rollout_step: Callable[[int], None] = lambda number: None
        self._rollout_steps = 0
        self._decode, self._advance = engine._decode, engine._advance
        engine._decode, engine._advance = self.decode, self.advance  # type: ignore[method-assign]

    def decode(self) -> None:
        self.steps.append("user")
        self._decode()

    def advance(self) -> None:
        self._rollout_steps += 1
        self.steps.append("rollout")
        self._advance()
        self.before_rollout_step(self._rollout_steps)


def test_a_users_row_overtakes_a_rollout_after_its_current_step(
    own: Engine, library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20, 9], shared=4)
    flat = np.stack([library.flat["a"], library.flat["b"]])
    undisturbed = own.generate(flat, prompts, Sampling(max_tokens=8))
    user_alone = own.submit(prompts[0], GREEDY, "c").result()
    log = Log(own)
    streams: list[Stream] = []

    def arrive(number: int) -> None:
        if number in (2, 4):
            streams.append(own.submit(prompts[0], GREEDY, "c"))

    log.before_rollout_step = arrive
    assert own.generate(flat, prompts, Sampling(max_tokens=8)) == undisturbed
    assert [stream.result() for stream in streams] == [user_alone] * 2
    one_row = ["user"] * (len(user_alone.tokens) - 1)  # the first token comes with the prefill
    rest = len(log.steps) - 4 - 2 * len(one_row)
    assert log.steps == [
        *["rollout"] * 2,
        *one_row,
        *["rollout"] * 2,
        *one_row,
        *["rollout"] * rest,
    ]
    assert rest > 2


def test_rollouts_take_turns_in_the_order_they_came(own: Engine, library: Library) -> None:
    prompts, references = rigs.prompts_of([13, 20]), rigs.prompts_of([2, 5], seed=1)
    expected = own.likelihood(library.flat["a"][None], prompts, references)
    results: dict[str, Any] = {}
    done: list[str] = []

    def work(name: str, flat: rigs.FloatArray) -> None:
        results[name] = own.likelihood(flat, prompts, references)
        done.append(name)

    with library.hold(own):
        threads = []
        for name, flat in (("many", np.tile(library.flat["a"], (9, 1))), ("one", None)):
            threads.append(threading.Thread(target=work, args=(name, flat)))
            threads[-1].start()
            while own.health()["background"] < len(threads):
                pass
    for thread in threads:
        thread.join()
    assert done[0] == "many"
    np.testing.assert_allclose(results["many"], np.tile(expected, (9, 1)), atol=1e-4)
    assert results["one"].shape == (1, 2)


def test_a_rollout_that_fails_fails_alone(engine: Engine, library: Library) -> None:
    prompts = rigs.prompts_of([13])
    with pytest.raises(ValueError, match="rollout needs"):
        engine.generate(None, [], GREEDY)
    flat = library.flat["a"][None]
    for wrong in (flat[:, :-1], np.pad(flat, [(0, 0), (0, 1)])):
        with pytest.raises(ValueError, match=f"expected {flat.size} coordinates"):
            engine.generate(wrong, prompts, GREEDY)
    assert engine.health()["background"] == 0
    assert engine.generate(None, prompts, GREEDY)[0][0].error is None


def test_serving_and_training_leave_every_byte_of_the_base_weights(
    own: Engine, library: Library
) -> None:
    before = rigs.weight_bytes(own._model.module)
    prompts = rigs.prompts_of([13, 20])
    flat = np.stack([library.flat["a"], library.flat["b"]])
    answers(own, prompts, "a", None)
    own.generate(flat, prompts, GREEDY)
    own.likelihood(flat, prompts, rigs.prompts_of([2, 5], seed=1))
    assert rigs.weight_bytes(own._model.module) == before


# -- start and end --------------------------------------------------------------------------------


def test_closing_fails_what_runs_and_waits_and_refuses_what_comes(
    folder_of: Families, library: Library
) -> None:
    engine = Engine(folder_of("llama"), library, EngineConfig())
    engine.start()
    prompts = rigs.prompts_of([13, 20])
    running = engine.submit(prompts[0], Sampling(max_tokens=400))
    first = next(iter(running))
    failures: list[BaseException] = []

    def roll() -> None:
        try:
            engine.generate(None, prompts, GREEDY)
        except EngineStopped as error:
            failures.append(error)

    rollout, closing = threading.Thread(target=roll), threading.Thread(target=engine.close)
    with library.hold(engine, 9):
        waiting = engine.submit(prompts[1], GREEDY)
        rollout.start()
        while engine.health()["background"] == 0:
            pass
        closing.start()
        while engine.health()["status"] == "ok":
            pass
        with pytest.raises(EngineStopped):
            engine.submit(prompts[0], GREEDY)
        with pytest.raises(EngineStopped):
            engine.likelihood(None, prompts, prompts)
    closing.join()
    rollout.join()
    for stream in (running, waiting):
        completion = stream.result()
        assert completion.finish_reason == "error"
        assert completion.error == "the engine is shutting down"
        assert list(stream) == [] or stream is running
    assert running.result().text.startswith(first)
    assert len(failures) == 1
    assert engine.health()["status"] == "stopped"
    engine.close()  # again: nothing to do


def test_a_model_that_cannot_be_loaded_is_said_at_the_start(
    tmp_path: Path, library: Library
) -> None:
    folder = tiny.build(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    engine = Engine(folder, library)
    with pytest.raises(models.ModelError, match=r"model\.safetensors"):
        engine.start()
    engine.close()


def test_health_tells_the_work(engine: Engine) -> None:
    before = engine.health()
    completion = engine.submit(rigs.prompts_of([13])[0], GREEDY).result()
    engine.generate(None, rigs.prompts_of([5]), Sampling(max_tokens=1))  # after the row's step
    after = engine.health()
    assert after["status"] == "ok"
    assert after["model"] == "llama"
    assert after["active_rows"] == after["waiting_rows"] == 0
    assert after["tokens_generated"] - before["tokens_generated"] == len(completion.tokens)
    assert after["last_step_s"] >= 0


def test_weights_that_do_not_fit_densely_stay_in_four_bits(
    folder_of: Families, library: Library, stocks: Callable[[str], Any]
) -> None:
    prompts = rigs.prompts_of([3])
    with started(folder_of("llama"), library, memory_bytes=1) as engine:
        assert "scales" in models.inner(engine._model.module).layers[0].mlp.up_proj.linear
        completion = engine.submit(prompts[0], Sampling(max_tokens=1)).result()
        assert completion.error is None
        assert engine.basis_hash == library.basis.sha256
