"""ABSignSGD: SignSGD on one block at a time, in an arbitrary order (ICLR 2026, NQsdnYkCar).

Claim: a step that changes one layer by the signs of its gradient, chosen with a bias to depth,
needs neither optimiser state nor most of the backward pass, and converges.  One step:

    i   = next block of the order                         (``trainers.orders``)               (1)
    g_i = dL/dx_i                                         exact; backward ends at block i     (2)
    s   = sign(g_i),  or the majority over the workers    (``trainers.vote``)                 (3)
    x_i <- (1 - lr wd) x_i - lr s,   all other x stay                                         (4)

A block is one transformer layer.  The layers below it run outside the trace: their inputs are not
kept and they are not recomputed.  The state is the parameters and the clocks of the order.

*Targets.*  *expert*: x are an expert's parameters, fp32, on a base that may be INT4.  *full*: x are
all weights of the layers of an unquantised base (``trainers.weights``), fp32, or bf16 with steps
rounded at random.

A gradient that is not finite votes zero.  A vote of zeros, where no worker had a usable gradient,
skips the step and is counted; the clock of its block moves on, or it would be picked for ever.

Choices of ours where the source is silent: the learning rate falls linearly to ``lr_end`` of its
start, since signs do not shrink near a minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from trainers import gradient_run, vote
from trainers.backprop import Plan, ShouldStop, gradients, never
from trainers.decoder import Decoder, Params, by_layer
from trainers.gradient_run import Arrays, NextBatch, Outcome, Progress, Run
from trainers.keys import generator
from trainers.objectives import Batch
from trainers.orders import Clocks, Order, advanced, periods, pick
from trainers.weights import stochastically_rounded


class ABSignSGDConfig(BaseModel):
    """Settings of one run; validated once, stored beside the expert."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    order: Order = Field("depth", description="which block is next: depth, uniform, cyclic")
    bias: int = Field(10, ge=0, le=10_000, description="c, how much the depth order favours depth")
    lr: float = Field(1e-3, gt=0, le=1, description="size of a step")
    lr_end: float = Field(0.1, gt=0, le=1, description="last learning rate, as a share of lr")
    weight_decay: float = Field(0.0, ge=0, le=1, description="decoupled decay of the block")
    iterations: int = Field(1000, ge=1, le=1_000_000, description="iterations at most")
    minutes: float | None = Field(None, gt=0, description="minutes of training at most")


@dataclass
class State(Run):
    """Everything a run needs to go on, bit for bit.

    Attributes:
        clocks: (N,) int64, T of each block; blocks are the layers that have parameters.
        last: the block picked last; -1 before the first.
    """

    clocks: Clocks = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    last: int = -1

    @classmethod
    def fresh(cls, config: ABSignSGDConfig, params: Params, seed: int) -> State:
        """The start of a run from ``params``, an expert's or a model's layers'.

        Raises ``ValueError`` if one is neither fp32 nor bf16.
        """
        for name, value in params.items():
            if value.dtype not in (mx.float32, mx.bfloat16):
                raise ValueError(f"{name} is {value.dtype}: only fp32 and bf16 can be trained")
        return cls(dict(params), seed, clocks=periods(len(blocks(params)), config.bias))

    def pack(self) -> Arrays:
        """Arrays to store; ``unpack`` is the exact inverse."""
        fields = {k: v for k, v in vars(self).items() if k not in ("params", "clocks")}
        fields["clocks"] = self.clocks.tolist()
        return gradient_run.pack({"params": self.params}, fields)

    @classmethod
    def unpack(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> State:
        """Read ``pack``'s arrays; raises ``KeyError`` or ``ValueError`` if they are damaged."""
        example = {k: v for k, v in vars(cls({}, 0)).items() if k != "params"} | {"clocks": []}
        (params,), fields = gradient_run.unpack(arrays, ("params",), example)
        clocks = np.array(fields.pop("clocks"))
        if clocks.shape != (len(blocks(params)),) or clocks.dtype != np.int64:
            raise ValueError("the state's clocks are not those of its blocks")
        return cls(params=params, clocks=clocks, **fields)


def blocks(params: Mapping[str, mx.array]) -> list[int]:
    """The layers that have parameters, ascending."""
    return sorted({int(name.split(".")[1]) for name in params})


def train(
    config: ABSignSGDConfig,
    state: State,
    decoder: Decoder,
    next_batch: NextBatch,
    on_iteration: Callable[[State, Progress], None],
    should_stop: ShouldStop,
    all_sum: vote.AllSum = vote.alone,
) -> str:
    """Run until a budget is used up or ``should_stop`` names a reason; returns the reason.

    With several workers each has its own batches and the same parameters, clocks and seed;
    ``should_stop`` must give all of them the same answers, and no clock on the wall may decide:
    raises ``ValueError`` if ``minutes`` is set then.  ``on_iteration`` is called after every
    iteration with the new state: a checkpoint taken there resumes bit for bit.
    """
    if all_sum is not vote.alone and config.minutes is not None:
        raise ValueError("several workers need a budget of iterations, not of minutes")

    def advance() -> Outcome:
        batch = next_batch(state.iteration, state.params)
        return step(config, state, decoder, batch, should_stop, all_sum)

    return gradient_run.drive(config, state, advance, on_iteration, should_stop)


def step(
    config: ABSignSGDConfig,
    state: State,
    decoder: Decoder,
    batch: Batch | None,
    should_stop: ShouldStop = never,
    all_sum: vote.AllSum = vote.alone,
) -> Outcome:
    """One iteration in the order of the module's equations; ``state.iteration`` stays."""
    block = pick(config.order, state.clocks, state.last, state.seed, state.iteration)  # (1)
    layer = blocks(state.params)[block]
    x = by_layer(state.params, len(decoder))[layer]
    signs: Params | None = None
    if batch is None:
        state.skipped += 1
    else:
        state.loss, signs = _signs(decoder, state.params, batch, layer, should_stop)  # (2)
        state.non_finite += signs is None
    s = vote.majority(vote.abstention(x) if signs is None else signs, all_sum)  # (3)
    moved = any(sign.any().item() for sign in s.values())
    if moved:
        lr = config.lr * (1 - (1 - config.lr_end) * gradient_run.share_done(config, state))
        rounding = generator(state.seed, "rounding", state.iteration)
        state.params |= descended(x, s, lr, config.weight_decay, rounding)  # (4)
    state.clocks, state.last = advanced(state.clocks, block, config.bias), block
    return Outcome((layer,) if moved else (), 0 if batch is None else batch.tokens.size)


def _signs(
    decoder: Decoder, params: Params, batch: Batch, layer: int, should_stop: ShouldStop
) -> tuple[float, Params | None]:
    """The loss and the signs of a layer's gradient, int8; no signs if it is not finite."""
    signs: Params = {}
    finite = True

    def sign(_: int, g: Params) -> None:
        nonlocal finite
        for name in list(g):  # matrix by matrix: each gradient is freed for its signs
            value = g.pop(name)
            signs[name] = mx.sign(value).astype(mx.int8)
            mx.eval(signs[name])
            finite = finite and gradient_run.all_finite({name: value})

    plan = Plan.block(layer, len(decoder))
    loss = gradients(decoder, params, batch, plan, sign, should_stop)
    return loss, signs if finite else None


def descended(
    x: Params, signs: Params, lr: float, weight_decay: float, rounding: np.random.Generator
) -> Params:
    """(4): the block after a step, computed in fp32; evaluated."""
    new: Params = {}
    for name in sorted(x):
        exact = (1 - lr * weight_decay) * x[name].astype(mx.float32) - lr * signs[name]
        half = x[name].dtype == mx.bfloat16
        new[name] = stochastically_rounded(exact, rounding) if half else exact
        mx.eval(new[name])
    return new
