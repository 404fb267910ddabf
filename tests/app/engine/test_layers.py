"""The input edit against explicitly edited weights; rows of different experts in one batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from app.engine.basis import dequantised
from app.engine.layers import Edits, Meter, Selection, SlotLinear, install, matrices
from app.engine.maths import swiglu
from tests import tiny
from tests.app.engine import rigs
from trainers.spectral import BASIS_KINDS, BasisKind, Coordinates, block_basis, compute_basis

SHAPES = [(64, 64), (32, 96), (192, 160)]
FORMS = ["dense", "4-bit"]


class Rig:
    """One slotted layer of random weights."""

    def __init__(
        self, out: int, size: int, form: str, kind: BasisKind = "spectral", bias: bool = False
    ) -> None:
        rng = np.random.default_rng(out * size)
        linear: Any = nn.Linear(size, out, bias=bias)
        linear.weight = mx.array(rng.normal(0, size**-0.5, (out, size)).astype(np.float32))
        if bias:
            linear.bias = mx.array(rng.normal(0, 1, out).astype(np.float32))
        if form == "4-bit":
            linear = nn.QuantizedLinear.from_linear(linear, group_size=32, bits=4)
        self.linear = linear
        self.weight = np.array(dequantised(linear), dtype=np.float64)
        self.basis = block_basis(self.weight.astype(np.float32), kind)
        self.shape: tuple[int, int] = self.basis.singular_values.shape
        self.selection = Selection()
        self.layer = SlotLinear("m", linear, self.basis, self.selection)
        self.size = size
        self.rng = rng

    def inputs(self, rows: int, length: int = 3) -> npt.NDArray[np.float32]:
        return self.rng.normal(0, 1, (rows, length, self.size)).astype(np.float32)

    def experts(self, count: int, scale: float = 0.3) -> npt.NDArray[np.float32]:
        return self.rng.normal(0, scale, (count, self.size)).astype(np.float32)

    def run(
        self, x: npt.NDArray[np.float32], flat: npt.NDArray[np.float32] | None
    ) -> npt.NDArray[np.float32]:
        self.selection.edits = None
        if flat is not None:
            self.selection.edits = Edits(
                Coordinates({"m": self.size}), mx.array(flat), {"m": self.shape}, ["m"]
            )
        return np.array(self.layer(mx.array(x)))


def relative(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out", "size"), SHAPES)
def test_the_input_edit_equals_new_singular_values_in_the_weights(
    out: int, size: int, form: str
) -> None:
    rig = Rig(out, size, form)
    x, [e] = rig.inputs(2), rig.experts(1)
    expected = x @ rigs.svd_edit(rig.weight, e.reshape(rig.shape)).T
    assert relative(rig.run(x, e[None]), expected) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_a_bias_is_added_once_and_not_edited(form: str) -> None:
    rig = Rig(48, 64, form, bias=True)
    x, [e] = rig.inputs(2), rig.experts(1)
    edit = x @ rigs.svd_edit(rig.weight, e.reshape(rig.shape)).T
    assert relative(rig.run(x, e[None]), edit + np.array(rig.linear.bias)) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_every_basis_scales_the_input_along_its_vectors(kind: BasisKind, form: str) -> None:
    rig = Rig(64, 96, form, kind)
    n, b = rig.shape
    assert (n == 1) == (kind == "global")
    x, [e] = rig.inputs(2), rig.experts(1)
    edit = np.zeros((96, 96))  # I + V diag(e) V^T, block by block
    for j, change in enumerate(e.reshape(n, b).astype(np.float64)):
        v = np.eye(b) if rig.basis.vectors is None else rig.basis.vectors[j].astype(np.float64)
        edit[j * b : (j + 1) * b, j * b : (j + 1) * b] = np.eye(b) + (v * change) @ v.T
    assert relative(rig.run(x, e[None]), x @ (rig.weight @ edit).T) <= 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_mixed_batch_equals_each_expert_alone(rows: int, form: str) -> None:
    rig = Rig(64, 96, form)
    x, flat = rig.inputs(4 * rows), rig.experts(4)
    mixed = rig.run(x, flat)
    for group in range(4):
        part = slice(group * rows, (group + 1) * rows)
        alone = rig.run(x[part], flat[group : group + 1])
        np.testing.assert_allclose(mixed[part], alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_zero_coordinates_are_bit_identical_to_the_base(kind: BasisKind, form: str) -> None:
    rig = Rig(64, 96, form, kind)
    x = rig.inputs(3)
    plain = np.array(rig.linear(mx.array(x)))
    assert rig.run(x, None).tobytes() == plain.tobytes()
    assert rig.run(x, np.zeros((3, 96), np.float32)).tobytes() == plain.tobytes()
    beside = rig.experts(3)
    beside[1] = 0
    assert rig.run(x, beside)[1].tobytes() == plain[1].tobytes()
    assert rig.run(x, beside)[0].tobytes() != plain[0].tobytes()


@pytest.mark.parametrize(("dtype", "roundings"), [(mx.float16, 4), (mx.bfloat16, 1)])
def test_half_precision_inputs_are_edited_with_hardly_more_than_their_own_rounding(
    dtype: mx.Dtype, roundings: float
) -> None:
    rig = Rig(64, 96, "dense")
    [e] = rig.experts(1)
    rig.run(rig.inputs(1), e[None])
    x = mx.array(rig.inputs(20)).astype(dtype)
    assert rig.selection.edits is not None
    coordinates = rig.selection.edits.of("m")
    assert coordinates is not None
    edited = rig.layer._edited(x, coordinates)
    assert edited.dtype == dtype
    exact = rig.layer._edited(x.astype(mx.float32), coordinates)
    once = relative(np.array(exact.astype(dtype).astype(mx.float32)), np.array(exact))
    error = relative(np.array(edited.astype(mx.float32)), np.array(exact))
    assert error <= 1.001 * roundings * once


def test_one_broken_expert_leaves_the_rows_of_others_alone() -> None:
    rig = Rig(64, 96, "dense")
    x, flat = rig.inputs(3), rig.experts(3)
    sound = rig.run(x, flat)
    flat[1, 5] = np.inf
    broken = rig.run(x, flat)
    assert not np.isfinite(broken[1]).any()
    np.testing.assert_array_equal(broken[[0, 2]], sound[[0, 2]])


def test_kept_edits_are_those_of_the_named_groups() -> None:
    rig = Rig(64, 96, "dense")
    x, flat = rig.inputs(2), rig.experts(3)
    rig.run(rig.inputs(3), flat)
    assert rig.selection.edits is not None
    rig.selection.edits = rig.selection.edits.keep([2, 0])
    got = np.array(rig.layer(mx.array(x)))
    np.testing.assert_allclose(got, rig.run(x, flat[[2, 0]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_an_expert_has_in_features_scalars_for_each_of_seven_matrices(
    family: str, folder_of: Callable[[str], Path]
) -> None:
    stack = models.inner(models.load(folder_of(family)).module)
    found = dict(matrices(stack))
    assert len(found) == 7 * len(stack.layers)
    weights = {name: np.array(dequantised(linear)) for name, linear in found.items()}
    coordinates = compute_basis(weights.items(), "channel").coordinates
    assert coordinates.sizes == {name: weight.shape[1] for name, weight in weights.items()}
    assert list(coordinates.sizes)[:2] == ["layers.0.self_attn.q_proj", "layers.0.self_attn.k_proj"]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_installing_slots_adds_no_parameter_and_copies_none(
    family: str, folder_of: Callable[[str], Path]
) -> None:
    model = models.load(folder_of(family))
    stack = models.inner(model.module)
    before = sorted(id(array) for _, array in tree_flatten(model.module.parameters()))
    basis = compute_basis([(n, np.array(dequantised(m))) for n, m in matrices(stack)], "channel")
    install(stack, models.attention_windows(model.module), basis, swiglu)
    after = sorted(id(array) for _, array in tree_flatten(model.module.parameters()))
    assert after == before


def test_attention_without_a_key_value_store_is_refused(
    runtimes: Callable[[str], tuple[Any, Any]],
) -> None:
    runtime, _ = runtimes("llama")
    with pytest.raises(ValueError, match="key-value store"):
        models.inner(runtime.model.module)(mx.array([[5, 6]]))


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_a_meter_sums_the_squared_projections_of_the_positions_that_count(
    kind: BasisKind,
) -> None:
    rig = Rig(64, 96, "dense", kind)
    x = rig.inputs(2)
    rig.selection.meter = meter = Meter(mx.array([0.0, 1, 1, 1, 0, 1]))
    got = rig.run(x, None)
    counted = x.reshape(6, 96)[[1, 2, 3, 5]].astype(np.float64)
    n, b = rig.shape
    for j in range(n):
        v = np.eye(b) if rig.basis.vectors is None else rig.basis.vectors[j]
        expected = ((counted[:, j * b : (j + 1) * b] @ v) ** 2).sum(axis=0)
        np.testing.assert_allclose(np.array(meter.sums["m"])[j], expected, rtol=1e-4)
    rig.selection.meter = None
    assert got.tobytes() == rig.run(x, None).tobytes()


def test_a_meter_of_half_precision_inputs_does_not_overflow() -> None:
    rig = Rig(64, 96, "dense", "channel")
    x = mx.array(1000 * rig.inputs(2)).astype(mx.float16)
    rig.selection.meter = meter = Meter(mx.ones(6))
    rig.layer(x)
    expected = (np.array(x, dtype=np.float64).reshape(6, 96) ** 2).sum(axis=0)
    np.testing.assert_allclose(np.array(meter.sums["m"]).reshape(-1), expected, rtol=1e-5)
