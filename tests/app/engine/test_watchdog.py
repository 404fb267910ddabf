"""An engine thread that dies or does not get on, and the one that takes its place.

The threads of these tests really die and really stand still; what is faked is only the time at
which the watchdog looks (``Watchdog.check``), so that nothing waits for a bound to pass.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.engine.errors import EngineFailed, EngineRestarting  # isort: skip  (before MLX)
from app.engine.scheduler import Care, Engine  # isort: skip  (before MLX)
import numpy as np
import pytest

from app.engine import worker as worker_module
from app.engine.sampling import Sampling
from tests.app.engine import rigs
from tests.app.engine.library import GREEDY, Library, answers, loading_held, started
from tests.app.serving import until

Families = Callable[[str], Path]
PROMPTS = rigs.prompts_of([13, 20])
LONG_S = 1000.0  # past every bound


@pytest.fixture
def own(folder_of: Families, library: Library) -> Iterator[Engine]:
    library.read.clear()
    with started(folder_of("llama"), library, care=Care(backoff_s=0.0)) as engine:
        yield engine


class Wedge:
    """The present engine thread stands still in its next forward pass, until it is let go."""

    def __init__(self, engine: Engine) -> None:
        self.worker = engine._worker
        self.entered, self._go = threading.Event(), threading.Event()
        runtime = self.worker._runtime
        forward = runtime.forward

        def blocked(*args: Any) -> Any:
            self.entered.set()
            self._go.wait()
            return forward(*args)

        runtime.forward = blocked  # type: ignore[method-assign]

    def let_go(self) -> None:
        self._go.set()
        self.worker.join()


@pytest.fixture
def wedge(own: Engine) -> Iterator[Wedge]:
    made = Wedge(own)
    yield made
    made.let_go()


def no_memory(*_: object) -> Any:
    raise RuntimeError("no memory")


def kill(engine: Engine) -> None:
    """Has the engine thread fail two steps in a row, which ends it."""
    _break_lanes(engine)
    [first] = answers(engine, PROMPTS[:1])
    assert "no memory" in (first.error or "")
    with pytest.raises(EngineRestarting):
        answers(engine, PROMPTS[:1])


def _break_lanes(engine: Engine) -> None:
    for lane in engine._worker._lanes:
        lane.step = no_memory  # type: ignore[method-assign]


def restarted(engine: Engine, times: int = 1) -> None:
    until(lambda: engine.health()["restarts"] == times)
    assert engine.health()["status"] == "ok"


def test_a_thread_that_dies_is_replaced_and_the_next_answers_the_same(
    own: Engine, library: Library
) -> None:
    expected = answers(own, PROMPTS, "a", None)
    before = own.health()
    assert before["restarts"] == 0
    kill(own)
    restarted(own)
    assert answers(own, PROMPTS, "a", None) == expected
    assert library.read.count("a") == 2  # loaded anew, when it was asked for
    after = own.health()
    assert after["last_restart"]["reason"] == "the engine thread failed: RuntimeError"
    assert after["tokens_generated"] > before["tokens_generated"]


def test_all_of_a_wedged_thread_is_told_at_once_and_the_next_answers_the_same(
    folder_of: Families, library: Library
) -> None:
    with started(folder_of("llama"), library) as own:
        expected = answers(own, PROMPTS, "b", None)
        wedge = Wedge(own)
        streams = [own.submit(PROMPTS[0], Sampling(max_tokens=400))]
        wedge.entered.wait()
        streams.append(own.submit(PROMPTS[1], GREEDY, "b"))
        lost: list[Exception] = []

        def roll() -> None:
            try:
                own.generate(None, PROMPTS, GREEDY)
            except EngineRestarting as error:
                lost.append(error)

        rollout = threading.Thread(target=roll)
        rollout.start()
        until(lambda: own.health()["background"] == 1)
        own._watchdog.check(time.monotonic() + LONG_S)
        rollout.join()
        assert len(lost) == 1
        for stream in streams:
            assert list(stream) == []
            with pytest.raises(EngineRestarting, match="try again"):
                stream.result()
        assert own.health()["status"] == "ok"
        assert own.lingering == 1
        assert answers(own, PROMPTS, "b", None) == expected
        wedge.let_go()  # it comes back in the middle of its step
        assert own.lingering == 0
        assert wedge.worker.failure is None
        for stream in streams:
            assert len(stream.text.tokens) <= 1
        assert answers(own, PROMPTS, "b", None) == expected
        assert own.health()["restarts"] == 1


def test_the_watchdog_finds_a_wedge_by_itself(folder_of: Families, library: Library) -> None:
    with started(folder_of("llama"), library, care=Care(probe_after_s=0.2)) as own:
        wedge = Wedge(own)
        stream = own.submit(PROMPTS[0], GREEDY)
        wedge.entered.wait()
        own._watchdog._clock = lambda: time.monotonic() + LONG_S
        with pytest.raises(EngineRestarting):
            stream.result()
        own._watchdog._clock = time.monotonic
        until(lambda: own.health()["status"] == "ok")
        assert answers(own, PROMPTS[:1])[0].error is None
        wedge.let_go()


def test_while_the_engine_restarts_it_says_so_and_when_to_come_back(
    own: Engine, wedge: Wedge, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go = loading_held(monkeypatch)
    own.submit(PROMPTS[0], GREEDY)
    wedge.entered.wait()
    look = threading.Thread(target=own._watchdog.check, args=(time.monotonic() + LONG_S,))
    look.start()
    loading.wait()
    health = own.health()
    assert health["status"] == "restarting"
    assert health["active_rows"] == health["waiting_rows"] == health["background"] == 0
    assert own.encode_text("on") != ()  # what needs no weights goes on
    for ask in (
        lambda: own.submit(PROMPTS[0], GREEDY),
        lambda: own.generate(None, PROMPTS, GREEDY),
    ):
        with pytest.raises(EngineRestarting) as caught:
            ask()
        assert caught.value.retry_after_s >= 1
    assert not own.await_restart(0)
    own.stand_down()
    own.forget("a")
    go.set()
    look.join()
    assert own.await_restart(0)
    assert answers(own, PROMPTS[:1])[0].error is None


def test_an_engine_that_cannot_be_restarted_has_failed_and_says_so(
    own: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[object] = []

    def broken(*args: Any, **_: Any) -> Any:
        attempts.append(args)
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(worker_module, "load", broken)
    kill(own)
    until(lambda: own.health()["status"] != "ok" and own.await_restart(300))
    assert own.health()["status"] == "failed"
    assert len(attempts) == Care().attempts
    for _ in range(2):
        with pytest.raises(EngineFailed, match="could not be restarted"):
            own.submit(PROMPTS[0], GREEDY)


def test_an_engine_is_not_restarted_with_another_model(
    own: Engine, folder_of: Families, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, load = folder_of("qwen2"), worker_module.load
    monkeypatch.setattr(worker_module, "load", lambda _, **options: load(other, **options))
    kill(own)
    until(lambda: own.health()["status"] == "failed")


def test_a_dead_threads_model_is_freed_before_the_next_is_loaded(
    own: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    old, load = weakref.ref(own._worker._model.module), worker_module.load

    def looking(*args: Any, **options: Any) -> Any:
        freed.append(old() is None)
        return load(*args, **options)

    monkeypatch.setattr(worker_module, "load", looking)
    logging.disable()  # pytest keeps what is logged, and with it the frames of the failure
    try:
        kill(own)
        restarted(own)
    finally:
        logging.disable(logging.NOTSET)
    assert freed == [True]


def test_an_idle_engine_is_asked_for_a_token_and_left_alone_if_it_answers(own: Engine) -> None:
    watchdog, worker = own._watchdog, own._worker
    now = time.monotonic()
    watchdog.check(now)
    assert watchdog._probe is None
    watchdog.check(now + 61)
    probe = watchdog._probe
    assert probe is not None
    assert len(probe.stream.result().tokens) == 1
    until(lambda: not worker.pulse.running)
    watchdog.check(time.monotonic())
    assert watchdog._probe is None
    assert own._worker is worker


def test_an_idle_engine_that_does_not_answer_is_replaced(own: Engine, wedge: Wedge) -> None:
    own._watchdog.check(time.monotonic() + 61)
    wedge.entered.wait()
    own._watchdog.check(time.monotonic() + LONG_S)
    assert own._worker is not wedge.worker
    assert answers(own, PROMPTS[:1])[0].error is None


def test_an_idle_engine_whose_token_is_not_finite_is_replaced(own: Engine) -> None:
    worker = own._worker
    forward = worker._runtime.forward
    worker._runtime.forward = lambda *args: forward(*args) * np.nan  # type: ignore[method-assign]
    own._watchdog.check(time.monotonic() + 61)
    assert own._watchdog._probe is not None
    assert own._watchdog._probe.stream.result().error is not None
    own._watchdog.check(time.monotonic())
    assert own._worker is not worker
    assert own.health()["restarts"] == 1


def test_a_wedged_engine_can_be_closed(folder_of: Families, library: Library) -> None:
    engine = Engine(folder_of("llama"), library)
    engine.start()
    wedge = Wedge(engine)
    stream = engine.submit(PROMPTS[0], GREEDY)
    wedge.entered.wait()
    engine._watchdog._clock = lambda: time.monotonic() + LONG_S
    engine.close()
    assert stream.result().error == "the engine is shutting down"
    assert engine.lingering == 1
    wedge.let_go()
    gc.collect()
