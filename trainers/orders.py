"""In which order ABSignSGD updates its blocks (``trainers.absignsgd``).

*depth*, the paper's event-driven, depth-biased order: block i of 1 .. N, 1 the shallowest, has the
period tau_i = N + c (N - i + 1) and a clock T_i that starts at tau_i.  The block with the earliest
clock is next; then T_i += tau_i.  So each block is picked within a bounded window, and deep blocks,
whose backward pass is short, are picked often.

*uniform* draws a block at random, *cyclic* goes round from the deepest.

Choices of ours: of equal clocks the deepest block goes first, and in the depth order the block
picked last is passed over, since with few blocks its clock can be the earliest again.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from trainers.keys import generator

Order = Literal["depth", "uniform", "cyclic"]
Clocks = npt.NDArray[np.int64]


def periods(count: int, bias: int) -> Clocks:
    """tau of every block, (N,); ``bias``: c."""
    shallowness = count - np.arange(count, dtype=np.int64)  # N - i + 1 of i = 1 .. N
    tau: Clocks = count + bias * shallowness
    return tau


def pick(order: Order, clocks: Clocks, last: int, seed: int, iteration: int) -> int:
    """The next block, 0 the shallowest; ``last``: the one before it, -1 at the start."""
    count = clocks.size
    if order == "uniform":
        return int(generator(seed, "order", iteration).integers(count))
    if order == "cyclic":
        return count - 1 - iteration % count
    waiting = clocks[::-1].copy()  # from the deepest, which goes first of equals
    if last >= 0 and count > 1:
        waiting[count - 1 - last] = np.iinfo(np.int64).max
    return count - 1 - int(waiting.argmin())


def advanced(clocks: Clocks, block: int, bias: int) -> Clocks:
    """The clocks after ``block`` was picked."""
    moved = clocks.copy()
    moved[block] += periods(clocks.size, bias)[block]
    return moved
