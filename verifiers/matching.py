"""The pairing of what was wanted with what was given that gains most.

`gains[i][j] >= 0` is what wanted thing `i` gains from given thing `j`; each is paired at most once.
"""

from __future__ import annotations

import math

Gains = list[list[float]]
Pairs = list[tuple[int, int]]


def pair_in_order(gains: Gains) -> Pairs:
    """Return the best pairs that do not cross, as in an alignment; O(n m)."""
    rows, columns = len(gains), len(gains[0]) if gains else 0
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]  # best[i][j]: from i and j onwards
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            together = gains[i][j] + best[i + 1][j + 1]
            best[i][j] = max(together, best[i + 1][j], best[i][j + 1])
    pairs: Pairs = []
    i = j = 0
    while i < rows and j < columns:
        if best[i][j] == gains[i][j] + best[i + 1][j + 1]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def pair_in_any_order(gains: Gains) -> Pairs:
    """Return the best pairs, every wanted or every given thing in one: the Hungarian algorithm.

    One row after the other is added by a shortest augmenting path over reduced costs, O(n^2 m)
    for n <= m (Kuhn 1955; Jonker and Volgenant 1987).
    """
    if not gains or not gains[0]:
        return []
    if len(gains) > len(gains[0]):
        turned = [list(column) for column in zip(*gains, strict=True)]
        return sorted((i, j) for j, i in pair_in_any_order(turned))
    columns = len(gains[0])
    row_price = [0.0] * len(gains)
    column_price = [0.0] * columns
    row_of = [-1] * columns
    for row in range(len(gains)):
        _add_row(gains, row, row_price, column_price, row_of)
    return sorted((i, j) for j, i in enumerate(row_of) if i >= 0)


def _add_row(
    gains: Gains, row: int, row_price: list[float], column_price: list[float], row_of: list[int]
) -> None:
    """Pair one more row along the path that loses least, and keep the prices feasible."""
    columns = len(row_of)
    distance = [math.inf] * columns
    before = [-1] * columns  # the column from which the path reached this one
    done = [False] * columns
    reached = [(row, 0.0)]  # rows on paths, with the distance at which each was reached
    at, current, last = 0.0, row, -1
    while True:
        for j in range(columns):
            # What pairing costs beyond the prices: at least zero, but for the row that is added,
            # where every path begins.
            cost = at - gains[current][j] - row_price[current] - column_price[j]
            if not done[j] and cost < distance[j]:
                distance[j], before[j] = cost, last
        last = min((j for j in range(columns) if not done[j]), key=distance.__getitem__)
        at = distance[last]
        if row_of[last] < 0:
            break
        done[last] = True
        current = row_of[last]
        reached.append((current, at))
    for i, reached_at in reached:
        row_price[i] += at - reached_at
    for j in range(columns):
        if done[j]:
            column_price[j] -= at - distance[j]
    while last >= 0:
        row_of[last] = row_of[before[last]] if before[last] >= 0 else row
        last = before[last]
