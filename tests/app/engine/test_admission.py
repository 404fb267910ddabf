"""Which rows start together, how prompts and answers take turns, and what a failure takes down."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app.engine.scheduler import Engine  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from app.engine import admission, lanes
from app.engine.admission import Admission
from app.engine.lanes import Lane
from app.engine.sampling import Sampling
from app.engine.text import Completion
from app.engine.worker import Worker
from tests.app.engine import rigs
from tests.app.engine.library import GREEDY, Library, answers, started

Families = Callable[[str], Path]


@pytest.fixture
def own(folder_of: Families, library: Library) -> Iterator[Engine]:
    with started(folder_of("llama"), library) as engine:
        yield engine


class Watch:
    """What the engine does, step by step: the prompts of each join, chunks read, tokens decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.joins: list[list[int]] = []
        admit, read, decode = Lane.admit, Admission.step, Worker._decode

        def joined(lane: Lane, rows: Any, home: Lane) -> Any:
            self.joins.append(sorted(len(row.prompt) for row in rows))
            return admit(lane, rows, home)

        def reading(admission: Admission) -> Any:
            self.steps.append("read")
            return read(admission)

        def decoding(worker: Worker) -> None:
            self.steps.append("decode")
            decode(worker)

        monkeypatch.setattr(Lane, "admit", joined)
        monkeypatch.setattr(Admission, "step", reading)
        monkeypatch.setattr(Worker, "_decode", decoding)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def submitted(engine: Engine, library: Library, lengths: list[int]) -> list[Completion]:
    """Rows that wait together before any of them can start."""
    prompts = rigs.prompts_of(lengths)
    with library.hold(engine):
        streams = [engine.submit(p, GREEDY) for p in prompts]
    return [stream.result() for stream in streams]


def test_a_long_prompt_and_running_answers_take_turns(
    own: Engine, library: Library, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_PREFILL_TOKENS", 16)
    long, short = rigs.prompts_of([160, 9])
    with library.hold(own):
        first = own.submit(short, Sampling(max_tokens=40))
        own.submit(long, GREEDY)
    assert len(first.result().tokens) > 20
    both = "".join(step[0] for step in watch.steps)
    assert "rdrdrdrdrdrd" in both
    assert "rr" not in both.lstrip("r")


def test_prompts_of_very_different_length_are_not_read_together(
    own: Engine, library: Library, watch: Watch
) -> None:
    lengths = [9, 300, 12, 280, 90, 7]
    got = submitted(own, library, lengths)
    joins = [join for join in watch.joins if join != [2]]  # without the one that holds
    assert sorted(n for join in joins for n in join) == sorted(lengths)
    assert all(max(join) <= 2 * min(join) + 64 for join in joins)
    assert got == [answers(own, [p])[0] for p in rigs.prompts_of(lengths)]


def test_a_short_prompt_does_not_wait_for_the_end_of_long_ones(
    own: Engine, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "_PREFILL_TOKENS", 16)
    over: list[int] = []
    settle = own._worker._settle

    def settled(streams: Any) -> None:
        over.extend(len(s.prompt) for s in streams if s.text.finish)
        settle(streams)

    own._worker._settle = settled  # type: ignore[method-assign]
    prompts = rigs.prompts_of([400, 380, 9, 390])
    with library.hold(own):
        streams = [own.submit(p, Sampling(max_tokens=2)) for p in prompts]
    assert all(stream.result().error is None for stream in streams)
    assert over[0] == 9


def test_a_second_lane_begins_once_the_first_has_enough_rows(
    own: Engine, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_FULL", 5)
    used: list[tuple[int, ...]] = []
    settle = own._worker._settle

    def settled(streams: Any) -> None:
        used.append(tuple(len(lane.rows) for lane in own._worker._lanes))
        settle(streams)

    own._worker._settle = settled  # type: ignore[method-assign]
    submitted(own, library, [9, 11, 10, 12])
    assert all(min(rows) == 0 for rows in used)
    submitted(own, library, [9, 11, 10, 12, 9, 10, 30, 180, 9])
    assert any(min(rows) > 0 for rows in used)


def test_rows_of_one_expert_are_read_together_and_lone_ones_with_each_other(
    own: Engine, library: Library, watch: Watch
) -> None:
    experts = ["a", "b", None, "a", "c", "a", None]
    prompts = rigs.prompts_of([20, 21, 22, 23, 24, 25, 26])
    expected = [answers(own, [p], e)[0] for p, e in zip(prompts, experts, strict=True)]
    watch.joins.clear()
    with library.hold(own):
        streams = [own.submit(p, GREEDY, e) for p, e in zip(prompts, experts, strict=True)]
    assert [stream.result() for stream in streams] == expected
    assert sorted(join for join in watch.joins if join != [2]) == [[20, 23, 25], [21, 24], [22, 26]]


@pytest.mark.parametrize("rows", [1, 2])
def test_rows_wait_while_those_in_flight_fill_the_budget_of_bytes(
    rows: int, folder_of: Families, library: Library, watch: Watch
) -> None:
    lengths = [20, 20, 20, 20, 20, 20]
    with started(folder_of("llama"), library) as free:
        expected = submitted(free, library, lengths)
        each = (20 + GREEDY.max_tokens) * free._worker._runtime.token_bytes
    watch.joins.clear()
    with started(folder_of("llama"), library, batch_bytes=rows * each) as tight:
        most = 0
        settle = tight._worker._settle

        def settled(streams: Any) -> None:
            nonlocal most
            most = max(most, *(len(lane.rows) for lane in tight._worker._lanes))
            settle(streams)

        tight._worker._settle = settled  # type: ignore[method-assign]
        assert submitted(tight, library, lengths) == expected
    assert most <= rows
    assert max(len(join) for join in watch.joins) <= rows


def test_a_row_larger_than_the_whole_budget_runs_alone(
    folder_of: Families, library: Library
) -> None:
    with started(folder_of("llama"), library, batch_bytes=1) as engine:
        assert all(c.error is None for c in submitted(engine, library, [30, 9, 40]))


def test_the_size_of_a_token_is_that_of_its_keys_and_values(own: Engine) -> None:
    prompt = rigs.prompts_of([24])[0]
    answers(own, [prompt])
    known = own._worker._prefixes.longest("", prompt)
    assert known is not None
    assert known.entry.nbytes == 24 * own._worker._runtime.token_bytes


def no_memory(*_: object) -> Any:
    raise RuntimeError("no memory")


def test_a_decode_step_that_fails_ends_its_rows_and_the_engine_goes_on(
    own: Engine, library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = rigs.prompts_of([13, 20])
    expected = answers(own, prompts, "a", None)
    with library.hold(own):
        own._worker._lanes[0].step = no_memory  # type: ignore[method-assign]
        streams = [own.submit(p, GREEDY, e) for p, e in zip(prompts, ("a", None), strict=True)]
    for stream in streams:
        completion = stream.result()
        assert completion.finish_reason == "error"
        assert "no memory" in (completion.error or "")
    del own._worker._lanes[0].step
    assert own.health()["status"] == "ok"
    assert answers(own, prompts, "a", None) == expected
    assert "a decode step failed" in caplog.text


def test_an_evaluation_that_fails_fails_only_the_lane_it_is_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Row:
        def __init__(self, lane: Any) -> None:
            self.lane, self.endings = lane, []
            self.prompt, self.sampling = np.zeros(3, np.int32), GREEDY
            self.expert, self.slot, self.cancelled = None, 0, False

        def finish(self, error: str | None = None) -> None:
            self.endings.append(error)

    class Fake:
        def __init__(self, array: mx.array) -> None:
            self.rows: list[Any] = []
            self.columns = 0
            self.array = array

        def admit(self, rows: Any, home: Any) -> Iterator[list[mx.array]]:
            del home
            yield [self.array]
            for row in rows:
                row.finish()

    broken = mx.ones(3)

    def evaluate(arrays: Any) -> None:
        if any(broken is array for _, array in tree_flatten(arrays)):
            raise RuntimeError("no memory")

    monkeypatch.setattr(admission, "mx", SimpleNamespace(eval=evaluate))
    pair: list[Any] = [Fake(mx.ones(3)), Fake(broken)]

    class Slots:
        def acquire(self, expert: str | None) -> int:
            return 0

    slots: Any = Slots()
    joining = Admission(pair, slots, 1, 1 << 20, 1)
    rows: list[Any] = [Row(0), Row(1)]
    joining.start(deque(rows))
    done = list(joining.step())
    while joining.rows:
        done += joining.step()
    assert sorted(map(id, done)) == sorted(map(id, rows))
    sound, failed = (row.endings for row in rows)
    assert sound == [None]
    assert len(failed) == 1
    assert "could not be processed" in failed[0]
