"""Who waits for whom: nobody for grades that take too long but those themselves."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import FOREVER, LONG, many
from verifiers import PoolClosed, Sample


def test_a_grader_that_is_always_slow_loses_nothing() -> None:
    with misbehaving.pool(deadline_s=LONG) as pool:
        assert all(grade.passed for grade in many(pool, [f"sleep 0.15 {n}" for n in range(12)]))


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


BOMBS = 12
PATIENT_S = 300.0  # after which they wait for bombs, and not for a processor


def test_good_grades_of_any_grader_end_while_many_others_hang() -> None:
    with (
        misbehaving.pool(workers=2, deadline_s=FOREVER) as pool,
        ThreadPoolExecutor(BOMBS + 8) as threads,
    ):
        hanging = [threads.submit(many, pool, [f"hang {number}"]) for number in range(BOMBS // 2)]
        hanging += [threads.submit(many, pool, [f"hang {n}" for n in range(100, 100 + BOMBS)])]
        good = [threads.submit(many, pool, [f"echo {n / 10}", "fine"]) for n in range(6)]
        hanging += [threads.submit(many, pool, [f"hang {n}"]) for n in range(BOMBS // 2, BOMBS)]
        check = {"type": "string_check"}
        pair = (Sample(output_text="yes"), {"answer": "yes"})
        good += [threads.submit(pool.grade_many, check, [pair])]
        try:
            grades = [one.result(timeout=PATIENT_S) for one in good]
            assert not any(one.done() for one in hanging)
        finally:
            pool.close()
        assert [made[0].score for made in grades] == [n / 10 for n in range(6)] + [1.0]
        assert all(made[-1].passed for made in grades)


def test_a_good_batch_ends_while_many_others_hang() -> None:
    with misbehaving.pool(deadline_s=FOREVER) as pool, ThreadPoolExecutor(BOMBS + 1) as threads:
        hanging = [threads.submit(many, pool, [f"hang {number}"]) for number in range(BOMBS)]
        batch = threads.submit(many, pool, [f"echo {n / 100}" for n in range(100)])
        try:
            assert [grade.score for grade in batch.result(timeout=PATIENT_S)] == [
                n / 100 for n in range(100)
            ]
            assert not any(one.done() for one in hanging)
        finally:
            pool.close()


def test_grades_that_made_room_for_others_are_made_after_all() -> None:
    with misbehaving.pool(deadline_s=LONG) as pool, ThreadPoolExecutor(BOMBS) as threads:
        slow = [threads.submit(many, pool, [f"sleep 0.5 {number}"]) for number in range(BOMBS)]
        assert all(one.result()[0].passed for one in slow)


def test_every_one_of_many_that_hang_is_a_timeout() -> None:
    with misbehaving.pool(deadline_s=0.3) as pool, ThreadPoolExecutor(BOMBS) as threads:
        hanging = [threads.submit(many, pool, [f"hang {number}"]) for number in range(BOMBS)]
        assert all(one.result()[0].error_kind == "timeout" for one in hanging)
