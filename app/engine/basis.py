"""The basis of a base model, computed once and cached beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from app.engine.layers import matrices
from app.engine.models import LoadedModel, inner
from storage.atomic import write_bytes
from trainers import decoder
from trainers.spectral import Basis, BasisKind, compute_basis, pack_basis, unpack_basis

log = logging.getLogger("nightowl.engine")


def load_basis(model: LoadedModel, kind: BasisKind = "spectral") -> Basis:
    """The basis of ``model``, from the file beside it, else computed and stored there.

    The file is named by base hash and kind, and holds its own hash: a damaged one is computed
    anew.  Runs before the model's layers are replaced.
    """
    path = model.info.path / f"basis-{kind}-{model.info.base_hash[:16]}.safetensors"
    if path.is_file():
        try:
            return unpack_basis(load_file(path))
        except (SafetensorError, KeyError, ValueError) as error:
            log.warning("the basis cache is damaged and is computed anew: %s", error)
    log.info("computing the basis of %s, once", model.info.name)
    basis = compute_basis(_weights(model), kind)
    write_bytes(path, save(pack_basis(basis)))
    return basis


def _weights(model: LoadedModel) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Every matrix that carries coordinates, dequantised, one at a time."""
    for name, linear in matrices(inner(model.module)):
        yield name, np.array(dequantised(linear).astype(mx.float32))


def dequantised(linear: Any) -> mx.array:
    """The (out, in) weight of a dense or quantised linear layer.

    Quantised ones in fp32 whatever their scales' dtype, so that a model has the same basis
    however it was loaded.
    """
    if "scales" not in linear:
        weight: mx.array = linear.weight
        return weight
    return decoder.dequantised(linear, mx.float32)
