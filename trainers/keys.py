"""Counter-based randomness of the gradient trainers.

Every draw is a pure function of (seed, purpose, index), so a run stores nothing but its seed and
its counters, and goes on bit for bit.  ``trainers.fura_s`` numbers its own draws below 2^62 and
from 2^63; ours lie in between.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Purpose = Literal["initial", "layers", "order", "rounding"]
_PURPOSES = get_args(Purpose)


def generator(seed: int, purpose: Purpose, index: int) -> np.random.Generator:
    """The generator of one draw; ``index`` is below 2^48."""
    number = (1 << 62) | (_PURPOSES.index(purpose) << 48) | index
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64)))
