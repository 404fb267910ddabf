"""Energies of the coordinates against activations captured from plain mlx-lm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.engine.rollout import Population  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx import nn

from app.engine import models
from app.engine.basis import dequantised
from app.engine.batch import Runtime
from app.engine.layers import matrices
from app.engine.scheduler import Engine
from app.engine.work import RolloutLimits
from tests.app.engine import rigs
from tests.app.engine.library import Library
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
FAMILIES = ["llama", "gemma3_text"]
SHARED = 5
LENGTHS = [21, 9, 14, 6]


class Tap(nn.Module):
    """A linear layer that keeps what goes in."""

    def __init__(self, linear: nn.Module, seen: list[npt.NDArray[np.float64]]) -> None:
        super().__init__()
        self.linear = linear
        self._seen = seen

    def __call__(self, x: mx.array) -> mx.array:
        self._seen.append(np.array(x[0], dtype=np.float64))
        y: mx.array = self.linear(x)
        return y


def inputs_of(
    module: Any, texts: Sequence[rigs.Tokens], shared: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Matrix name -> (positions, in_features): each text alone, the shared prefix once."""
    stack = models.inner(module)
    seen: dict[str, list[npt.NDArray[np.float64]]] = {}
    for name, linear in list(matrices(stack)):
        _, index, part, projection = name.split(".")
        seen[name] = []
        setattr(getattr(stack.layers[int(index)], part), projection, Tap(linear, seen[name]))
    for text in texts:
        rigs.logits_of(module, text)
    return {
        name: np.concatenate([whole[0][:shared], *(each[shared:] for each in whole)])
        for name, whole in seen.items()
    }


def expected_energies(
    folder: Path,
    basis: Basis,
    texts: Sequence[rigs.Tokens],
    shared: int,
    flat: rigs.FloatArray | None,
) -> npt.NDArray[np.float64]:
    """sigma^2 (v . x)^2, a mean over positions, relative to its matrix; by NumPy's full SVD."""
    module = rigs.stock_of(folder) if flat is None else rigs.edited(folder, basis, flat[0])
    weights = {
        name: np.array(dequantised(linear), dtype=np.float64)
        for name, linear in matrices(models.inner(rigs.stock_of(folder)))
    }
    parts = []
    for name, x in inputs_of(module, texts, shared).items():
        count = basis.blocks[name].singular_values.shape[0]
        energies = []
        blocks = np.split(weights[name], count, axis=1)
        for block, inputs in zip(blocks, np.split(x, count, axis=1), strict=True):
            _, s, vt = np.linalg.svd(block, full_matrices=False)
            energies.append(((inputs @ vt.T * s) ** 2).mean(axis=0))
        energy = np.concatenate(energies)
        parts.append(energy / energy.mean())
    return np.concatenate(parts)


def measured(
    runtime: Runtime,
    texts: Sequence[rigs.Tokens],
    flat: rigs.FloatArray | None = None,
    step_tokens: int = 1024,
) -> tuple[rigs.FloatArray, int]:
    """The engine's energies, and the steps it took."""
    lane = mx.new_stream(mx.default_device())
    limits = RolloutLimits(step_tokens=step_tokens)
    steps = Population(runtime, [lane], str, limits).energies(flat, texts)
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as stop:
            return stop.value, count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", [0, SHARED])
@pytest.mark.parametrize("expert", [False, True])
def test_energies_are_those_of_the_activations_that_plain_mlx_lm_computes(
    family: str,
    shared: int,
    expert: bool,
    runtimes: Runtimes,
    folder_of: Callable[[str], Path],
) -> None:
    runtime, basis = runtimes(family)
    texts = rigs.prompts_of(LENGTHS, shared)
    flat = rigs.experts(basis, 1) if expert else None
    got, _ = measured(runtime, texts, flat)
    expected = expected_energies(folder_of(family), basis, texts, shared, flat)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=1e-5)
    assert got.max() > 3  # they are not all alike


def test_every_matrix_has_a_mean_energy_of_1(runtimes: Runtimes) -> None:
    runtime, basis = runtimes("llama")
    got, _ = measured(runtime, rigs.prompts_of(LENGTHS, SHARED))
    for _, part in basis.coordinates.slices():
        assert got[part].mean() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("step_tokens", [1, 20, 40])
def test_energies_do_not_depend_on_how_the_texts_are_cut(
    step_tokens: int, runtimes: Runtimes
) -> None:
    runtime, _ = runtimes("llama")
    texts = rigs.prompts_of(LENGTHS, SHARED)
    whole, one = measured(runtime, texts)
    got, steps = measured(runtime, texts, step_tokens=step_tokens)
    rows = max(1, step_tokens // (max(LENGTHS) - SHARED))
    assert (one, steps) == (1, -(-len(LENGTHS) // rows))
    np.testing.assert_allclose(got, whole, rtol=1e-4, atol=1e-6)


def test_measuring_leaves_later_passes_unmeasured(runtimes: Runtimes) -> None:
    runtime, _ = runtimes("llama")
    measured(runtime, rigs.prompts_of(LENGTHS))
    assert runtime._selection.meter is None


def test_energies_under_a_broken_expert_are_not_finite(runtimes: Runtimes) -> None:
    runtime, basis = runtimes("llama")
    flat = np.full((1, basis.coordinates.total), 3e38, dtype=np.float32)
    got, _ = measured(runtime, rigs.prompts_of(LENGTHS), flat)
    assert not np.isfinite(got).all()


def test_nothing_to_measure_is_refused(runtimes: Runtimes) -> None:
    runtime, _ = runtimes("llama")
    for texts in ([], [np.array([], np.int32), np.array([5], np.int32)]):
        with pytest.raises(ValueError, match="rollout needs"):
            measured(runtime, texts)


def test_the_engine_measures_on_its_own_thread(
    engine: Engine, library: Library, runtimes: Runtimes
) -> None:
    texts = rigs.prompts_of(LENGTHS, SHARED)
    flat = library.flat["a"][None]
    wanted, _ = measured(runtimes("llama")[0], texts, flat)
    got = engine.energies(flat, [text.tolist() for text in texts])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
