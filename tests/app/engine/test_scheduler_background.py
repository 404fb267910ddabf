"""Rollouts beside users' rows, and how an engine starts and ends.

Nothing here waits for time to pass: the engine's thread is held inside the loading of an expert
(``Library.hold``), or acts itself between two of its steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine.errors import EngineStopped  # isort: skip  (before MLX)
from app.engine.scheduler import Engine  # isort: skip  (before MLX)
from app.engine.stream import Stream  # isort: skip  (before MLX)
import numpy as np
import pytest

from app.engine import models
from app.engine.sampling import Sampling
from tests import tiny
from tests.app.engine import rigs
from tests.app.engine.library import GREEDY, Library, answers, started
from tests.app.serving import until

Families = Callable[[str], Path]


def test_rollouts_answer_as_users_rows_of_the_same_expert(engine: Engine, library: Library) -> None:
    prompts = rigs.prompts_of([13, 20, 9], shared=4)
    flat = np.stack([library.flat["a"], library.flat["b"]])
    lines = engine.generate(flat, prompts, GREEDY)
    assert lines == [answers(engine, prompts, *[name] * 3) for name in "ab"]
    assert engine.generate(None, prompts, GREEDY) == [answers(engine, prompts)]


def test_likelihood_is_that_of_stock_mlx_lm(engine: Engine, stocks: Callable[[str], Any]) -> None:
    prompts, references = rigs.prompts_of([13, 20]), rigs.prompts_of([2, 5], seed=1)
    base = np.zeros((1, engine.coordinates.total), np.float32)
    [got] = engine.likelihood(base, prompts, references, base[0])
    for value, prompt, reference in zip(got, prompts, references, strict=True):
        logits = rigs.logits_of(stocks("llama"), [*prompt, *reference]).astype(np.float64)
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        at = np.arange(len(prompt) - 1, len(prompt) + len(reference) - 1)
        assert abs(value - logp[at, reference].mean()) < 1e-3


class Log:
    """What the engine's thread does, step by step; may act after a chosen one."""

    def __init__(self, engine: Engine) -> None:
        self.steps: list[str] = []
        self.rollouts: list[Any] = []  # whose step each was
        self._engine = engine
        self.after_rollout_step: Callable[[int], None] = lambda number: None
        self._decode, self._advance = engine._worker._decode, engine._worker._advance
        engine._worker._decode, engine._worker._advance = self.decode, self.advance  # type: ignore[method-assign]

    def decode(self) -> None:
        self.steps.append("user")
        self._decode()

    def advance(self) -> None:
        self.steps.append("rollout")
        self.rollouts.append(self._engine._worker.inbox.background[0])
        self._advance()
        self.after_rollout_step(len(self.rollouts))


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

    log.after_rollout_step = arrive
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
    centre = library.flat["a"]
    expected = own.likelihood(centre[None], prompts, references, centre)
    results: dict[str, Any] = {}
    log = Log(own)

    def work(name: str, flat: rigs.FloatArray) -> None:
        results[name] = own.likelihood(flat, prompts, references, centre)

    with library.hold(own):
        threads = []
        for name, flat in (("many", np.tile(centre, (200, 1))), ("one", 0 * centre[None])):
            threads.append(threading.Thread(target=work, args=(name, flat)))
            threads[-1].start()
            until(lambda: own.health()["background"] == len(threads))
        many, one = own._worker.inbox.background
    for thread in threads:
        thread.join()
    first = log.rollouts.count(many)
    assert first > 2
    assert log.rollouts == [many] * first + [one] * (len(log.rollouts) - first)
    assert one in log.rollouts
    np.testing.assert_allclose(results["many"], np.tile(expected, (200, 1)), atol=1e-4)
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
    before = rigs.weight_bytes(own._worker._model.module)
    prompts = rigs.prompts_of([13, 20])
    flat = np.stack([library.flat["a"], library.flat["b"]])
    answers(own, prompts, "a", None)
    own.generate(flat, prompts, GREEDY)
    own.likelihood(flat, prompts, rigs.prompts_of([2, 5], seed=1), flat[0])
    assert rigs.weight_bytes(own._worker._model.module) == before


def test_closing_fails_what_runs_and_waits_and_refuses_what_comes(
    folder_of: Families, library: Library
) -> None:
    engine = Engine(folder_of("llama"), library)
    engine.start()
    prompts = rigs.prompts_of([13, 20])
    failures: list[BaseException] = []

    def roll() -> None:
        try:
            engine.generate(None, prompts, GREEDY)
        except EngineStopped as error:
            failures.append(error)

    rollout, closing = threading.Thread(target=roll), threading.Thread(target=engine.close)
    with library.hold(engine):  # so that both are admitted in one step
        running = engine.submit(prompts[0], Sampling(max_tokens=400))
        engine.submit(prompts[0], GREEDY, "hold")
    library.wait_held()
    waiting = engine.submit(prompts[1], GREEDY)
    rollout.start()
    until(lambda: engine.health()["background"] == 1)
    closing.start()
    until(lambda: engine.health()["status"] == "stopped")
    with pytest.raises(EngineStopped):
        engine.submit(prompts[0], GREEDY)
    with pytest.raises(EngineStopped):
        engine.likelihood(library.flat["a"][None], prompts, prompts, library.flat["a"])
    library.let_go()
    closing.join()
    rollout.join()
    for stream, tokens in ((running, 1), (waiting, 0)):
        completion = stream.result()
        assert completion.finish_reason == "error"
        assert completion.error == "the engine is shutting down"
        assert len(completion.tokens) == tokens
        assert "".join(stream) == completion.text
    assert len(failures) == 1
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
        assert "scales" in models.inner(engine._worker._model.module).layers[0].mlp.up_proj.linear
        completion = engine.submit(prompts[0], Sampling(max_tokens=1)).result()
        assert completion.error is None
        assert engine.basis_hash == library.basis.sha256
