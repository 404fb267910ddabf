"""Pairings against every pairing there is."""

from itertools import combinations, pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.matching import Gains, Pairs, pair_in_any_order, pair_in_order


@st.composite
def gain_tables(draw: st.DrawFn) -> Gains:
    """Small tables; ties are frequent."""
    columns = draw(st.integers(0, 5))
    gain = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)
    row = st.lists(gain, min_size=columns, max_size=columns)
    return draw(st.lists(row, max_size=5))


def total(gains: Gains, pairs: Pairs) -> float:
    """Add up what pairs gain."""
    return sum(gains[i][j] for i, j in pairs)


def most(gains: Gains, in_order: bool) -> float:
    """Try every choice of rows and columns of the same number, in every order that is allowed."""
    rows, columns = range(len(gains)), range(len(gains[0]) if gains else 0)
    best = 0.0
    for size in range(1, min(len(rows), len(columns)) + 1):
        for some in combinations(rows, size):
            orders = combinations(columns, size) if in_order else permutations(columns, size)
            for others in orders:
                best = max(best, total(gains, list(zip(some, others, strict=True))))
    return best


@given(gain_tables())
def test_pairs_in_order_gain_most_and_do_not_cross(gains: Gains) -> None:
    pairs = pair_in_order(gains)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    assert total(gains, pairs) == pytest.approx(most(gains, in_order=True))


@given(gain_tables())
def test_pairs_in_any_order_gain_most_and_use_nothing_twice(gains: Gains) -> None:
    pairs = pair_in_any_order(gains)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs)
    assert len(pairs) == min(len(gains), len(gains[0]) if gains else 0)
    assert total(gains, pairs) == pytest.approx(most(gains, in_order=False))


def test_a_large_table_whose_best_pairing_is_known_is_paired_right() -> None:
    size = 64
    gains = [
        [1.0 if j == i * 27 % size else (i * j % 7) / 8 for j in range(size)] for i in range(size)
    ]
    assert pair_in_any_order(gains) == [(i, i * 27 % size) for i in range(size)]
