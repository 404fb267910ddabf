"""FuRA-S: evolution strategies on the block spectral coordinates of frozen INT4 weights.

Claim (MobileSpec): forward passes alone, scored by a verifier, train a personal expert in the
memory of inference.  The searched vector theta holds the relative changes of singular values of
``trainers.spectral``; theta = 0 is the base model.  One iteration, on prompts that all candidates
share (ES at Scale, arXiv 2509.24372; antithetic pairs as in Salimans et al., arXiv 1703.03864):

    eps_i ~ N(0, I) for P/2 pairs,   candidates  theta +- sigma eps_i            (1)
    R_ij   fitness of candidate i on prompt j
    A_ij = R_ij - mean_i R_ij                    per-prompt centring             (2)
    f_i  = z-score over candidates of mean_j A_ij                                (3)
    theta += lr * mean_i f_i eps_i                                               (4)

Noise comes from a counter-based generator keyed by (seed, iteration, pair) over the whole vector,
so nothing but the seed is stored and equal-shaped matrices never share noise.  theta is fp32 and
candidates are always built from it, never by adding and taking back noise.

*Depth.*  An iteration changes only the last k layers; ``depths`` are gone through in order, each
for an equal share of the budget.  What all candidates have in common, the layers below, then runs
once for the whole population and is kept between iterations.  The gain per candidate of (4) is no
smaller for the last 3 layers than for all 30 (``docs/log.md``), at a tenth of the cost.  So a run
starts shallow and goes deeper only for what the last layers cannot express.  The order is ours;
ABSignSGD's depth-biased blocks (ICLR 2026) have the same motive.

*Whitening.*  A few coordinates carry most of a matrix's output and bound the step that all can
take.  So eps is drawn with a standard deviation of (energy + 0.01)^(-w/2), w = ``whitening``.  The
energy of a coordinate is the mean square of what passes through it on training texts
(``Evaluator.energies``), relative to its matrix: a statistic of forward passes, taken once per run.

sigma and lr grow with the inverse root of the share of layers, which keeps the size of a change.

Other choices of ours where the sources are silent: a momentum average of (4), a learning rate that
falls linearly to ``lr_end`` of its start, and the ``auto`` fitness, which follows the
log-likelihood of an accepted answer until enough passes and the mix with the verifier afterwards.
What is left out: mirrored prompts, weight decay, covariance adaptation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from trainers.state import FuraSConfig, State

FloatArray = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]
FitnessKind = Literal["score", "likelihood", "mix"]

MIX_WEIGHT = 0.3
"""Weight of the likelihood in a mix; the verifier's score has the rest."""
PROBE_PROMPTS = 16
"""Training prompts that a probe of theta asks, others each time."""
WARM_UNTIL = 0.5
"""Pass rate at which an ``auto`` fitness turns from the likelihood to the mix."""


@dataclass(frozen=True)
class Scores:
    """What the verifier said of P candidates on N prompts.

    Attributes:
        score: (P, N) fp32 in [0, 1]; NaN where the verifier or the row errored.
        passed: (P, N) bool.
        tokens: tokens processed.
    """

    score: FloatArray
    passed: npt.NDArray[np.bool_]
    tokens: int


class Evaluator(Protocol):
    """Rolls candidates out and scores them; prompts are numbers of training prompts."""

    def scores(self, candidates: FloatArray, prompts: Sequence[int]) -> Scores:
        """Generate and grade: candidates (P, D)."""

    def energies(self, theta: FloatArray) -> FloatArray:
        """(D,) how much passes through each coordinate on training texts, relative to its matrix.

        ``theta``: (D,), the expert to measure under.
        """

    def likelihood(
        self,
        candidates: FloatArray,
        prompts: Sequence[int],
        centre: FloatArray,
        first: int,
    ) -> tuple[FloatArray, int]:
        """Mean log-likelihood per token of the accepted answers, (P, N), and tokens processed.

        ``centre``: (D,) theta, which the candidates are drawn around: what hardly differs between
        them may be taken from it.  ``first``: the lowest layer in which they differ.
        """


@dataclass(frozen=True)
class Progress:
    """What one iteration reports."""

    iteration: int
    iterations: int
    fitness: FitnessKind
    mean_reward: float | None
    best_reward: float | None
    pass_rate: float | None
    depth: int
    zero_variance_share: float
    non_finite: int
    tokens_per_second: float
    elapsed_s: float
    eta_s: float


def noise(seed: int, iteration: int, pair: int, size: int) -> FloatArray:
    """eps of one antithetic pair, (size,) fp32, a pure function of its arguments."""
    key = np.array([seed, (iteration << 32) | pair], dtype=np.uint64)
    generator = np.random.Generator(np.random.Philox(key=key))
    drawn: FloatArray = generator.standard_normal(size, dtype=np.float32)
    return drawn


def draw_prompts(seed: int, iteration: int, count: int, total: int) -> list[int]:
    """Prompts of one iteration: the next part of a shuffled pass over all of them.

    Each pass is shuffled anew; no prompt comes twice in a pass.  The iteration is the data cursor.
    """
    count = min(count, total)
    epoch, part = divmod(iteration, total // count)
    key = np.array([seed, (1 << 63) | epoch], dtype=np.uint64)
    order = np.random.Generator(np.random.Philox(key=key)).permutation(total)
    return [int(p) for p in order[part * count : (part + 1) * count]]


def depth_at(done: float, depths: Sequence[float], layers: int) -> int:
    """Number of layers, from the top, that an iteration changes: at least one.

    ``done``: share of the budget that is used up; each of ``depths`` has an equal part of it.
    """
    part = min(int(done * len(depths)), len(depths) - 1)
    return max(1, round(depths[part] * layers))


def candidates(theta: FloatArray, sigma: float, eps: Sequence[FloatArray]) -> FloatArray:
    """Equation (1): (P, D) fp32, all plus halves first, then all minus halves."""
    steps = sigma * np.stack(eps)
    return np.concatenate([theta + steps, theta - steps])


def whitened(energies: FloatArray, exponent: float) -> FloatArray:
    """Standard deviations of the noise, (D,) with root mean square 1, from relative energies.

    Raises ``ValueError`` if an energy is negative or not finite.
    """
    if not np.isfinite(energies).all() or (energies < 0).any():
        raise ValueError("the coordinates' energies are not finite numbers")
    scale = (energies.astype(np.float64) + 0.01) ** (-exponent / 2)
    result: FloatArray = (scale / np.sqrt((scale**2).mean())).astype(np.float32)
    return result


def centred(reward: FloatArray) -> Values:
    """Equation (2) then the mean over prompts: (P, N) -> (P,) fp64.

    NaN entries (errored) say nothing: they take their prompt's mean.
    """
    known = np.isfinite(reward)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, reward, 0).sum(axis=0, dtype=np.float64) / count
    advantage = np.where(known, reward - mean, 0.0)
    means: Values = advantage.mean(axis=1)
    return means


def shaped(values: Values, shaping: str) -> FloatArray | None:
    """Equation (3): fitness with mean 0; ``None`` when all candidates are equally good."""
    spread = float(values.std())
    # Below rounding of the mean there is no signal, only the order of additions.
    if spread <= 1e-7 * max(1.0, float(np.abs(values).max())):
        return None
    standard = (values - values.mean()) / spread
    if shaping == "ranks":
        standard = _ranks(standard)
    result: FloatArray = standard.astype(np.float32)
    return result


def _ranks(standard: Values) -> Values:
    """Ranks over [-1/2, 1/2]; equals share their mean rank, or minus would always beat plus."""
    # Rounded: sums of the same rewards in another order are ties, too.
    _, group, count = np.unique(np.round(standard, 5), return_inverse=True, return_counts=True)
    ranks: Values = (np.cumsum(count) - (count + 1) / 2)[group]
    return ranks / (len(standard) - 1) - 0.5


def update(
    state: State, config: FuraSConfig, fitness: FloatArray, eps: Sequence[FloatArray], lr: float
) -> None:
    """Equation (4) with the momentum average, in place; ``fitness`` in the candidates' order."""
    half = config.population // 2
    weights = (fitness[:half] - fitness[half:]).astype(np.float64) / config.population
    # float64 and a fixed order: the sum must not depend on the BLAS in use.
    step = np.zeros(state.theta.size, dtype=np.float64)
    for weight, direction in zip(weights, eps, strict=True):
        step += weight * direction
    state.velocity = (config.momentum * state.velocity + (1 - config.momentum) * step).astype(
        np.float32
    )
    state.theta = (state.theta + lr * state.velocity).astype(np.float32)


def fitness_kind(config: FuraSConfig, state: State) -> FitnessKind:
    """Which fitness the next iteration follows."""
    if config.fitness != "auto":
        return config.fitness
    return "likelihood" if state.warm else "mix"


def train(
    config: FuraSConfig,
    state: State,
    prompt_count: int,
    evaluator: Evaluator,
    on_iteration: Callable[[State, Progress], None],
    should_stop: Callable[[], str | None],
    layers: int = 1,
) -> str:
    """Run until a budget is used up, progress ends or ``should_stop`` names a reason.

    ``on_iteration`` is called after every iteration with the new state: a checkpoint taken there
    resumes bit for bit.  ``layers``: of the model; their coordinates are equally many and follow
    each other in theta.  Returns the reason: iterations, minutes, plateau, flat (every iteration
    so far had equal rewards), or what ``should_stop`` returned.
    """
    if prompt_count < 1:
        raise ValueError("there are no training prompts")
    while (reason := _finished(config, state) or should_stop()) is None:
        if state.iteration == 0 and config.whitening:
            state.scale = whitened(evaluator.energies(state.theta), config.whitening)
        progress = step(config, state, prompt_count, evaluator, layers)
        on_iteration(state, progress)
    return reason


def _finished(config: FuraSConfig, state: State) -> str | None:
    if state.iteration >= config.iterations:
        return "iterations"
    if config.minutes is not None and state.elapsed_s >= 60 * config.minutes:
        return "minutes"
    if state.iteration < config.patience:
        return None
    if state.zero_variance == state.iteration:
        return "flat"
    return "plateau" if state.iteration - state.best_at >= config.patience else None


def step(
    config: FuraSConfig, state: State, prompt_count: int, evaluator: Evaluator, layers: int
) -> Progress:
    """One iteration, in place, in the order of the module's equations."""
    started = time.monotonic()
    prompts = draw_prompts(state.seed, state.iteration, config.prompts, prompt_count)
    kind = fitness_kind(config, state)
    done = _done(config, state)
    depth = depth_at(done, config.depths, layers)
    first, growth = layers - depth, math.sqrt(layers / depth)
    eps = _directions(config, state, first * (state.theta.size // layers))
    population = candidates(state.theta, config.sigma * growth, eps)  # (1)
    rewards, values, tokens, passed = _evaluate(
        kind, population, prompts, evaluator, first, state.theta
    )
    fitness = shaped(values, config.shaping)  # (3)
    if fitness is None:
        state.zero_variance += 1
    else:
        lr = config.lr * (1 - (1 - config.lr_end) * done)
        update(state, config, fitness, eps, lr * growth)  # (4)
    state.non_finite += sum(int((~np.isfinite(r)).sum()) for r in rewards)
    state.iteration += 1
    if kind == "likelihood" and state.iteration % config.probe_every == 0:
        turn = state.iteration // config.probe_every
        asked = draw_prompts(state.seed, turn, PROBE_PROMPTS, prompt_count)
        probe = evaluator.scores(state.theta[None], asked)
        passed, tokens = _pass_rate(probe), tokens + probe.tokens
    _follow(config, state, rewards[0], passed)
    seconds = time.monotonic() - started
    state.elapsed_s += seconds
    speed = tokens / seconds if seconds else 0.0  # a coarse clock may not have moved
    return _report(config, state, kind, depth, rewards[0], speed)


def _directions(config: FuraSConfig, state: State, start: int) -> list[FloatArray]:
    """eps of every pair, zero before coordinate ``start``."""
    drawn = []
    for pair in range(config.population // 2):
        eps = np.zeros_like(state.theta)
        eps[start:] = noise(state.seed, state.iteration, pair, state.theta.size - start)
        eps *= state.scale
        drawn.append(eps)
    return drawn


def _evaluate(
    kind: FitnessKind,
    population: FloatArray,
    prompts: Sequence[int],
    evaluator: Evaluator,
    first: int,
    theta: FloatArray,
) -> tuple[tuple[FloatArray, ...], Values, int, float | None]:
    """Rewards (P, N), the one to report first; values (P,); tokens; share passed if graded."""
    if kind == "likelihood":
        reward, tokens = evaluator.likelihood(population, prompts, theta, first)
        return (reward,), centred(reward), tokens, None
    scores = evaluator.scores(population, prompts)
    values, rate = centred(scores.score), _pass_rate(scores)
    if kind == "score":
        return (scores.score,), values, scores.tokens, rate
    likelihood, more = evaluator.likelihood(population, prompts, theta, first)
    values = _mixed(values, centred(likelihood))
    return (scores.score, likelihood), values, scores.tokens + more, rate


def _pass_rate(scores: Scores) -> float | None:
    """Share passed of what could be graded: what errored has not failed."""
    known = np.isfinite(scores.score)
    return float(scores.passed[known].mean()) if known.any() else None


def _mixed(score: Values, likelihood: Values) -> Values:
    """Weighted sum of the two z-scores; a flat one adds nothing."""
    total = np.zeros_like(score)
    for weight, part in ((1 - MIX_WEIGHT, score), (MIX_WEIGHT, likelihood)):
        standard = shaped(part, "zscore")
        if standard is not None:
            total += weight * standard
    return total


def _done(config: FuraSConfig, state: State) -> float:
    """Share of the budget that is used up, of iterations or minutes, whichever is more."""
    done = state.iteration / config.iterations
    if config.minutes is not None:
        done = max(done, state.elapsed_s / (60 * config.minutes))
    return min(1.0, done)


def _follow(config: FuraSConfig, state: State, reward: FloatArray, passed: float | None) -> None:
    """Update the pass rate, the end of the warm-up and the smoothed progress measure."""
    if passed is not None:
        state.pass_rate = passed
    enough = passed is not None and passed >= WARM_UNTIL
    # A likelihood that gives no more ends the warm-up, too: the verifier has its turn first.
    if state.warm and (enough or state.iteration - state.best_at >= config.patience):
        state.warm = False
        state.trend, state.best, state.best_at = math.nan, -math.inf, state.iteration
        return
    if not np.isfinite(reward).any():
        return
    now = float(reward[np.isfinite(reward)].mean())
    # Thirty iterations of memory: prompts differ from one iteration to the next.
    state.trend = now if math.isnan(state.trend) else 0.97 * state.trend + 0.03 * now
    if state.trend > state.best + 1e-4:
        state.best, state.best_at = state.trend, state.iteration


def _report(
    config: FuraSConfig,
    state: State,
    kind: FitnessKind,
    depth: int,
    reward: FloatArray,
    speed: float,
) -> Progress:
    known = np.isfinite(reward)
    per_candidate = [float(r[k].mean()) for r, k in zip(reward, known, strict=True) if k.any()]
    left = (config.iterations - state.iteration) * state.elapsed_s / state.iteration
    if config.minutes is not None:
        left = min(left, 60 * config.minutes - state.elapsed_s)
    return Progress(
        iteration=state.iteration,
        iterations=config.iterations,
        fitness=kind,
        depth=depth,
        mean_reward=float(np.mean(per_candidate)) if per_candidate else None,
        best_reward=max(per_candidate, default=None),
        pass_rate=None if math.isnan(state.pass_rate) else state.pass_rate,
        zero_variance_share=state.zero_variance / state.iteration,
        non_finite=state.non_finite,
        tokens_per_second=speed,
        elapsed_s=state.elapsed_s,
        eta_s=max(0.0, left),
    )
