"""The basis beside the model: computed once, the same however loaded, never read damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from app.engine import basis as basis_module  # isort: skip
import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from safetensors.numpy import load_file

from app.engine import models
from app.engine.basis import dequantised, load_basis
from tests import tiny
from trainers.spectral import BASIS_KINDS, BasisKind


@pytest.fixture
def folder(folder_of: Callable[[str], Path], tmp_path: Path) -> Path:
    """A model folder of the test's own, without a basis."""
    return Path(
        shutil.copytree(
            folder_of("llama"), tmp_path / "llama", ignore=shutil.ignore_patterns("basis-*")
        )
    )


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows whenever a basis is computed."""
    kinds: list[str] = []
    compute = basis_module.compute_basis

    def counted(weights: object, kind: BasisKind) -> object:
        kinds.append(kind)
        return compute(weights, kind)  # type: ignore[arg-type]

    monkeypatch.setattr(basis_module, "compute_basis", counted)
    return kinds


def stored(folder: Path) -> list[Path]:
    return sorted(folder.glob("basis-*"))


@pytest.mark.parametrize("kind", BASIS_KINDS)
def test_a_basis_is_computed_once_and_read_back_the_same(
    kind: BasisKind, folder: Path, computed: list[str]
) -> None:
    model = models.load(folder)
    first, second = load_basis(model, kind), load_basis(model, kind)
    assert computed == [kind]
    assert first.sha256 == second.sha256
    assert first.kind == second.kind == kind
    assert first.coordinates == second.coordinates
    for name, block in first.blocks.items():
        np.testing.assert_array_equal(block.singular_values, second.blocks[name].singular_values)
        if block.vectors is None:
            assert second.blocks[name].vectors is None
        else:
            np.testing.assert_array_equal(block.vectors, second.blocks[name].vectors)
    [path] = stored(folder)
    assert path.name == f"basis-{kind}-{model.info.base_hash[:16]}.safetensors"


def test_a_basis_does_not_depend_on_how_the_model_was_loaded(folder: Path) -> None:
    hashes = set()
    for dtype, dense in ((None, False), (mx.float32, False), (None, True)):
        hashes.add(load_basis(models.load(folder, dtype=dtype, dense_fp32=dense)).sha256)
        [path] = stored(folder)
        path.unlink()
    assert len(hashes) == 1


def test_a_damaged_file_is_computed_anew(
    folder: Path, computed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = models.load(folder)
    good = load_basis(model)
    [path] = stored(folder)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], bytes(flipped), b"{}" * 50):
        path.write_bytes(damaged)
        caplog.clear()
        assert load_basis(model).sha256 == good.sha256
        assert "damaged" in caplog.text
        assert path.read_bytes() == whole
    assert len(computed) == 6


def test_a_basis_of_another_base_is_not_used(folder: Path, computed: list[str]) -> None:
    first = load_basis(models.load(folder))
    for path in folder.glob("*"):
        if not path.name.startswith("basis-"):
            path.unlink()
    tiny.build(folder, seed=1)
    second = load_basis(models.load(folder))
    assert computed == ["spectral", "spectral"]
    assert first.sha256 != second.sha256


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_dequantised_weights_are_codes_times_scale_plus_bias_in_fp32(
    family: str, folder_of: Callable[[str], Path]
) -> None:
    folder = folder_of(family)
    file = load_file(folder / "model.safetensors")
    name = next(n for n in file if n.endswith("layers.0.mlp.down_proj.weight"))
    codes = (file[name][..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    scales, biases = (
        file[name.replace("weight", part)].astype(np.float32)[..., None]
        for part in ("scales", "biases")
    )
    expected = (codes.reshape(*scales.shape[:2], 32).astype(np.float32) * scales + biases).reshape(
        len(codes), -1
    )
    layer = models.inner(models.load(folder).module).layers[0].mlp.down_proj
    got = dequantised(layer)
    assert got.dtype == mx.float32
    np.testing.assert_allclose(np.array(got), expected, rtol=0, atol=1e-6)


def test_dense_weights_are_taken_as_they_are() -> None:
    layer = nn.Linear(4, 3)
    assert mx.array_equal(dequantised(layer), layer.weight).item()
