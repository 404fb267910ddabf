"""The orders of blocks: the paper's figures, bounded windows, no block twice in a row."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainers.orders import Order, advanced, periods, pick


def course(order: Order, count: int, bias: int, steps: int, seed: int = 0) -> list[int]:
    clocks, last, picked = periods(count, bias), -1, []
    for iteration in range(steps):
        last = pick(order, clocks, last, seed, iteration)
        clocks = advanced(clocks, last, bias)
        picked.append(last)
    return picked


def test_periods_grow_with_the_distance_from_the_top():
    assert periods(4, 10).tolist() == [44, 34, 24, 14]
    assert periods(3, 0).tolist() == [3, 3, 3]


def test_the_mean_backward_depth_of_36_blocks_is_12_2():
    picked = course("depth", 36, 10, 10_000)
    depth = np.mean([36 - block for block in picked])
    assert depth == pytest.approx(12.2, abs=0.05)
    uniform = np.mean([36 - block for block in course("uniform", 36, 10, 5000)])
    assert uniform == pytest.approx(18.5, abs=0.6)


def test_the_last_of_36_blocks_is_picked_8_6_times_as_often_as_the_first():
    counts = np.bincount(course("depth", 36, 10, 10_000))
    assert counts[35] / counts[0] == pytest.approx(8.6, abs=0.05)
    assert Fraction(36 + 10 * 36, 36 + 10) == pytest.approx(8.6, abs=0.01)


def test_the_first_picks_follow_the_clocks():
    # tau = 33, 23, 13: block 2 at 13, 1 at 23, 2 at 26, 0 at 33, 2 at 39, 1 at 46, 2 at 52
    assert course("depth", 3, 10, 7) == [2, 1, 2, 0, 2, 1, 2]


@given(st.integers(2, 30), st.integers(0, 50))
@settings(deadline=None, max_examples=30)
def test_the_depth_order_never_picks_a_block_twice_in_a_row(count, bias):
    picked = course("depth", count, bias, 300)
    assert all(a != b for a, b in pairwise(picked))


@given(st.integers(2, 20), st.integers(0, 30))
@settings(deadline=None, max_examples=30)
def test_every_block_is_picked_within_a_bounded_window(count, bias):
    tau = periods(count, bias)
    # Between two picks of the slowest block the others' clocks pass at most this often.
    window = int(sum(tau[0] // t + 2 for t in tau))
    picked = course("depth", count, bias, 4 * window)
    for block in range(count):
        places = [-1, *(i for i, b in enumerate(picked) if b == block), len(picked)]
        assert max(np.diff(places)) <= window


def test_a_single_block_is_always_picked():
    assert course("depth", 1, 10, 3) == [0, 0, 0]


def test_the_cyclic_order_goes_round_from_the_deepest():
    assert course("cyclic", 3, 10, 7) == [2, 1, 0, 2, 1, 0, 2]


def test_the_uniform_order_is_a_function_of_seed_and_iteration():
    first, other = (course("uniform", 8, 10, 4000, seed) for seed in (1, 2))
    assert first == course("uniform", 8, 10, 4000, 1) != other
    assert np.abs(np.bincount(first) - 500).max() < 5 * np.sqrt(500)
