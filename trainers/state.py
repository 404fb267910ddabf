"""Configuration and resumable state of a FuRA-S run (``trainers.fura_s``)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

FloatArray = npt.NDArray[np.float32]

VECTORS = ("theta", "velocity", "scale")
"""The state's vectors; the rest of it is scalars."""


class FuraSConfig(BaseModel):
    """Settings of one run; validated once, stored beside the expert."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    population: int = Field(64, ge=2, le=512, description="candidates per iteration, even")
    prompts: int = Field(4, ge=1, le=256, description="prompts every candidate is tried on")
    sigma: float = Field(0.04, gt=0, le=1, description="size of a candidate's change")
    lr: float = Field(0.12, gt=0, le=10, description="learning rate of equation (4)")
    lr_end: float = Field(0.1, gt=0, le=1, description="last learning rate, as a share of lr")
    momentum: float = Field(0.0, ge=0, lt=1, description="average over past updates; 0 = none")
    shaping: Literal["zscore", "ranks"] = Field("zscore", description="equation (3), or ranks")
    fitness: Literal["auto", "score", "likelihood", "mix"] = Field(
        "auto", description="verifier's score, log-likelihood of the accepted answer, or both"
    )
    probe_every: int = Field(25, ge=1, description="iterations between pass-rate probes of theta")
    whitening: float = Field(
        1.0, ge=0, le=1, description="how far a coordinate's energy lowers its noise; 0 = not"
    )
    iterations: int = Field(240, ge=1, le=100_000, description="iterations at most")
    minutes: float | None = Field(None, gt=0, description="minutes of training at most")
    max_tokens: int = Field(48, ge=1, le=4096, description="tokens a rollout may generate")
    depths: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.1,),
        min_length=1,
        max_length=8,
        description="shares of the layers, from the top, that an iteration changes; in order",
    )
    patience: int = Field(120, ge=1, description="iterations without progress before stopping")

    @model_validator(mode="after")
    def _pairs(self) -> FuraSConfig:
        if self.population % 2:
            raise ValueError("population must be even: candidates come in antithetic pairs")
        return self


@dataclass
class State:
    """Everything a run needs to go on, bit for bit.

    Attributes:
        theta: (D,) fp32, the searched coordinates.
        velocity: (D,) fp32, the momentum average.
        scale: (D,) fp32, standard deviations of the noise relative to sigma.
        seed: key of all randomness.
        iteration: iterations done; also the data cursor (``draw_prompts``).
        warm: auto fitness still follows the likelihood.
        elapsed_s: seconds trained, over all sessions.
        zero_variance, non_finite: counted iterations without signal, fitness values not finite.
        pass_rate: newest share passed on training prompts, of theta's answers while only the
            likelihood is followed, else of all candidates' answers; NaN before the first.
        trend, best, best_at: smoothed progress measure, its best value and when that was.
    """

    theta: FloatArray
    velocity: FloatArray
    scale: FloatArray
    seed: int
    iteration: int = 0
    warm: bool = True
    elapsed_s: float = 0.0
    zero_variance: int = 0
    non_finite: int = 0
    pass_rate: float = math.nan
    trend: float = math.nan
    best: float = -math.inf
    best_at: int = 0

    @classmethod
    def fresh(cls, config: FuraSConfig, seed: int, size: int) -> State:
        """The start of a run: theta = 0, the base model, and noise not yet whitened."""
        zeros = np.zeros(size, dtype=np.float32)
        ones = np.ones(size, dtype=np.float32)
        return cls(zeros, zeros.copy(), ones, seed, warm=config.fitness == "auto")

    def pack(self) -> dict[str, npt.NDArray[np.generic]]:
        """Arrays to store; ``unpack`` is the exact inverse."""
        meta = np.frombuffer(json.dumps(self._meta()).encode(), dtype=np.uint8)
        return {n: getattr(self, n) for n in VECTORS} | {"meta": meta}

    @classmethod
    def unpack(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> State:
        """Read ``pack``'s arrays; raises ``KeyError`` or ``ValueError`` if they are damaged."""
        meta = json.loads(arrays["meta"].tobytes())
        theta, velocity, scale = (arrays[name] for name in VECTORS)
        for v in (theta, velocity, scale):
            if v.dtype != np.float32 or v.shape != (theta.size,) or not np.isfinite(v).all():
                raise ValueError(f"{', '.join(VECTORS)} must be finite fp32 vectors of one length")
        types = {k: type(v) for k, v in cls(theta, velocity, scale, seed=0)._meta().items()}
        if not isinstance(meta, dict) or {k: type(v) for k, v in meta.items()} != types:
            raise ValueError("the state's fields are not those of a run")
        return cls(theta=theta, velocity=velocity, scale=scale, **meta)

    def _meta(self) -> dict[str, Any]:
        """The fields that are not vectors."""
        return {k: v for k, v in vars(self).items() if k not in VECTORS}
