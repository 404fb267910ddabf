"""Majority vote over workers (ABSignSGD, section on distributed training; signSGD with majority
vote, arXiv 1810.05291).

    s = sign( sum_j sign(g^j) )

Sign first, then add: one int8 per coordinate goes over the wire, in a single sum.  All workers get
the same sum, hence make the same step.  A worker without a usable gradient votes zero: it must
take part, or the others would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx

AllSum = Callable[[mx.array], mx.array]
"""Sum over all workers, e.g. ``mx.distributed.all_sum``; the identity for one worker."""

MAX_WORKERS = 127
"""More votes could overflow int8."""


def alone(values: mx.array) -> mx.array:
    """The sum over one worker."""
    return values


def abstention(params: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """The vote of a worker without a usable gradient: zeros in the parameters' shapes."""
    return {name: mx.zeros(value.shape, mx.int8) for name, value in params.items()}


def majority(signs: Mapping[str, mx.array], all_sum: AllSum) -> dict[str, mx.array]:
    """int8 signs of this worker -> int8 signs of the majority, zero where it is tied; evaluated.

    Names and shapes must be the same on all workers.
    """
    names = sorted(signs)
    flat = mx.concatenate([signs[name].reshape(-1) for name in names])
    voted = mx.sign(all_sum(flat))
    mx.eval(voted)
    result: dict[str, mx.array] = {}
    start = 0
    for name in names:
        shape = signs[name].shape
        size = signs[name].size
        result[name] = voted[start : start + size].reshape(shape)
        start += size
    return result
