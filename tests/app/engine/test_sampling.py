"""Truncations against brute force, draws against their distribution, random streams of rows."""

from __future__ import annotations

from app.engine.sampling import Sampling, choose, stream_key, truncate  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

Array = npt.NDArray[np.float32]


def probabilities(logits: Array) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return weights / weights.sum()


def kept(logits: Array, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that survive, by the definitions, one token at a time."""
    p = probabilities(logits)
    best = int(np.argmax(logits))
    survivors = {best}
    for token in range(len(logits)):
        better = [t for t in range(len(logits)) if p[t] > p[token]]
        in_k = not 0 < top_k < len(logits) or len(better) < top_k
        in_p = top_p >= 1 or sum(p[t] for t in better) < top_p
        in_min = min_p <= 0 or p[token] >= min_p * p[best]
        if in_k and in_p and in_min:
            survivors.add(token)
    return survivors


def surviving(logits: Array, top_k: int, top_p: float, min_p: float) -> set[int]:
    sampling = Sampling(temperature=1, top_k=top_k, top_p=top_p, min_p=min_p)
    [got] = np.array(truncate(mx.array(logits[None]), [sampling]))
    alive = {int(t) for t in np.flatnonzero(got > -np.inf)}
    for token in alive:
        assert got[token] == logits[token]
    return alive


@given(
    st.permutations(range(12)),
    st.integers(1, 12),
    st.integers(0, 15),
    st.sampled_from([0.0, 0.1, 0.31, 0.5, 0.93, 1.0]),
    st.sampled_from([0.0, 0.01, 0.2, 0.5, 1.0]),
)
def test_truncation_keeps_what_the_definitions_keep(
    order: list[int], size: int, top_k: int, top_p: float, min_p: float
) -> None:
    # Different logits at distances at which no sum of probabilities meets a threshold.
    logits = np.array([0.613 * i + 0.0371 * i * i for i in order[:size]], np.float32)
    assert surviving(logits, top_k, top_p, min_p) == kept(logits, top_k, top_p, min_p)


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=30),
    st.integers(0, 40),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_truncation_of_anything_keeps_the_best_and_never_a_worse_one_before_a_better(
    values: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    logits = np.array(values, np.float32)
    alive = surviving(logits, top_k, top_p, min_p)
    assert logits[list(alive)].max() == logits.max()
    worst = logits[list(alive)].min()
    assert {int(t) for t in np.flatnonzero(logits > worst)} <= alive
    if top_k > 0:
        assert len(alive) <= max(top_k, 1)


@pytest.mark.parametrize("top_k", [0, 5, 6, 10_000])
def test_top_k_of_nothing_or_of_the_whole_vocabulary_keeps_everything(top_k: int) -> None:
    logits = np.arange(5, dtype=np.float32)
    assert surviving(logits, top_k, 1.0, 0.0) == set(range(5))
    [token] = choose(mx.array(logits[None]), [keyed(Sampling(temperature=1, top_k=top_k))]).tolist()
    assert 0 <= token < 5


def keyed(sampling: Sampling, count: int = 0) -> tuple[Sampling, int]:
    return sampling, stream_key(sampling, count)


def draws(logits: Array, sampling: Sampling, count: int) -> list[int]:
    """``count`` tokens of one row, as it draws them one after another."""
    batch = mx.array(np.tile(logits, (count, 1)))
    tokens: list[int] = choose(batch, [keyed(sampling, step) for step in range(count)]).tolist()
    return tokens


def chi_square(tokens: list[int], p: npt.NDArray[np.float64]) -> float:
    found = np.bincount(tokens, minlength=len(p))
    assert (found[p == 0] == 0).all()
    expected = len(tokens) * p[p > 0]
    return float(((found[p > 0] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_frequencies_of_the_distribution(temperature: float) -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))
    tokens = draws(logits, Sampling(temperature=temperature, seed=7), 1000)
    # 99.9 % of chi square with 4 degrees of freedom is below 18.5; the seed is fixed.
    assert chi_square(tokens, probabilities(logits / temperature)) < 18.5


def test_truncated_draws_have_the_frequencies_of_what_is_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))
    tokens = draws(logits, Sampling(temperature=1, top_k=3, seed=3), 1000)
    p = np.array([0.4, 0.3, 0.15, 0, 0])
    assert chi_square(tokens, p / p.sum()) < 13.8  # 99.9 %, 2 degrees


def test_rows_of_different_seeds_have_the_frequencies_too() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    rows = [keyed(Sampling(temperature=1, seed=seed)) for seed in range(1000)]
    tokens = choose(mx.array(np.tile(logits, (1000, 1))), rows).tolist()
    assert chi_square(tokens, np.array([0.5, 0.3, 0.2])) < 13.8


def test_a_rows_draws_depend_on_its_seed_and_its_count_alone() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (6, 50)).astype(np.float32)
    warm = Sampling(temperature=1, seed=11)
    rows = [
        keyed(warm, 4),
        (Sampling(), 0),
        keyed(warm, 5),
        keyed(Sampling(temperature=2, seed=1), 4),
    ]
    together = choose(mx.array(logits[[0, 1, 0, 2]]), rows).tolist()
    alone = [
        choose(mx.array(logits[i][None]), [row]).item()
        for i, row in zip([0, 1, 0, 2], rows, strict=True)
    ]
    assert together == alone
    assert len(set(draws(logits[0], warm, 50))) > 5
    assert draws(logits[0], warm, 50) == draws(logits[0], warm, 50)
    assert draws(logits[0], warm, 50) != draws(logits[0], Sampling(temperature=1, seed=12), 50)


# Two of them differ by more than a temperature of 1e-12 leaves to chance.
LOGITS = st.floats(-1e4, 1e4, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)


@given(st.lists(LOGITS, min_size=2, max_size=20, unique=True))
def test_greedy_and_the_coldest_draws_take_the_best(values: list[float]) -> None:
    logits = mx.array([values])
    best = int(np.argmax(np.array(values, np.float32)))
    for temperature in (0.0, 1e-12, 1e-38, 5e-324):
        for top_p in (1.0, 0.0):
            sampling = Sampling(temperature=temperature, top_p=top_p, seed=2)
            assert choose(logits, [keyed(sampling)]).item() == best


def test_seeds_of_any_size_are_taken() -> None:
    logits = mx.zeros((1, 50))
    big = [
        choose(logits, [keyed(Sampling(temperature=1, seed=s))]).item() for s in (2**64 - 1, 2**90)
    ]
    assert all(0 <= token < 50 for token in big)


def test_half_precision_logits_are_drawn_from_in_full() -> None:
    logits = mx.array([[0.0, 1.0, 2.0]]).astype(mx.float16)
    assert choose(logits, [keyed(Sampling(temperature=0.01, seed=0))]).item() == 2


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"seed": -1},
        {"max_tokens": 0},
        {"stop": ("a", "")},
        {"top_p": float("nan")},
        {"logprobs": -1},
        {"logprobs": 21},
    ],
)
def test_what_cannot_be_decoded_with_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"temperature|stop|top_p|logprobs"):
        Sampling(**bad)  # type: ignore[arg-type]
