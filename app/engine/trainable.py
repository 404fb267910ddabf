"""A base model that gradients flow through: for a process of its own, beside the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.engine import platform  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine.basis import load_basis
from app.engine.models import attention_windows, embed, head, inner, load, show
from trainers.decoder import Decoder, EditedDecoder, Params
from trainers.spectral_edit import SpectralEdit


@dataclass(frozen=True)
class Trainable:
    """A base model under a spectral edit, and what experts of it are pinned to."""

    decoder: Decoder
    base_hash: str
    basis_hash: str


def load_trainable(path: Path, memory_bytes: int) -> Trainable:
    """Loads a model folder as the engine does, with all cores for its matmuls.

    Dense fp32 on a Linux CPU if that fits into `memory_bytes`, else dequantised layer by layer.
    Raises ModelError.
    """
    on_cpu = platform.STATUS.system == "linux"
    if on_cpu:
        mx.set_default_device(mx.cpu)
    platform.set_blas_threads(platform.STATUS.cores)
    dense = platform.dense_fits(show(path).parameters, memory_bytes)
    loaded = load(path, mx.float32 if on_cpu else None, dense_fp32=dense)
    basis = load_basis(loaded)
    module = loaded.module
    stack: Any = inner(module)
    decoder = EditedDecoder(
        stack.layers,
        attention_windows(module),
        lambda tokens: embed(module, tokens),
        lambda hidden: head(module, stack.norm(hidden)),
        SpectralEdit(basis),
        dense=on_cpu and not dense,
    )
    return Trainable(decoder, loaded.info.base_hash, basis.sha256)


def params_of(tensors: Mapping[str, npt.NDArray[np.float32]]) -> Params:
    """An expert's coordinates, matrix by matrix, for the decoder."""
    return {name: mx.array(part) for name, part in tensors.items()}


def tensors_of(params: Params) -> dict[str, npt.NDArray[np.float32]]:
    """The inverse of `params_of`."""
    return {name: np.array(part) for name, part in params.items()}
