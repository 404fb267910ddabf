"""When background steps may run, in steps and by a clock that stands where the test puts it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from app.engine.errors import WorkDropped  # isort: skip  (before MLX)
from app.engine.scheduler import Manners  # isort: skip  (before MLX)
import mlx.core as mx
import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine import platform
from app.engine.pace import Pace
from app.engine.sampling import Sampling
from tests.app.engine import rigs
from tests.app.engine.library import GREEDY, Library, answers, started
from tests.app.serving import until

Families = Callable[[str], Path]
SECONDS = st.floats(0.001, 100)


@given(st.floats(0.01, 1), st.lists(SECONDS, min_size=1, max_size=20))
def test_background_steps_take_the_share_of_time_they_may(
    share: float, durations: list[float]
) -> None:
    pace, now, worked = Pace(Manners(duty_cycle=share)), 0.0, 0.0
    for duration in durations:
        now += max(0.0, pace.rest_s(now)) + duration
        worked += duration
        pace.worked(duration, now)
    until_next = now + max(0.0, pace.rest_s(now))
    assert worked / until_next == pytest.approx(share, rel=1e-6)


def test_background_work_waits_until_users_have_been_quiet() -> None:
    pace = Pace(Manners(when="idle", quiet_s=5))
    assert pace.rest_s(0.0) <= 0
    pace.served(10.0)
    pace.served(12.0)
    assert pace.rest_s(12.0) == 5
    assert pace.rest_s(17.0) <= 0


def test_always_means_in_every_gap() -> None:
    pace = Pace(Manners(quiet_s=5))
    pace.served(10.0)
    pace.worked(3.0, 13.0)
    assert pace.rest_s(13.0) <= 0


def test_a_rollout_that_waits_for_quiet_keeps_no_user_waiting_and_can_be_dropped(
    folder_of: Families, library: Library
) -> None:
    prompts = rigs.prompts_of([13, 20])
    raised: list[type[Exception]] = []
    with started(folder_of("llama"), library, manners=Manners(when="idle", quiet_s=3600)) as engine:
        expected = engine.generate(None, prompts, GREEDY)  # nobody has asked for anything yet
        assert answers(engine, prompts) == expected[0]

        def roll() -> None:
            try:
                engine.generate(None, prompts, GREEDY)
            except WorkDropped as error:
                raised.append(type(error))

        rollout = threading.Thread(target=roll)
        rollout.start()
        until(lambda: engine.health()["background"] == 1)
        steps = engine._worker.pulse.steps
        assert answers(engine, prompts) == expected[0]
        needed = engine._worker.pulse.steps - steps
        assert needed <= 2 * GREEDY.max_tokens  # its own steps, none of the rollout's
        engine.stand_down()
        rollout.join()
        assert engine.health()["background"] == 0
        assert answers(engine, prompts) == expected[0]
    assert raised == [WorkDropped]


def test_standing_down_returns_what_rollouts_held(folder_of: Families, library: Library) -> None:
    prompts, references = rigs.prompts_of([13, 20] * 20), rigs.prompts_of([30, 50] * 20, seed=1)
    centre = library.flat["a"]
    with started(folder_of("llama"), library) as engine:
        answers(engine, prompts[:2])
        before = mx.get_active_memory()
        last = engine._worker._runtime.layers - 1
        engine.likelihood(centre[None], prompts, references, centre, last)
        kept = mx.get_active_memory()
        engine.stand_down()
        answers(engine, prompts[:2])  # a step later
    after = mx.get_active_memory()
    assert kept - before > 100_000  # what left the lower layers
    assert after - before < 20_000


@pytest.mark.skipif(not platform.STATUS.allocator, reason="the heap gives pages back by itself")
def test_memory_that_is_not_in_use_goes_back_to_the_system() -> None:
    process = psutil.Process()
    arrays = [mx.ones((1 << 18,)) for _ in range(200)]  # a MiB each
    mx.eval(arrays)
    last = mx.ones((1 << 18,))  # so that the heap's end is in use
    mx.eval(last)
    held = process.memory_info().rss
    del arrays
    platform.return_memory()
    assert held - process.memory_info().rss > 100 << 20
    assert np.array(last).sum() == 1 << 18


def test_rollouts_share_their_time_with_nobody_at_a_small_duty_cycle(
    folder_of: Families, library: Library
) -> None:
    """A user is served while the rollout sleeps, although it has not ended."""
    prompts = rigs.prompts_of([13, 20])
    with started(folder_of("llama"), library, manners=Manners(duty_cycle=1e-6)) as engine:
        expected = answers(engine, prompts)
        raised: list[Exception] = []

        def roll() -> None:
            try:
                engine.generate(None, prompts, Sampling(max_tokens=50))
            except WorkDropped as error:
                raised.append(error)

        rollout = threading.Thread(target=roll)
        rollout.start()
        until(lambda: engine._worker._pace.rest_s(0) > 0)  # it has taken its first step
        assert answers(engine, prompts) == expected
        assert engine.health()["background"] == 1
        engine.stand_down()
        rollout.join()
    assert len(raised) == 1
