"""The composed exponentials against NumPy's float64 and against MLX's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.engine import maths, platform  # isort: skip  (before MLX: platform sets it up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx import nn

INF, NAN = float("inf"), float("nan")
Function = Callable[[mx.array], mx.array]


def values(function: Function, x: npt.NDArray[np.float32] | list[float]) -> npt.NDArray[np.float64]:
    return np.array(function(mx.array(np.asarray(x, dtype=np.float32))), dtype=np.float64)


def grid() -> npt.NDArray[np.float32]:
    """The whole range, its ends, and the borders of the range reduction."""
    rng = np.random.default_rng(0)
    halves = (np.arange(-250, 253) / 2 * np.log(2)).astype(np.float32)
    inside = halves[(halves >= -87) & (halves <= 88)]
    return np.concatenate(
        [
            np.linspace(-87, 88, 200_001, dtype=np.float32),
            rng.normal(0, 1e-3, 10_000).astype(np.float32),
            inside,
            np.nextafter(inside, np.float32(0)),
            np.array([-87, 88, 0, -0.0], np.float32),
        ]
    )


def test_exp_is_within_2e_7_of_float64_times_one_plus_its_argument() -> None:
    x = grid()
    exact = np.exp(x.astype(np.float64))
    error = np.abs(values(maths.exp, x) - exact) / exact
    assert (error / (1 + np.abs(x))).max() < 2e-7


@pytest.mark.parametrize("size", [6, 6000])
def test_exp_beyond_its_range_stays_at_the_ends(size: int) -> None:
    low, high = values(maths.exp, np.tile(np.float32([-87, 88]), size // 2))[:2]
    got = values(maths.exp, np.tile(np.float32([-87.5, -1e30, -INF, 88.5, 1e30, INF]), size // 6))
    got = got[:6]
    np.testing.assert_array_equal(got, [low, low, low, high, high, high])
    assert 0 < low < 2e-38
    assert 1e38 < high < 3.5e38


@pytest.mark.parametrize("length", [1, 3, 8, 33, 4096, 4097, 5003])
def test_nan_stays_nan_and_touches_no_neighbour(length: int) -> None:
    x = np.ones(length, np.float32)
    x[length // 2] = NAN
    got = values(maths.exp, x)
    assert np.isnan(got[length // 2])
    assert np.isfinite(np.delete(got, length // 2)).all()


def softmax(x: mx.array, cuts: Sequence[int] = ()) -> mx.array:
    """softmax_parts of an array cut along its last axis, put together and normalised."""
    weights, total = maths.softmax_parts(mx.split(x, list(cuts), axis=-1))
    return mx.concatenate(weights, axis=-1) / total


def softmax64(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    weights = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "cuts"), [((1,), ()), ((5, 7), (3,)), ((2, 3, 1, 65), (1, 40)), ((4, 9), ())]
)
@pytest.mark.parametrize("spread", [0.1, 8.0, 100.0])
def test_softmax_in_parts_equals_numpys_of_the_whole(
    shape: tuple[int, ...], cuts: tuple[int, ...], spread: float
) -> None:
    x = np.random.default_rng(1).normal(0, spread, shape).astype(np.float32)
    got = values(lambda y: softmax(y, cuts), x)
    np.testing.assert_allclose(got, softmax64(x), rtol=5e-6, atol=1e-30)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-6)


def test_softmax_of_hidden_columns_is_nothing_and_of_only_hidden_ones_uniform() -> None:
    lowest = float(np.finfo(np.float32).min)
    np.testing.assert_allclose(values(softmax, [0, lowest, -INF]), [1, 0, 0], atol=1e-37)
    np.testing.assert_allclose(values(softmax, [lowest] * 4), [0.25] * 4)


def test_softmax_of_a_row_with_nan_or_plus_infinity_is_nan() -> None:
    assert np.isnan(values(softmax, [0.0, NAN])).all()
    assert np.isnan(values(softmax, [0.0, INF])).any()


def test_weights_of_half_precision_scores_are_fp32() -> None:
    x = mx.array(np.random.default_rng(2).normal(0, 3, (3, 9))).astype(mx.float16)
    (weights,), total = maths.softmax_parts([x])
    assert weights.dtype == total.dtype == mx.float32
    np.testing.assert_allclose(np.array(weights / total), softmax64(np.array(x)), rtol=5e-6)


@pytest.mark.parametrize("spread", [0.1, 8.0, 100.0])
def test_logsumexp_equals_numpy(spread: float) -> None:
    x = np.random.default_rng(3).normal(0, spread, (4, 3, 320)).astype(np.float32)
    highest = x.max(-1).astype(np.float64)
    exact = np.log(np.exp(x - highest[..., None]).sum(-1)) + highest
    np.testing.assert_allclose(values(maths.logsumexp, x), exact, rtol=1e-6, atol=1e-6)


def test_logsumexp_shows_nan_and_infinity() -> None:
    got = values(maths.logsumexp, np.array([[0, NAN], [0, INF], [0, -INF]], np.float32))
    assert not np.isfinite(got[:2]).any()
    assert got[2] == 0


@pytest.mark.parametrize(
    ("ours", "theirs"), [(maths.swiglu, nn.silu), (maths.geglu, nn.gelu_approx)]
)
def test_gated_activations_equal_mlxs(ours: maths.Activation, theirs: Function) -> None:
    gate = mx.concatenate([mx.linspace(-40, 40, 4001), mx.array([0.0, -0.0, -1e-6, 1e-6])])
    up = mx.array(np.random.default_rng(4).normal(0, 1, gate.shape).astype(np.float32))
    got, expected = np.array(ours(gate, up)), np.array(theirs(gate) * up)
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("activation", sorted(set(maths.ACTIVATIONS.values()), key=str))
def test_gated_activations_of_large_gates_are_the_gate_or_nothing(
    activation: maths.Activation,
) -> None:
    gate = mx.array([-1e4, -200.0, 200.0, 1e4])
    got = np.array(activation(gate, mx.ones(4)))
    np.testing.assert_allclose(got, [0, 0, 200, 1e4], rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("activation", sorted(set(maths.ACTIVATIONS.values()), key=str))
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_gated_activations_never_turn_a_broken_gate_into_a_number(
    activation: maths.Activation, bad: float
) -> None:
    got = np.array(activation(mx.array([1.0, bad]), mx.ones(2)))
    assert np.isfinite(got[0])
    assert not np.isfinite(got[1])


def test_elsewhere_than_linux_the_functions_are_mlxs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform.STATUS, "system", "darwin")
    x = mx.array(np.random.default_rng(5).normal(0, 3, (3, 9)).astype(np.float32))
    (weights,), _ = maths.softmax_parts([x])
    assert mx.array_equal(weights, mx.exp(x - x.max(axis=-1, keepdims=True))).item()
    assert mx.array_equal(maths.logsumexp(x), mx.logsumexp(x, axis=-1)).item()
