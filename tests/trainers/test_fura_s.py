"""The parts of FuRA-S, each against its equation written out naively."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trainers.fura_s import candidates, centred, draw_prompts, noise, shaped, update, whitened
from trainers.state import FuraSConfig, State

SEEDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**31, 2**32, 2**63 - 1, 2**63])
ITERATIONS = st.integers(0, 100_000)
PAIRS = st.integers(0, 255)
KEYS = st.tuples(SEEDS, ITERATIONS, PAIRS)
# Steps of 1/64 keep sums of rewards exact, so ties are ties.
REWARDS = st.integers(0, 64).map(lambda number: number / 64)
TABLES = st.tuples(st.integers(2, 8), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=REWARDS | st.just(math.nan))
)
VALUES = st.lists(st.integers(-9, 9), min_size=2, max_size=12).map(
    lambda numbers: np.array(numbers, dtype=np.float64)
)


def naive_centred(reward: np.ndarray) -> list[float]:
    """Equation (2) and the mean over prompts, one number at a time."""
    rows, columns = reward.shape
    sums = [0.0] * rows
    for j in range(columns):
        known = [float(r) for r in reward[:, j] if math.isfinite(r)]
        for i in range(rows):
            if math.isfinite(reward[i, j]):
                sums[i] += float(reward[i, j]) - math.fsum(known) / len(known)
    return [total / columns for total in sums]


def naive_zscore(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values))
    return [(v - mean) / spread for v in values]


def config(**changes) -> FuraSConfig:
    return FuraSConfig(**({"population": 4, "prompts": 2, "momentum": 0.0} | changes))


# --- noise


@given(KEYS, st.integers(1, 50))
@settings(deadline=None)
def test_noise_is_a_pure_function_of_its_key(key, size):
    first = noise(*key, size)
    assert first.shape == (size,)
    assert first.dtype == np.float32
    assert first.tobytes() == noise(*key, size).tobytes()


@given(KEYS, KEYS)
@settings(deadline=None)
def test_noise_differs_between_any_two_keys(first, second):
    assert (first == second) == bool((noise(*first, 16) == noise(*second, 16)).all())


def test_noise_of_neighbouring_keys_is_uncorrelated():
    seeds = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    keys = [(s, i, p) for s in seeds for i in (0, 1, 2, 99_999) for p in (0, 1, 255)]
    drawn = np.stack([noise(*key, 4096) for key in keys])
    correlation = np.corrcoef(drawn) - np.eye(len(keys))
    assert np.abs(correlation).max() < 6 / math.sqrt(4096)


def test_equal_shaped_matrices_never_share_noise():
    parts = noise(7, 3, 1, 12 * 2048).reshape(12, 2048)
    assert np.abs(np.corrcoef(parts) - np.eye(12)).max() < 6 / math.sqrt(2048)


def test_noise_is_standard_normal():
    drawn = noise(5, 0, 0, 1_000_000).astype(np.float64)
    assert np.isfinite(drawn).all()
    moments = [(drawn**k).mean() for k in (1, 2, 3, 4, 6)]
    np.testing.assert_allclose(moments, [0, 1, 0, 3, 15], atol=0.3)
    np.testing.assert_allclose(moments[:2], [0, 1], atol=0.005)
    for bound in (0.5, 1.0, 2.0, 3.0):
        wanted = math.erf(bound / math.sqrt(2))
        assert (np.abs(drawn) < bound).mean() == pytest.approx(wanted, abs=0.002)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_of_more_than_64_bits_is_refused(seed):
    with pytest.raises(OverflowError):
        noise(seed, 0, 0, 4)


# --- data


@given(SEEDS, st.integers(0, 50), st.integers(1, 40), st.integers(1, 60))
@settings(deadline=None)
def test_no_prompt_comes_twice_in_a_pass(seed, epoch, count, total):
    size = min(count, total)
    parts = total // size
    drawn = [draw_prompts(seed, epoch * parts + part, count, total) for part in range(parts)]
    assert [len(prompts) for prompts in drawn] == [size] * parts
    seen = [prompt for prompts in drawn for prompt in prompts]
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(total))
    assert total - len(seen) < size


@given(SEEDS, ITERATIONS, st.integers(1, 40), st.integers(1, 60))
@settings(deadline=None)
def test_prompts_are_a_pure_function_of_seed_and_iteration(seed, iteration, count, total):
    first = draw_prompts(seed, iteration, count, total)
    assert first == draw_prompts(seed, iteration, count, total)
    assert all(type(prompt) is int for prompt in first)


def test_a_pass_whose_parts_fit_holds_every_prompt_once():
    for epoch in range(3):
        drawn = [p for part in range(4) for p in draw_prompts(1, 4 * epoch + part, 6, 24)]
        assert sorted(drawn) == list(range(24))


def test_passes_and_seeds_are_shuffled_differently():
    orders = {tuple(draw_prompts(seed, epoch, 30, 30)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_prompts_left_over_by_one_pass_come_in_others():
    drawn = [p for iteration in range(40) for p in draw_prompts(2, iteration, 5, 9)]
    counts = np.bincount(drawn, minlength=9)
    assert counts.min() > 0.5 * counts.mean()


# --- equation (1)


def test_candidates_lie_antithetically_around_theta():
    theta = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    before = theta.copy()
    eps = [noise(1, 0, pair, 50) for pair in range(3)]
    population = candidates(theta, 0.05, eps)
    assert population.shape == (6, 50)
    assert population.dtype == np.float32
    assert (theta == before).all()
    for i in range(3):
        step = np.float32(0.05) * eps[i]
        assert (population[i] == theta + step).all()
        assert (population[3 + i] == theta - step).all()


# --- whitening


@given(
    st.lists(st.floats(0, 1e4, width=32), min_size=1, max_size=30),
    st.sampled_from([0.25, 0.5, 1.0]),
)
@settings(deadline=None)
def test_whitened_noise_equals_the_formula_and_has_root_mean_square_1(energies, exponent):
    scale = whitened(np.array(energies, dtype=np.float32), exponent)
    raw = [1 / math.sqrt((energy + 0.01) ** exponent) for energy in energies]
    size = math.sqrt(math.fsum(r * r for r in raw) / len(raw))
    assert scale.dtype == np.float32
    np.testing.assert_allclose(scale, [r / size for r in raw], rtol=1e-5)
    assert math.fsum(float(s) ** 2 for s in scale) / len(raw) == pytest.approx(1, rel=1e-5)


def test_full_whitening_gives_every_strong_coordinate_the_same_energy():
    energies = np.array([1, 4, 100, 10_000], dtype=np.float32)
    passed = whitened(energies, 1.0) ** 2 * energies
    np.testing.assert_allclose(passed, passed.mean(), rtol=0.02)


def test_equal_energies_leave_the_noise_isotropic():
    np.testing.assert_allclose(whitened(np.full(9, 0.3, dtype=np.float32), 0.5), 1, rtol=1e-6)


@pytest.mark.parametrize("bad", [-1e-6, math.nan, math.inf, -math.inf])
def test_energies_that_are_negative_or_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="energies"):
        whitened(np.array([1, bad, 2], dtype=np.float32), 0.5)


# --- equation (2)


@given(TABLES)
@settings(deadline=None)
def test_centring_equals_brute_force(reward):
    np.testing.assert_allclose(centred(reward), naive_centred(reward), atol=1e-12)


@given(TABLES)
@settings(deadline=None)
def test_an_errored_entry_counts_as_its_prompts_mean_and_not_as_zero(reward):
    filled = reward.astype(np.float64)
    for column in filled.T:
        known = column[np.isfinite(column)]
        column[~np.isfinite(column)] = known.mean() if known.size else 0.0
    np.testing.assert_allclose(centred(reward), naive_centred(filled), atol=1e-12)


@given(TABLES)
@settings(deadline=None)
def test_infinite_rewards_say_as_little_as_missing_ones(reward):
    infinite = np.where(np.isnan(reward), np.float32(-np.inf), reward)
    assert (centred(infinite) == centred(reward)).all()


@given(TABLES, st.data())
@settings(deadline=None)
def test_a_constant_added_to_a_prompt_changes_nothing(reward, data):
    added = data.draw(arrays(np.float32, reward.shape[1], elements=st.integers(-50, 50)))
    np.testing.assert_allclose(centred(reward + added), centred(reward), atol=1e-12)


def test_large_rewards_do_not_overflow():
    reward = np.array([[3e38, -3e38], [-3e38, -3e38], [3e38, np.nan]], dtype=np.float32)
    fitness = shaped(centred(reward), "zscore")
    assert fitness is not None
    assert np.isfinite(fitness).all()


def test_small_differences_beside_a_large_common_reward_are_kept():
    reward = np.float32(-8) + np.arange(4, dtype=np.float32)[:, None] * np.float32(2**-18)
    assert list(shaped(centred(reward), "ranks") * 6) == pytest.approx([-3, -1, 1, 3])


# --- equation (3)


@given(VALUES, st.sampled_from(["zscore", "ranks"]))
@settings(deadline=None)
def test_fitness_is_none_exactly_when_all_candidates_are_equal(values, shaping):
    fitness = shaped(values, shaping)
    assert (fitness is None) == (len(set(values)) == 1)
    if fitness is not None:
        assert fitness.dtype == np.float32
        assert fitness.mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)


@given(VALUES.filter(lambda values: len(set(values)) > 1))
@settings(deadline=None)
def test_zscore_equals_brute_force(values):
    np.testing.assert_allclose(shaped(values, "zscore"), naive_zscore(list(values)), rtol=1e-6)


@given(VALUES.filter(lambda values: len(set(values)) > 1))
@settings(deadline=None)
def test_ranks_equal_counting_with_ties_sharing_theirs(values):
    below = [sum(other < v for other in values) for v in values]
    equal = [sum(other == v for other in values) for v in values]
    ranks = [b + (e - 1) / 2 for b, e in zip(below, equal, strict=True)]
    wanted = [rank / (len(values) - 1) - 0.5 for rank in ranks]
    np.testing.assert_allclose(shaped(values, "ranks"), wanted, atol=1e-7)


def test_sums_of_the_same_rewards_in_another_order_tie():
    forward, backward = 0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1
    assert forward != backward
    ranks = shaped(np.array([forward, backward, 0.5, 0.9]), "ranks")
    assert ranks is not None
    assert ranks[0] == ranks[1]


@given(
    VALUES.filter(lambda values: len(set(values)) > 1),
    st.floats(1e-3, 1e3),
    st.floats(-100, 100),
    st.sampled_from(["zscore", "ranks"]),
)
@settings(deadline=None)
def test_scaled_and_shifted_values_are_shaped_alike(values, scale, shift, shaping):
    np.testing.assert_allclose(
        shaped(scale * values + shift, shaping), shaped(values, shaping), atol=1e-4
    )


@pytest.mark.parametrize("reward", [0.0, 0.1, 0.7, 1.0, -6.3])
@pytest.mark.parametrize("shape", [(2, 1), (24, 12), (32, 7)])
def test_rounding_of_equal_rewards_is_no_signal(reward, shape):
    assert shaped(centred(np.full(shape, reward, dtype=np.float32)), "zscore") is None


# --- equation (4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_update_equals_the_equation_written_naively(momentum):
    size, pairs, lr = 40, 5, 0.07
    rng = np.random.default_rng(0)
    settings_ = config(population=2 * pairs, momentum=momentum)
    state = State.fresh(settings_, 0, size)
    state.theta = rng.standard_normal(size).astype(np.float32)
    state.velocity = rng.standard_normal(size).astype(np.float32)
    theta, velocity = state.theta.astype(np.float64), state.velocity.astype(np.float64)
    fitness = rng.standard_normal(2 * pairs).astype(np.float32)
    eps = [noise(3, 0, pair, size) for pair in range(pairs)]

    update(state, settings_, fitness, eps, lr)

    signed = [*eps, *(-e for e in eps)]
    for d in range(size):
        step = sum(float(f) * float(e[d]) for f, e in zip(fitness, signed, strict=True))
        mean = momentum * velocity[d] + (1 - momentum) * step / (2 * pairs)
        assert state.velocity[d] == pytest.approx(mean, abs=1e-6)
        assert state.theta[d] == pytest.approx(theta[d] + lr * mean, abs=1e-6)
    assert state.theta.dtype == state.velocity.dtype == np.float32


def test_equal_halves_of_a_pair_do_not_move_theta():
    state = State.fresh(config(), 0, 10)
    eps = [noise(0, 0, pair, 10) for pair in range(2)]
    update(state, config(), np.array([0.5, -0.5, 0.5, -0.5], dtype=np.float32), eps, 1.0)
    assert not state.theta.any()


def test_update_never_writes_into_arrays_handed_out_before():
    state = State.fresh(config(), 0, 10)
    packed = state.pack()
    eps = [noise(0, 0, pair, 10) for pair in range(2)]
    update(state, config(), np.array([1, 1, -1, -1], dtype=np.float32), eps, 1.0)
    assert state.theta.any()
    assert not packed["theta"].any()
    assert not packed["velocity"].any()
