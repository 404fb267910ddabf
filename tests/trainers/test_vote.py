"""The majority vote: the sign of the sum of signs, the same for all, one byte a coordinate."""

from threading import Barrier, Thread

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest

from trainers import vote


def signs_of(worker: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(worker)
    return {n: rng.integers(-1, 2, s).astype(np.int8) for n, s in (("b", (3, 4)), ("a", (5,)))}


class Wire:
    """Sums arrays of several threads; every thread gets the sum."""

    def __init__(self, workers: int) -> None:
        self.sent: list[np.ndarray] = []
        self._barrier = Barrier(workers, timeout=30)

    def all_sum(self, values: mx.array) -> mx.array:
        self.sent.append(np.array(values))
        self._barrier.wait()
        total = sum(self.sent[1:], self.sent[0])
        self._barrier.wait()
        return mx.array(total)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_workers_get_the_sign_of_the_sum_of_signs(workers: int):
    wire, results = Wire(workers), {}

    def work(worker: int) -> None:
        own = {name: mx.array(value) for name, value in signs_of(worker).items()}
        voted = vote.majority(own, wire.all_sum)
        results[worker] = {name: np.array(value) for name, value in voted.items()}

    threads = [Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        wanted = np.sign(sum(signs_of(w)[name].astype(int) for w in range(workers)))
        for worker in range(workers):
            assert (results[worker][name] == wanted).all()
            assert results[worker][name].dtype == np.int8
    assert [value.nbytes for value in wire.sent] == [17] * workers  # 17 coordinates, 17 bytes


def test_the_most_workers_that_int8_can_count_do_not_overflow():
    own = {"a": mx.array([1, -1, 0], dtype=mx.int8)}
    voted = vote.majority(own, lambda values: values * vote.MAX_WORKERS)
    assert voted["a"].tolist() == [1, -1, 0]


def test_an_abstention_leaves_the_others_majority():
    own = {"a": mx.array([1, -1, 0], dtype=mx.int8)}
    nothing = vote.abstention({"a": mx.ones(3)})
    assert nothing["a"].dtype == mx.int8
    voted = vote.majority(nothing, lambda values: values + own["a"])
    assert voted["a"].tolist() == [1, -1, 0]
