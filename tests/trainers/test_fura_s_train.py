"""Whole runs of FuRA-S on objectives with a known optimum: learning and resuming."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainers.landscapes import (
    OPTIMUM,
    PROMPTS,
    SIZE,
    Landscape,
    Scripted,
    config,
    distance,
    never,
    run,
    stored,
)
from trainers.fura_s import Scores, depth_at, draw_prompts, noise, step, train, whitened
from trainers.state import State


def without_clock(state: State) -> list[object]:
    rest = {name: value for name, value in vars(state).items() if name != "elapsed_s"}
    return [v.tobytes() if isinstance(v, np.ndarray) else repr(v) for v in rest.values()]


# --- learning


@pytest.mark.parametrize("shaping", ["zscore", "ranks"])
@pytest.mark.parametrize("fitness", ["score", "likelihood", "mix", "auto"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_quadratic_is_approached_to_a_tenth_of_the_distance(shaping, fitness, momentum):
    settings_ = config(
        shaping=shaping, fitness=fitness, momentum=momentum, iterations=80, lr_end=0.05
    )
    reason, state, seen = run(settings_, Landscape())
    assert reason == "iterations"
    assert distance(state) < 0.1
    assert seen[-1].mean_reward > seen[0].mean_reward
    assert state.pass_rate == 1.0


@pytest.mark.parametrize("shaping", ["zscore", "ranks"])
@pytest.mark.parametrize("seed", [1, 2**63 - 1])
def test_noisy_prompts_of_different_levels_are_learnt_to_a_third_of_the_distance(shaping, seed):
    settings_ = config(
        shaping=shaping, fitness="likelihood", population=32, iterations=80, lr_end=0.05
    )
    _, state, _ = run(settings_, Landscape(spread=0.1, level=20.0, noise_level=0.05), seed)
    assert distance(state) < 1 / 3


def test_one_iteration_equals_the_equations_written_naively():
    settings_ = config(fitness="likelihood")
    landscape = Landscape(spread=0.1, level=3.0)
    _, state, _ = run(config(fitness="likelihood", iterations=5), landscape)
    theta, velocity = state.theta.astype(np.float64), state.velocity.astype(np.float64)

    prompts = draw_prompts(state.seed, 5, 4, PROMPTS)
    eps = [noise(state.seed, 5, pair, SIZE).astype(np.float64) for pair in range(8)]
    signed = [*eps, *(-e for e in eps)]
    reward = np.array(
        [[landscape.likelihood((theta + 0.05 * e)[None], [j], theta, 0)[0][0, 0] for j in prompts]
         for e in signed]
    )  # fmt: skip
    advantage = (reward - reward.mean(axis=0)).mean(axis=1)
    fitness = (advantage - advantage.mean()) / advantage.std()
    velocity = 0.3 * velocity + 0.7 * sum(f * e for f, e in zip(fitness, signed, strict=True)) / 16
    lr = 0.1 + (0.02 - 0.1) * 5 / 12

    step(settings_, state, PROMPTS, landscape, 1)
    np.testing.assert_allclose(state.theta, theta + lr * velocity, atol=2e-5)


def test_constants_per_prompt_and_a_common_scale_of_rewards_change_nothing():
    levels = np.array([3.0, -1.0, 0.5, 7.0])
    settings_ = config(fitness="likelihood", iterations=4, probe_every=100)
    _, plain, _ = run(settings_, Scripted(lambda r: r))
    _, moved, _ = run(settings_, Scripted(lambda r: r + levels))
    _, scaled, _ = run(settings_, Scripted(lambda r: 0.25 * r))
    np.testing.assert_allclose(moved.theta, plain.theta, atol=1e-4)
    assert scaled.theta.tobytes() == plain.theta.tobytes()
    assert plain.theta.any()


def test_seeds_give_different_runs_and_the_same_seed_the_same():
    thetas = [run(config(), Landscape(), seed)[1].theta.tobytes() for seed in (1, 1, 2, 2**63 - 1)]
    assert thetas[0] == thetas[1]
    assert len(set(thetas)) == 3


def test_mix_is_the_weighted_sum_of_both_z_scores():
    settings_, landscape = config(fitness="mix"), Landscape(spread=0.3)
    state = State.fresh(settings_, 1, SIZE)
    step(settings_, state, PROMPTS, landscape, 1)

    prompts = draw_prompts(1, 0, 4, PROMPTS)
    eps = [noise(1, 0, pair, SIZE) for pair in range(8)]
    signed = np.stack([*eps, *(-e for e in eps)])
    population = np.float32(0.05) * signed
    both = (
        landscape.scores(population, prompts).score,
        landscape.likelihood(population, prompts, None, 0)[0],
    )
    score, likelihood = (part.astype(np.float64).mean(axis=1) for part in both)
    total = 0.7 * (score - score.mean()) / score.std()
    total += 0.3 * (likelihood - likelihood.mean()) / likelihood.std()
    wanted = 0.1 * 0.7 * (total / total.std()) @ signed / 16
    np.testing.assert_allclose(state.theta, wanted, atol=1e-5)


def test_a_flat_part_of_a_mix_adds_nothing():
    class FlatScores(Landscape):
        def scores(self, candidates, prompts):
            scores = super().scores(candidates, prompts)
            return Scores(np.zeros_like(scores.score), scores.passed, scores.tokens)

    _, mixed, _ = run(config(fitness="mix"), FlatScores())
    _, alone, _ = run(config(fitness="likelihood"), Landscape())
    np.testing.assert_allclose(mixed.theta, alone.theta, atol=1e-6)


# --- resuming


@given(
    st.integers(0, 12),
    st.sampled_from(["score", "likelihood", "mix", "auto"]),
    st.sampled_from(["zscore", "ranks"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 2**63 - 1),
)
@settings(deadline=None, max_examples=40)
def test_a_run_stopped_anywhere_and_resumed_ends_bit_for_bit_the_same(
    k, fitness, shaping, whitening, seed
):
    settings_ = config(
        fitness=fitness, shaping=shaping, whitening=whitening, lr=0.3, depths=(0.5, 1.0)
    )
    landscape = Landscape(spread=0.1, level=1.0, noise_level=0.02)
    reason, whole, progress = run(settings_, landscape, seed)
    assert reason == "iterations"

    first = State.fresh(settings_, seed, SIZE)
    pauses = iter([None] * k)
    train(settings_, first, PROMPTS, landscape, lambda *_: None, lambda: next(pauses, "paused"))
    assert first.iteration == k
    _, resumed, rest = run(settings_, landscape, state=State.unpack(stored(first)))
    assert without_clock(resumed) == without_clock(whole)
    assert [p.mean_reward for p in rest] == [p.mean_reward for p in progress[k:]]
    assert [p.fitness for p in rest] == [p.fitness for p in progress[k:]]


def test_a_checkpoint_of_any_iteration_resumes_although_the_run_went_on():
    settings_, landscape = config(fitness="auto", lr=0.3), Landscape()
    state = State.fresh(settings_, 1, SIZE)
    kept: list[dict[str, np.ndarray]] = []
    train(settings_, state, PROMPTS, landscape, lambda s, _: kept.append(s.pack()), never)
    assert len(kept) == 12
    for arrays in kept:
        resumed = run(settings_, landscape, state=State.unpack(arrays))[1]
        assert without_clock(resumed) == without_clock(state)


# --- the auto fitness


class Rates(Landscape):
    """Passes by a script: one pass rate for each time that something is generated."""

    def __init__(self, *rates: float) -> None:
        super().__init__()
        self.rates = list(rates)

    def scores(self, candidates, prompts):
        scores = super().scores(candidates, prompts)
        rate = self.rates.pop(0)
        passed = np.arange(scores.score.size) < rate * scores.score.size
        return Scores(scores.score, passed.reshape(scores.score.shape), scores.tokens)


def test_auto_follows_the_likelihood_until_enough_passes_and_never_again():
    evaluator = Rates(0.0, 0.25, 0.5, *[0.0] * 11)
    _, state, seen = run(config(fitness="auto", iterations=20), evaluator)
    kinds = [p.fitness for p in seen]
    assert kinds[:9] == ["likelihood"] * 9
    assert "likelihood" not in kinds[9:]
    assert evaluator.calls[:12] == ["likelihood", "likelihood", "likelihood", "probe"] * 3
    assert evaluator.calls[12] == "scores"
    assert not state.warm
    assert [p.pass_rate for p in seen[:10]] == [None] * 2 + [0.0] * 3 + [0.25] * 3 + [0.5, 0.0]


def test_progress_is_measured_anew_after_the_switch():
    evaluator = Rates(0.0, 1.0, *[1.0] * 6)
    settings_ = config(fitness="auto", iterations=6, lr=1e-6)
    _, state, _ = run(settings_, evaluator)
    assert (state.best, state.best_at) == (-math.inf, 6)
    assert math.isnan(state.trend)


@pytest.mark.parametrize(
    ("fitness", "calls"),
    [("score", ["scores"]), ("mix", ["scores", "likelihood"]), ("likelihood", ["likelihood"])],
)
def test_a_chosen_fitness_is_kept(fitness, calls):
    evaluator = Landscape()
    _, state, seen = run(config(fitness=fitness, iterations=5, probe_every=100), evaluator)
    assert {p.fitness for p in seen} == {fitness}
    assert evaluator.calls == calls * 5
    assert not state.warm


# --- depth


class Watched(Landscape):
    """Keeps the candidates of every evaluation that is no probe, and the first layer it is told."""

    def __init__(self):
        super().__init__()
        self.seen: list[tuple[int | None, np.ndarray]] = []

    def scores(self, candidates, prompts):
        if len(candidates) > 1:
            self.seen.append((None, candidates))
        reward, tokens = super().likelihood(candidates, prompts, None, 0)
        return Scores(np.exp(reward), reward > -0.4, tokens)

    def likelihood(self, candidates, prompts, centre, first):
        self.seen.append((first, candidates))
        return super().likelihood(candidates, prompts, centre, first)


@pytest.mark.parametrize("fitness", ["score", "likelihood", "mix"])
def test_an_iteration_changes_only_the_layers_from_the_first_it_names(fitness):
    settings_ = config(fitness=fitness, depths=(0.25, 0.5, 1.0), iterations=40, momentum=0.0)
    watched = Watched()
    state = State.fresh(settings_, 3, SIZE)
    firsts = set()
    for _ in range(40):
        before = state.theta.copy()
        watched.seen.clear()
        progress = step(settings_, state, PROMPTS, watched, 4)
        first = 4 - progress.depth
        start = first * (SIZE // 4)
        assert {told for told, _ in watched.seen} <= {None, first}
        for _, population in watched.seen:
            assert (population[:, :start] == before[:start]).all()
            assert (population[:, start:] != population[0, start:]).any(axis=0).all()
        assert (state.theta[:start] == before[:start]).all()
        assert (state.theta[start:] != before[start:]).all()
        firsts.add(first)
    assert firsts == {0, 2, 3}


@pytest.mark.parametrize("fitness", ["score", "likelihood", "mix"])
def test_the_size_of_a_change_does_not_depend_on_the_depth(fitness):
    """sigma and lr grow by sqrt(layers / depth), written out for one layer of four."""
    settings_ = config(fitness=fitness, depths=(0.25,), momentum=0.0)
    watched = Watched()
    state = State.fresh(settings_, 3, SIZE)
    step(settings_, state, PROMPTS, watched, 4)

    prompts, start = draw_prompts(3, 0, 4, PROMPTS), 3 * SIZE // 4
    eps = np.zeros((8, SIZE))
    for pair in range(8):
        eps[pair, start:] = noise(3, 0, pair, SIZE - start)
    signed = np.concatenate([eps, -eps])
    np.testing.assert_allclose(watched.seen[0][1], 0.05 * 2 * signed, rtol=1e-5)

    population = (0.05 * 2 * signed).astype(np.float32)
    parts = []
    if fitness != "likelihood":
        parts.append((0.7, Landscape().scores(population, prompts).score))
    if fitness != "score":
        parts.append((0.3, Landscape().likelihood(population, prompts, None, 0)[0]))
    total = np.zeros(16)
    for weight, reward in parts:
        mean = reward.astype(np.float64).mean(axis=1)
        total += weight * (mean - mean.mean()) / mean.std()
    wanted = 0.1 * 2 * (total / total.std()) @ signed / 16
    np.testing.assert_allclose(state.theta, wanted, atol=1e-5)


def test_depths_come_in_order_each_for_an_equal_share_of_the_budget():
    depths = (0.1, 0.1, 0.7, 0.01)
    taken = [depth_at(done / 1000, depths, 10) for done in range(1001)]
    assert taken == [1] * 500 + [7] * 250 + [1] * 251


def test_the_budget_that_is_further_used_up_sets_the_depth(clock):
    class Slow(Landscape):
        def scores(self, candidates, prompts):
            clock.now += 30
            return super().scores(candidates, prompts)

    def depths(**budget):
        settings_ = config(depths=(0.25, 1.0), iterations=10, **budget)
        seen = []
        train(
            settings_,
            State.fresh(settings_, 1, SIZE),
            PROMPTS,
            Slow(),
            lambda _, progress: seen.append(progress.depth),
            never,
            4,
        )
        return seen

    assert depths() == [1] * 5 + [4] * 5
    assert depths(minutes=3.0) == [1] * 3 + [4] * 3
    assert depths(minutes=60.0) == [1] * 5 + [4] * 5


# --- whitening


def test_candidates_spread_by_sigma_times_scale_in_every_coordinate():
    settings_ = config(fitness="likelihood", population=512, whitening=0.5, iterations=1)
    watched = Watched()
    _, state, _ = run(settings_, watched)
    scale = whitened(watched.energies(np.zeros(SIZE)), 0.5)
    assert (state.scale == scale).all()
    assert scale.max() > 2 * scale.min()
    [(_, population)] = watched.seen
    drawn = np.stack([noise(1, 0, pair, SIZE) for pair in range(256)])
    np.testing.assert_allclose(population[:256], 0.05 * scale * drawn, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(population.std(axis=0) / scale, 0.05, rtol=0.2)


def test_whitened_noise_is_that_of_the_changed_layers_own_coordinates():
    settings_ = config(fitness="likelihood", whitening=1.0, depths=(0.5,), iterations=1)
    watched = Watched()
    state = State.fresh(settings_, 1, SIZE)
    train(settings_, state, PROMPTS, watched, lambda *_: None, never, 4)
    half = SIZE // 2
    drawn = np.stack([noise(1, 0, pair, half) for pair in range(8)])
    wanted = 0.05 * np.sqrt(2) * state.scale[half:] * drawn
    np.testing.assert_allclose(watched.seen[0][1][:8, half:], wanted, rtol=1e-5)


@pytest.mark.parametrize(("whitening", "times"), [(0.0, 0), (0.5, 1)])
def test_energies_are_measured_once_before_the_first_iteration(whitening, times):
    settings_, landscape = config(fitness="score", whitening=whitening), Landscape()
    run(settings_, landscape)
    assert landscape.calls == ["energies"] * times + ["scores"] * 12


def test_energies_are_measured_under_the_expert_that_training_starts_from():
    class Asked(Landscape):
        def energies(self, theta):
            self.theta = theta.copy()
            return super().energies(theta)

    asked, start = Asked(), np.linspace(-1, 1, SIZE, dtype=np.float32)
    state = State.fresh(config(whitening=0.5), 1, SIZE)
    state.theta = start.copy()
    run(config(whitening=0.5), asked, state=state)
    assert (asked.theta == start).all()


def test_a_run_that_goes_on_keeps_its_scale_and_measures_nothing():
    settings_ = config(fitness="score", whitening=0.5, iterations=6)
    state = run(config(fitness="score", whitening=0.5, iterations=3), Landscape())[1]
    landscape = Landscape()
    resumed = run(settings_, landscape, state=State.unpack(stored(state)))[1]
    assert landscape.calls == ["scores"] * 3
    assert resumed.scale.tobytes() == state.scale.tobytes()


def test_energies_that_are_no_numbers_end_the_run_before_it_begins():
    class Broken(Landscape):
        def energies(self, theta):
            return np.full_like(theta, np.nan)

    broken, state = Broken(), State.fresh(config(), 1, SIZE)
    with pytest.raises(ValueError, match="energies"):
        run(config(whitening=0.5), broken, state=state)
    assert broken.calls == []
    assert state.iteration == 0


class Uneven(Landscape):
    """A coordinate's curvature is its energy, and most of it is in few coordinates."""

    curvature = np.geomspace(30, 0.003, SIZE).astype(np.float32)

    def energies(self, theta):
        return self.curvature / self.curvature.mean()

    def likelihood(self, candidates, prompts, centre, first):
        self.calls.append("likelihood")
        loss = (self.curvature * (candidates - OPTIMUM) ** 2).sum(axis=1)
        return np.repeat(-loss[:, None], len(prompts), axis=1), 1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whitening_learns_more_where_few_coordinates_carry_most(seed):
    losses = []
    for whitening in (0.0, 0.5):
        settings_ = config(
            fitness="likelihood", whitening=whitening, momentum=0.0, iterations=60, lr_end=0.05
        )
        _, state, _ = run(settings_, Uneven(), seed)
        losses.append(-Uneven().likelihood(state.theta[None], [0], None, 0)[0].item())
    assert losses[1] < losses[0] / 2
