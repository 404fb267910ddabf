"""A population's likelihood around its centre against its definition, with mlx-lm's own models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine.rollout import Population  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from app.engine.batch import Runtime
from app.engine.work import RolloutLimits
from tests.app.engine import rigs
from tests.tiny import VOCAB
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
Logits = list[list[npt.NDArray[np.float64]]]  # [candidate][prompt] -> (reference tokens, VOCAB)
COUNT = 5
PROMPTS = rigs.prompts_of([13, 9, 11], 4)


def centre_of(flat: rigs.FloatArray) -> rigs.FloatArray:
    return flat.astype(np.float64).mean(axis=0).astype(np.float32)


@pytest.fixture(scope="module")
def llama(runtimes: Runtimes) -> tuple[Runtime, Basis]:
    return runtimes("llama")


@pytest.fixture(scope="module")
def flat(llama: tuple[Runtime, Basis]) -> rigs.FloatArray:
    return rigs.experts(llama[1], COUNT, scale=0.1)


@pytest.fixture(scope="module")
def references(stocks: Callable[[str], Any]) -> list[rigs.Tokens]:
    """Random tokens, and what the base itself says: a likely token must not count twice."""
    said = rigs.greedy_of(lambda t: rigs.logits_of(stocks("llama"), t), PROMPTS[2], 4)
    return [*rigs.prompts_of([3, 1], seed=9), np.array(said, np.int32)]


@pytest.fixture(scope="module")
def logits(
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    references: list[rigs.Tokens],
    folder_of: Callable[[str], Path],
) -> Logits:
    """What mlx-lm's edited models answer after the centre has read; the last is the centre's."""
    models = [rigs.edited(folder_of("llama"), llama[1], e) for e in [*flat, centre_of(flat)]]
    return [
        [
            rigs.answer_logits(models[-1], module, prompt, reference)
            for prompt, reference in zip(PROMPTS, references, strict=True)
        ]
        for module in models
    ]


def truncated(logits: Logits, references: list[rigs.Tokens], size: int) -> npt.NDArray[np.float64]:
    """(COUNT, prompts): the normaliser sums over the centre's ``size`` best and the reference."""
    result = np.zeros((COUNT, len(PROMPTS)))
    for column, reference in enumerate(references):
        for candidate in range(COUNT):
            logp = []
            for at, token in enumerate(reference):
                order = np.argsort(-logits[COUNT][column][at])
                kept = [int(token), *[int(i) for i in order if i != token][:size]]
                own = logits[candidate][column][at]
                logp.append(own[token] - np.log(np.exp(own[kept]).sum()))
            result[candidate, column] = np.mean(logp)
    return result


def likelihood(
    runtime: Runtime,
    flat: rigs.FloatArray,
    references: list[rigs.Tokens],
    size: int,
    lanes: int = 2,
    step_tokens: int = 1024,
    first: int = 0,
    centre: rigs.FloatArray | None = None,
) -> rigs.FloatArray:
    streams = [mx.new_stream(mx.default_device()) for _ in range(lanes)]
    limits = RolloutLimits(shortlist=size, step_tokens=step_tokens)
    people = Population(runtime, streams, str, limits)
    around = centre_of(flat) if centre is None else centre
    result: rigs.FloatArray = rigs.finished(
        people.likelihood(flat, PROMPTS, references, around, first)
    )
    return result


@pytest.mark.parametrize("size", [1, 4, 12])
@pytest.mark.parametrize(("lanes", "step_tokens"), [(1, 1024), (2, 1), (3, 40)])
def test_a_populations_normaliser_is_that_of_the_centres_best_tokens_and_the_reference(
    size: int,
    lanes: int,
    step_tokens: int,
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    references: list[rigs.Tokens],
    logits: Logits,
) -> None:
    got = likelihood(llama[0], flat, references, size, lanes, step_tokens)
    np.testing.assert_allclose(got, truncated(logits, references, size), rtol=0, atol=1e-3)
    # This list is short enough to be told from the whole vocabulary.
    assert np.abs(got - truncated(logits, references, VOCAB)).max() > 0.01


@pytest.mark.parametrize("size", [VOCAB - 1, VOCAB, 10 * VOCAB])
def test_a_shortlist_of_the_whole_vocabulary_is_exact(
    size: int,
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    references: list[rigs.Tokens],
    logits: Logits,
) -> None:
    got = likelihood(llama[0], flat, references, size)
    np.testing.assert_allclose(got, truncated(logits, references, VOCAB), rtol=0, atol=1e-3)


def test_a_candidate_that_is_its_own_centre_is_scored_as_alone(
    llama: tuple[Runtime, Basis],
    flat: rigs.FloatArray,
    references: list[rigs.Tokens],
    folder_of: Callable[[str], Path],
) -> None:
    for one in flat[:2]:
        module: Any = rigs.edited(folder_of("llama"), llama[1], one)
        expected = []
        for prompt, reference in zip(PROMPTS, references, strict=True):
            logits = rigs.logits_of(module, np.concatenate([prompt, reference]))
            own = logits[len(prompt) - 1 : -1].astype(np.float64)
            logp = own - np.log(np.exp(own).sum(-1, keepdims=True))
            expected.append(logp[np.arange(len(reference)), reference].mean())
        [got] = likelihood(llama[0], one[None], references, VOCAB)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-3)


def test_it_is_the_same_when_the_shared_layers_run_once(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, references: list[rigs.Tokens]
) -> None:
    same = flat.copy()
    below = llama[0].first_coordinate(1)
    same[:, :below] = flat[0, :below]
    centre = centre_of(same)
    centre[:below] = flat[0, :below]
    plain = likelihood(llama[0], same, references, 8, centre=centre)
    once = likelihood(llama[0], same, references, 8, first=1, centre=centre)
    np.testing.assert_allclose(once, plain, atol=2e-5)
    assert np.ptp(once, axis=0).min() > 1e-4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_broken_candidate_is_nan_and_leaves_the_others_alone(
    bad: float, llama: tuple[Runtime, Basis], flat: rigs.FloatArray, references: list[rigs.Tokens]
) -> None:
    broken = np.concatenate([flat, flat[:1]])
    broken[-1, 17] = bad
    centre = centre_of(flat)
    got = likelihood(llama[0], broken, references, 8, centre=centre)
    assert np.isnan(got[-1]).all()
    np.testing.assert_allclose(got[:-1], likelihood(llama[0], flat, references, 8), atol=2e-5)
    alone = np.full_like(flat, np.nan)
    assert np.isnan(likelihood(llama[0], alone, references, 8, centre=centre)).all()


def test_a_broken_centre_is_refused(
    llama: tuple[Runtime, Basis], flat: rigs.FloatArray, references: list[rigs.Tokens]
) -> None:
    centre = centre_of(flat)
    centre[3] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        likelihood(llama[0], flat, references, 8, centre=centre)
