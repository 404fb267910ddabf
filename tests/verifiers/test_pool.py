"""The pool grades as graders do, and outlives whatever they do."""

import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import MISBEHAVE
from tests.verifiers.strategies import HOSTILE_TEXT, OBJECTS
from verifiers import Grade, GraderPool, PoolClosed, Sample, Status, ToolCall, build
from verifiers.base import MAX_OUTPUT_CHARS
from verifiers.frames import Frame, Kind, encode
from verifiers.pool import MAX_CALLS

CHECK: dict[str, Any] = {"type": "string_check"}
FOREVER = 1000.0
LONG = 60.0


@pytest.fixture(scope="module")
def pool() -> Iterator[GraderPool]:
    """A pool for graders that behave."""
    with GraderPool(deadline_s=LONG) as made:
        yield made


@pytest.fixture(scope="module")
def tough() -> Iterator[GraderPool]:
    """A pool with a grader that misbehaves."""
    with misbehaving.pool(deadline_s=LONG) as made:
        yield made


@pytest.fixture(scope="module")
def hasty() -> Iterator[GraderPool]:
    """The same with a deadline that is soon there, for what is late on any machine."""
    with misbehaving.pool(deadline_s=0.3) as made:
        yield made


def says(text: str) -> Sample:
    return Sample(output_text=text)


def many(pool: GraderPool, texts: list[str]) -> list[Grade]:
    return pool.grade_many(MISBEHAVE, [(says(text), {}) for text in texts])


def babble(data: bytes) -> str:
    """What has a worker send this to its supervisor."""
    return f"babble {data.decode('latin-1')}"


def timeless(grade: Grade) -> Grade:
    return grade.model_copy(update={"seconds": 0.0})


def processes(pool: GraderPool) -> list[psutil.Process]:
    """The supervisor, and everything below it."""
    supervisor = psutil.Process(pool._supervisor._process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def gone(ended: list[psutil.Process]) -> bool:
    """Wait until the processes have ended; those that nobody collected yet have, too."""
    _, alive = psutil.wait_procs(ended, timeout=LONG)
    return all(one.status() == psutil.STATUS_ZOMBIE for one in alive)


# what graders do


@settings(max_examples=25)
@given(st.lists(st.tuples(HOSTILE_TEXT, OBJECTS), max_size=8))
def test_grades_are_those_of_the_grader_itself_in_the_same_order(
    pool: GraderPool, pairs: list[tuple[str, dict[str, Any]]]
) -> None:
    config = {"type": "json_match", "surrounding": "ignore"}
    asked = [(says(text), {"answer": item}) for text, item in pairs]
    grader = build(config)
    direct = [timeless(grader.grade(sample, item)) for sample, item in asked]
    assert [timeless(grade) for grade in pool.grade_many(config, asked)] == direct


def test_nothing_to_grade_gives_no_grades(pool: GraderPool) -> None:
    assert pool.grade_many(CHECK, []) == []
    assert pool.references(CHECK, []) == []


def test_a_wrong_configuration_makes_every_grade_errored(pool: GraderPool) -> None:
    for config in ({"type": "unknown"}, {"type": "string_check", "x": 1}, {1: 2}, {"a": {1}}):
        grades = pool.grade_many(config, [(says("a"), {}), (says("b"), {})])
        assert [grade.error_kind for grade in grades] == ["config", "config"]


@pytest.mark.parametrize("item", [None, [], "x", {"a": float("nan")}, {1: 2}, {"a": {1, 2}}])
def test_an_item_that_is_not_json_is_errored_and_the_others_are_graded(
    pool: GraderPool, item: Any
) -> None:
    good = (says("yes"), {"answer": "yes"})
    first, broken, last = pool.grade_many(CHECK, [good, (says("yes"), item), good])
    assert first.passed and last.passed
    assert timeless(broken) == timeless(build(CHECK).grade(says("yes"), item))


def test_a_completion_beyond_the_bound_fails(pool: GraderPool) -> None:
    for length in (MAX_OUTPUT_CHARS, MAX_OUTPUT_CHARS + 1, 2_000_000):
        text = "x" * length
        grade = pool.grade({"type": "string_check", "operation": "ne"}, says(text), {"answer": ""})
        assert grade.passed == (length <= MAX_OUTPUT_CHARS)


def test_tool_calls_are_graded_and_told_apart(pool: GraderPool) -> None:
    config = {"type": "function_call", "syntax": "tools"}
    item = {"call": {"name": "f", "arguments": {"a": [1]}}}

    def call(value: Any) -> Sample:
        return Sample(output_text="", output_tools=(ToolCall(name="f", arguments={"a": value}),))

    grades = pool.grade_many(config, [(call(1), item), (call(2), item), (call({1}), item)])
    assert [grade.passed for grade in grades] == [True, False, False]
    assert grades[2].error_kind == "internal"


def test_references_are_those_of_the_grader_itself(pool: GraderPool) -> None:
    items: list[Any] = [{"answer": "a"}, {}, {"answer": None}, {"answer": {1}}, {"answer": "b"}]
    assert pool.references(CHECK, items) == [build(CHECK).reference(item) for item in items]
    assert pool.references(CHECK, items) == ["a", None, None, None, "b"]


def test_the_same_question_is_asked_once(tough: GraderPool) -> None:
    first = many(tough, ["pid"] * 50)
    assert len({grade.score for grade in first}) == 1
    assert many(tough, ["pid", "other"])[0] == first[0]
    other = tough.grade(MISBEHAVE, says("pid"), {"another": "item"})
    assert other.seconds != first[0].seconds


def test_the_order_of_an_items_keys_makes_no_other_question(tough: GraderPool) -> None:
    first = tough.grade(MISBEHAVE, says("pid key"), {"a": 1, "b": 2})
    assert tough.grade(MISBEHAVE, says("pid key"), {"b": 2, "a": 1}) is first


def test_only_so_many_grades_are_remembered() -> None:
    with misbehaving.pool(workers=1, remembered=2) as pool:
        a, b = many(pool, ["pid a", "pid b"])
        assert many(pool, ["pid a"])[0] is a
        many(pool, ["pid c"])  # forgets b, which was used longest ago
        assert many(pool, ["pid a"])[0] is a
        assert many(pool, ["pid b"])[0] is not b


def test_sets_have_the_same_order_in_every_worker_of_every_pool(tough: GraderPool) -> None:
    with misbehaving.pool(workers=1) as other:
        assert many(other, ["set"])[0].score == many(tough, ["set again"])[0].score


# what graders should not do


@pytest.mark.parametrize(
    ("text", "kind", "error"),
    [
        ("crash", "sandbox", "killed by signal 11"),
        ("exit", "sandbox", "exited with status 3"),
        (babble(b"\xff" * 64), "sandbox", "the grading process ended"),
        (
            babble(struct.pack("!IBI", 2**31, Kind.ANSWER, 0)),
            "sandbox",
            "the grading process ended",
        ),
        (babble(encode(Kind.ANSWER, 2**32 - 1, b"{}")), "sandbox", "not asked"),
        (babble(encode(Kind.DIED, 0, b"")), "sandbox", "not asked"),
        (babble(9 * encode(Kind.ANSWER, 0, b"{}")), "sandbox", "not asked"),
    ],
)
def test_what_a_grader_does_to_its_process_is_an_errored_grade(
    tough: GraderPool, text: str, kind: str, error: str
) -> None:
    grade = many(tough, [text])[0]
    assert (grade.score, grade.error_kind) == (None, kind)
    assert grade.error is not None and error in grade.error
    assert many(tough, ["fine"])[0].passed


@pytest.mark.parametrize("answer", [b"{}", b"\xff", b"[" * 100_000, b"null"])
def test_an_answer_that_is_no_grade_is_errored(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def forged(*_: Any) -> Iterator[Frame]:
        yield Frame(Kind.ANSWER, 0, answer)

    monkeypatch.setattr("verifiers.pool._received", forged)
    with GraderPool(workers=1) as pool:
        grade = pool.grade(CHECK, says("a"), {"answer": "a"})
        assert pool.references(CHECK, [{"answer": "a"}]) == [None]
    assert grade.error_kind == "sandbox"
    assert grade.error == "the grading process answered nonsense"


@pytest.mark.parametrize("text", ["hang", "sleep 1000"])
def test_what_takes_longer_than_the_deadline_is_a_timeout(hasty: GraderPool, text: str) -> None:
    grade = many(hasty, [text])[0]
    assert (grade.score, grade.error_kind) == (None, "timeout")
    assert (grade.error, grade.seconds) == ("grading took longer than 0.3 s", 0.3)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not keep the bound")
def test_a_grader_that_takes_too_much_memory_is_errored(tough: GraderPool) -> None:
    below, above = many(tough, [f"eat {64 << 20}", f"eat {1 << 30}"])
    assert below.score == 0.0
    assert (above.error_kind, above.error) == ("sandbox", "grading ran out of memory")


def test_one_bad_grade_never_costs_the_others() -> None:
    bad = {10: "hang a", 11: "crash a", 200: "hang b", 201: "exit a", 202: "crash b", 399: "crash"}
    texts = [bad.get(number, f"echo {number / 400}") for number in range(400)]
    with misbehaving.pool(deadline_s=5.0) as pool:
        grades = many(pool, texts)
    assert {number for number, grade in enumerate(grades) if grade.score is None} == set(bad)
    for number, grade in enumerate(grades):
        if number in bad:
            assert grade.error_kind == ("timeout" if "hang" in bad[number] else "sandbox")
        else:
            assert grade.score == number / 400


def test_timeouts_are_not_remembered(hasty: GraderPool) -> None:
    first, second = (many(hasty, ["hang"])[0] for _ in range(2))
    assert first is not second
    assert first == second


def test_crashes_are_not_remembered(tough: GraderPool) -> None:
    first, second = (many(tough, ["exit"])[0] for _ in range(2))
    assert first is not second
    assert first == second


def test_a_failure_for_being_slow_is_not_remembered(pool: GraderPool) -> None:
    config = {"type": "unit_tests", "unjudged": "failed", "timeout_s": 0.1, "tests": ["pass"]}
    first, second = (pool.grade(config, says("while True: pass"), {}) for _ in range(2))
    assert first.status is second.status is Status.FAILED
    assert first is not second


def test_a_grader_that_is_always_slow_loses_nothing() -> None:
    with misbehaving.pool(deadline_s=LONG) as pool:
        assert all(grade.passed for grade in many(pool, [f"sleep 0.15 {n}" for n in range(12)]))


def test_references_that_hang_or_crash_are_none() -> None:
    items = [{"act": act} for act in ("fine", "hang", "crash", "exit", "fine again")]
    with misbehaving.pool(deadline_s=5.0) as pool:
        assert pool.references(MISBEHAVE, items) == ["fine", None, None, None, "fine"]


def test_no_grade_waits_for_those_that_hang() -> None:
    with misbehaving.pool(workers=2, deadline_s=FOREVER) as pool, ThreadPoolExecutor(4) as threads:
        hanging = [threads.submit(many, pool, [f"hang {number}"]) for number in range(4)]
        grades = many(pool, [f"echo {number / 1000}" for number in range(1000)])
        assert [grade.score for grade in grades] == [number / 1000 for number in range(1000)]
        assert not any(one.done() for one in hanging)
        pool.close()
        for one in hanging:
            with pytest.raises(PoolClosed):
                one.result()


def test_a_single_grade_does_not_wait_for_a_batch() -> None:
    with misbehaving.pool(workers=1, deadline_s=FOREVER) as pool, ThreadPoolExecutor(1) as threads:
        batch = threads.submit(many, pool, [f"sleep 0.001 {number}" for number in range(20_000)])
        assert many(pool, ["fine"])[0].passed
        assert not batch.done()
        pool.close()
        with pytest.raises(PoolClosed):
            batch.result()


def test_more_calls_than_channels_are_all_served(tough: GraderPool) -> None:
    with ThreadPoolExecutor(3 * MAX_CALLS) as threads:
        calls = [
            threads.submit(many, tough, [f"echo {(100 * call + n) / 10_000}" for n in range(20)])
            for call in range(3 * MAX_CALLS)
        ]
        for call, one in enumerate(calls):
            scores = [grade.score for grade in one.result()]
            assert scores == [(100 * call + n) / 10_000 for n in range(20)]


# processes


def test_whatever_a_worker_started_is_killed_with_it_and_leaves_no_zombie(
    hasty: GraderPool,
) -> None:
    assert many(hasty, ["orphan"])[0].error_kind == "timeout"
    left = processes(hasty)
    assert all(one.name() != "sleep" for one in left)
    assert all(one.status() != psutil.STATUS_ZOMBIE for one in left)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_worker_has_one_socket_only_so_it_sees_when_the_supervisor_goes(
    hasty: GraderPool,
) -> None:
    many(hasty, ["hang", "crash", "hang too", "fine"])
    _, *workers = processes(hasty)
    for one in workers:
        links = [str(link.readlink()) for link in Path(f"/proc/{one.pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == 1


def test_workers_import_neither_mlx_nor_the_service(pool: GraderPool) -> None:
    assert pool.grade(CHECK, says("a"), {"answer": "a"}).passed
    maps = Path(f"/proc/{processes(pool)[0].pid}/maps")
    if maps.exists():
        assert "mlx" not in maps.read_text()
    code = "import verifiers.supervisor, sys; print({'mlx', 'app'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


def test_a_supervisor_that_dies_is_replaced_and_the_call_is_served() -> None:
    with misbehaving.pool(deadline_s=FOREVER) as pool:
        assert many(pool, ["fine"])[0].passed
        dead = processes(pool)
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(many, pool, ["sleep 1", "echo 0.5"])
            os.kill(dead[0].pid, signal.SIGKILL)
            assert [grade.score for grade in call.result()] == [1.0, 0.5]
        assert gone(dead)


def test_a_supervisor_that_dies_of_every_attempt_makes_errored_grades(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("verifiers.pool._BOOT", "pass")
    with GraderPool() as pool:
        grades = pool.grade_many(CHECK, [(says("a"), {"answer": "a"}), (says("b"), {})])
        assert [grade.error_kind for grade in grades] == ["sandbox", "sandbox"]
        assert pool.references(CHECK, [{"answer": "a"}]) == [None]


def test_closing_ends_all_processes_also_those_that_hang() -> None:
    with (
        misbehaving.pool(deadline_s=FOREVER) as pool,
        ThreadPoolExecutor(1) as threads,
    ):
        assert many(pool, ["fine"])[0].passed
        call = threads.submit(many, pool, ["hang"])
        running = processes(pool)
        pool.close()
        with pytest.raises(PoolClosed):
            call.result()
        assert gone(running)
        pool.close()  # a second time does nothing
        with pytest.raises(PoolClosed):
            many(pool, ["fine"])
        with pytest.raises(PoolClosed):
            pool.references(CHECK, [{}])


OWNER = """
import sys
sys.path[:0] = sys.argv[1:]
from tests.verifiers import misbehaving
from verifiers import Sample
with misbehaving.pool(deadline_s=1000.0) as pool:
    pool.grade(misbehaving.MISBEHAVE, Sample(output_text="fine"), {})
    print(pool._supervisor._process.pid, flush=True)
    pool.grade(misbehaving.MISBEHAVE, Sample(output_text="hang"), {})
"""


def test_the_processes_end_when_the_service_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *sys.path], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        supervisor = psutil.Process(int(owner.stdout.readline()))
    running = [supervisor, *supervisor.children(recursive=True)]
    assert len(running) >= 3
    owner.kill()
    owner.wait()
    assert gone(running)


def test_a_call_that_is_abandoned_leaves_the_pool_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with misbehaving.pool(deadline_s=LONG) as pool:

        def interrupted(*_: Any) -> Iterator[Any]:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("verifiers.pool._received", interrupted)
            with pytest.raises(KeyboardInterrupt):
                many(pool, ["echo 0.25"])
        for call in range(2 * MAX_CALLS):
            assert many(pool, [f"echo {call / 100}"])[0].score == call / 100


def test_the_first_grades_may_be_asked_for_while_the_processes_start() -> None:
    started = threading.Barrier(4)

    def call(number: int) -> Grade:
        started.wait()
        return many(pool, [f"echo {number / 10}"])[0]

    with misbehaving.pool() as pool, ThreadPoolExecutor(4) as threads:
        assert [one.score for one in threads.map(call, range(4))] == [0.0, 0.1, 0.2, 0.3]
