"""Synthetic objectives with a known optimum, and short runs of FuRA-S on them."""

import io
import math
from collections.abc import Callable, Sequence

import numpy as np

from trainers.fura_s import Progress, Scores, train
from trainers.state import FuraSConfig, State

SIZE, PROMPTS = 24, 12
OPTIMUM = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32) / math.sqrt(SIZE)


def config(**changes) -> FuraSConfig:
    """Every setting that these tests depend on, whatever the defaults are."""
    fixed = {
        "population": 16,
        "prompts": 4,
        "sigma": 0.05,
        "lr": 0.1,
        "lr_end": 0.2,
        "momentum": 0.3,
        "shaping": "zscore",
        "fitness": "score",
        "depths": (1.0,),
        "whitening": 0.0,
        "iterations": 12,
        "minutes": None,
        "probe_every": 3,
        "patience": 1000,
    }
    return FuraSConfig(**(fixed | changes))


class Landscape:
    """Each prompt has an optimum of its own around OPTIMUM, a level of its own and noise.

    The noise is a function of candidate and prompt, so that a repeated run meets the same.
    """

    def __init__(self, spread: float = 0.0, level: float = 0.0, noise_level: float = 0.0) -> None:
        rng = np.random.default_rng(1)
        offsets = rng.standard_normal((PROMPTS, SIZE)) * spread
        self.optima = OPTIMUM + offsets - offsets.mean(axis=0)
        self.levels = rng.uniform(0, level, PROMPTS)
        self.noise_level = noise_level
        self.calls: list[str] = []

    def energies(self, theta):
        self.calls.append("energies")
        return np.linspace(0.0, 2.0, theta.size, dtype=np.float32)

    def likelihood(self, candidates, prompts: Sequence[int], centre, first: int):
        self.calls.append("likelihood")
        apart = ((candidates[:, None] - self.optima[list(prompts)]) ** 2).sum(axis=2)
        unstable = np.sin(1e5 * candidates.sum(axis=1, dtype=np.float64)[:, None] + prompts)
        values = -apart - self.levels[list(prompts)] + self.noise_level * unstable
        return values.astype(np.float32), 10 * values.size

    def scores(self, candidates, prompts: Sequence[int]) -> Scores:
        reward, tokens = self.likelihood(candidates, prompts, None, 0)
        self.calls[-1] = "scores" if len(candidates) > 1 else "probe"
        return Scores(np.exp(reward), reward > -0.4, tokens // 2)


class Scripted(Landscape):
    """A landscape whose rewards are changed on their way."""

    def __init__(self, change: Callable[[np.ndarray], np.ndarray], **changes: float) -> None:
        super().__init__(**changes)
        self.change = change

    def likelihood(self, candidates, prompts, centre, first):
        values, tokens = super().likelihood(candidates, prompts, centre, first)
        return self.change(values).astype(np.float32), tokens


def never() -> None:
    return None


def run(settings_: FuraSConfig, evaluator, seed: int = 1, state: State | None = None):
    """Train to the end: (reason, state, progress of every iteration)."""
    state = state or State.fresh(settings_, seed, SIZE)
    seen: list[Progress] = []
    reason = train(settings_, state, PROMPTS, evaluator, lambda _, p: seen.append(p), never)
    return reason, state, seen


def distance(state: State) -> float:
    return float(np.linalg.norm(state.theta - OPTIMUM) / np.linalg.norm(OPTIMUM))


def stored(state: State) -> dict[str, np.ndarray]:
    """The state's arrays after a trip through a file."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **state.pack())
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as arrays:
        return dict(arrays)
