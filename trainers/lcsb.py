"""LCSB: selective backpropagation (arXiv 2602.13073), on the loop of MeBP (arXiv 2510.03425).

Claim: most of a backward pass can be left out.  Each step draws a fraction r of the layers,
uniformly, and back-propagates through those only; the forward pass is complete and identical:

    S ~ uniform over subsets of round(r N) layers                                            (1)
    h_{l+1} = F_l(h_l)                           forward, all l
    dL/dh_l = J_l^T dL/dh_{l+1}                  backward, l in S: recompute and vjp
    dL/dh_l =       dL/dh_{l+1}                  l not in S: h + stop_gradient(F(h) - h)     (2)
    theta  <- AdamW(theta, g),  g_l = 0 for l not in S                                       (3)

An unselected layer costs neither the dequantisation of its weights, nor a recomputation, nor a
matmul, nor the memory of its input.  Its gradient is *zero*, not absent: AdamW's momentum goes on
moving it, the source's "implicit update".

The gradients of (2) are a biased surrogate: the Jacobians of skipped layers are missing.  Every
``cosine_every`` iterations the cosine to the exact gradient, over the selected layers' parameters,
is measured and reported.

Choices of ours where the source is silent: the steps of ``step_down`` (thirds of the run, at r,
half way, and r_end); layers below the lowest that has parameters are not drawn; a step whose
gradients are not finite changes nothing and is counted.  Importance-based selection is left out:
it costs more than it saves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainers import adamw, gradient_run
from trainers.adamw import Moments, Rates
from trainers.backprop import Plan, ShouldStop, gradients, never, number
from trainers.decoder import Decoder, Params
from trainers.gradient_run import Arrays, NextBatch, Outcome, Progress, Run
from trainers.keys import generator
from trainers.objectives import Batch


class LcsbConfig(BaseModel):
    """Settings of one run; validated once, stored beside the expert."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    r: float = Field(0.5, gt=0, le=1, description="share of the layers a step back-propagates")
    schedule: Literal["constant", "step_down", "cosine"] = Field(
        "constant", description="how r goes to r_end"
    )
    r_end: float = Field(0.3, gt=0, le=1, description="last r of step_down and cosine")
    lr: float = Field(1e-4, gt=0, le=1, description="AdamW's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's memory of gradients")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW's memory of their squares")
    weight_decay: float = Field(0.01, ge=0, le=1, description="AdamW's decoupled decay")
    cosine_every: int = Field(50, ge=0, description="iterations between health checks; 0 = none")
    iterations: int = Field(1000, ge=1, le=1_000_000, description="iterations at most")
    minutes: float | None = Field(None, gt=0, description="minutes of training at most")

    @model_validator(mode="after")
    def _falls(self) -> LcsbConfig:
        if self.schedule != "constant" and self.r_end > self.r:
            raise ValueError("r_end is above r: the share of layers can only fall")
        return self

    @property
    def rates(self) -> Rates:
        """AdamW's."""
        return Rates(self.lr, self.beta1, self.beta2, self.weight_decay)


@dataclass
class State(Run):
    """Everything a run needs to go on, bit for bit; ``moments`` are AdamW's."""

    moments: Moments = field(default_factory=lambda: Moments({}, {}, 0))

    @classmethod
    def fresh(cls, params: Params, seed: int) -> State:
        """The start of a run from the expert ``params``, fp32."""
        return cls(dict(params), seed, moments=Moments.fresh(params))

    def pack(self) -> Arrays:
        """Arrays to store; ``unpack`` is the exact inverse."""
        groups = {"params": self.params, "first": self.moments.first, "second": self.moments.second}
        return gradient_run.pack(groups, self._fields())

    @classmethod
    def unpack(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> State:
        """Read ``pack``'s arrays; raises ``KeyError`` or ``ValueError`` if they are damaged."""
        example = cls({}, 0)._fields()
        (params, first, second), fields = gradient_run.unpack(
            arrays, ("params", "first", "second"), example
        )
        moments = Moments(first, second, fields.pop("updates"))
        return cls(params=params, moments=moments, **fields)

    def _fields(self) -> dict[str, Any]:
        """What is not an array."""
        fields = {k: v for k, v in vars(self).items() if k not in ("params", "moments")}
        return fields | {"updates": self.moments.updates}


def fraction(config: LcsbConfig, done: float) -> float:
    """r when a share ``done`` of the run is over."""
    fall = config.r - config.r_end
    if config.schedule == "step_down":
        return config.r - fall * min(int(3 * done), 2) / 2
    if config.schedule == "cosine":
        return config.r_end + fall * (1 + math.cos(math.pi * done)) / 2
    return config.r


def select(seed: int, iteration: int, first: int, count: int, r: float) -> list[int]:
    """(1): at least one of the layers ``first`` to ``count - 1``, ascending."""
    size = max(1, math.floor(r * (count - first) + 0.5))
    drawn = generator(seed, "layers", iteration).permutation(count - first)[:size]
    return sorted(first + int(layer) for layer in drawn)


def train(
    config: LcsbConfig,
    state: State,
    decoder: Decoder,
    next_batch: NextBatch,
    on_iteration: Callable[[State, Progress], None],
    should_stop: ShouldStop,
) -> str:
    """Run until a budget is used up or ``should_stop`` names a reason; returns the reason.

    ``should_stop`` is asked between layers, too.  ``on_iteration`` is called after every iteration
    with the new state: a checkpoint taken there resumes bit for bit.
    """

    def advance() -> Outcome:
        batch = next_batch(state.iteration, state.params)
        return step(config, state, decoder, batch, should_stop)

    return gradient_run.drive(config, state, advance, on_iteration, should_stop)


def step(
    config: LcsbConfig,
    state: State,
    decoder: Decoder,
    batch: Batch | None,
    should_stop: ShouldStop = never,
) -> Outcome:
    """One iteration in the order of the module's equations; ``state.iteration`` stays."""
    if batch is None:
        state.skipped += 1
        return Outcome()
    r = fraction(config, gradient_run.share_done(config, state))
    lowest = min(int(name.split(".")[1]) for name in state.params)
    layers = select(state.seed, state.iteration, lowest, len(decoder), r)  # (1)
    g: Params = {}
    loss = gradients(
        decoder,
        state.params,
        batch,
        Plan.selected(layers),
        lambda _, own: g.update(own),
        should_stop,
    )  # (2)
    cosine = None
    if config.cosine_every and state.iteration % config.cosine_every == 0:
        cosine = cosine_to_exact(decoder, state.params, batch, g, should_stop)
    state.loss = loss
    if not gradient_run.all_finite(g):
        state.non_finite += 1
        return Outcome((), batch.tokens.size, cosine)
    state.params, state.moments = adamw.update(state.params, state.moments, g, config.rates)  # (3)
    return Outcome(tuple(layers), batch.tokens.size, cosine)


def cosine_to_exact(
    decoder: Decoder,
    params: Params,
    batch: Batch,
    surrogate: Params,
    should_stop: ShouldStop = never,
) -> float | None:
    """Cosine of ``surrogate`` and the exact gradient of the same parameters.

    ``None`` where one of them is zero or not finite.  Costs a full backward pass.
    """
    sums = np.zeros(3)

    def compare(_: int, exact: Params) -> None:
        for name in sorted(exact.keys() & surrogate.keys()):
            a, b = surrogate[name], exact[name]
            sums[:] += [number((a * b).sum()), number((a * a).sum()), number((b * b).sum())]

    gradients(decoder, params, batch, Plan.full(len(decoder)), compare, should_stop)
    dot, a, b = (float(value) for value in sums)
    size = math.sqrt(a * b)
    return dot / size if math.isfinite(size) and size > 0 else None
