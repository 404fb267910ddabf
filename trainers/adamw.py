"""AdamW in fp32 (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2, with a constant schedule).

    m <- b1 m + (1 - b1) g,     v <- b2 v + (1 - b2) g^2                                      (6, 7)
    x <- x - lr * ( (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)  +  wd * x )           (8 - 12)

A parameter without a gradient in a step has gradient *zero*: its moments decay, and it goes on
moving by them.  LCSB counts on that.  So moments exist for all parameters from the start.
State in, state out; nothing is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

Params = dict[str, mx.array]

EPSILON = 1e-8


@dataclass(frozen=True)
class Rates:
    """lr, b1, b2 and wd of the equations."""

    lr: float
    beta1: float
    beta2: float
    weight_decay: float


@dataclass(frozen=True)
class Moments:
    """m and v of every parameter, fp32, and t, the updates done."""

    first: Params
    second: Params
    updates: int

    @classmethod
    def fresh(cls, params: Mapping[str, mx.array]) -> Moments:
        """Before the first update."""
        first, second = ({n: mx.zeros_like(p) for n, p in params.items()} for _ in range(2))
        return cls(first, second, 0)


def update(
    params: Mapping[str, mx.array],
    moments: Moments,
    gradients: Mapping[str, mx.array],
    rates: Rates,
) -> tuple[Params, Moments]:
    """New parameters and moments, evaluated; a parameter without a gradient has gradient zero.

    Raises ``KeyError`` for a gradient of no parameter.
    """
    if unknown := set(gradients) - set(params):
        raise KeyError(f"no parameter is called {min(unknown)}")
    t = moments.updates + 1
    new: Params = {}
    first: Params = {}
    second: Params = {}
    for name, x in params.items():
        g = gradients.get(name)
        m, v = rates.beta1 * moments.first[name], rates.beta2 * moments.second[name]
        if g is not None:
            m, v = m + (1 - rates.beta1) * g, v + (1 - rates.beta2) * mx.square(g)
        unbiased = m / (1 - rates.beta1**t)
        spread = mx.sqrt(v / (1 - rates.beta2**t)) + EPSILON
        new[name] = x - rates.lr * (unbiased / spread + rates.weight_decay * x)
        first[name], second[name] = m, v
    mx.eval(new, first, second)
    return new, Moments(first, second, t)
