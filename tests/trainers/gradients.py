"""Tiny models for the gradient trainers, and references that share no code with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from app.engine.basis import load_basis
from trainers import lora
from trainers.decoder import EditedDecoder, matrix_shapes
from trainers.spectral import Basis
from trainers.spectral_edit import SpectralEdit

Params = dict[str, mx.array]
LORA = lora.LoraConfig(rank=3, scale=1.5)


def module_of(folder: Path, quantised: bool) -> nn.Module:
    """The model in fp32, INT4 or dense."""
    return models.load(folder, dtype=mx.float32, dense_fp32=not quantised).module


def decoder_of(module: nn.Module, edit: Any, dense: bool = False) -> EditedDecoder:
    """The model as the trainers take it; its projections are wrapped in place."""
    stack: Any = models.inner(module)
    return EditedDecoder(
        stack.layers,
        models.attention_windows(module),
        lambda tokens: models.embed(module, tokens),
        lambda hidden: models.head(module, stack.norm(hidden)),
        edit,
        dense,
    )


def lora_params(module: nn.Module, seed: int = 1, config: lora.LoraConfig = LORA) -> Params:
    """Factors that are not zero, as after some training."""
    params = lora.initial(config, matrix_shapes(models.inner(module).layers), seed)
    return scrambled(params, seed)


def scrambled(params: Params, seed: int, size: float = 0.1) -> Params:
    """Every parameter moved at random."""
    rng = np.random.default_rng(seed)
    return {
        name: value + mx.array(size * rng.standard_normal(value.shape).astype(np.float32))
        for name, value in params.items()
    }


def tokens_of(rows: int, length: int, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(3, 300, (rows, length)))


class MlxLmLora:
    """mlx-lm's own LoRA layers in its own model."""

    def __init__(self, module: nn.Module, config: lora.LoraConfig = LORA) -> None:
        self.module: Any = module
        text: Any = module.language_model if "language_model" in module else module
        parameters = lora.adapter_config(config, len(text.layers))["lora_parameters"]
        linear_to_lora_layers(text, len(text.layers), parameters)
        self._text = text

    def logits(self, params: Mapping[str, mx.array], tokens: mx.array) -> mx.array:
        self._text.update(tree_unflatten(list(lora.to_adapter(dict(params)).items())))
        logits: mx.array = self.module(tokens)
        return logits

    def names(self) -> dict[str, tuple[int, ...]]:
        """The adapter's names and shapes, as mlx-lm has them."""
        return {
            name: value.shape
            for name, value in tree_flatten(self._text.parameters())
            if name.endswith((".lora_a", ".lora_b"))
        }


class ExplicitSpectral:
    """mlx-lm's dense model whose weights are W + W V diag(e) V^T, column block by column block."""

    def __init__(self, module: nn.Module, basis: Basis) -> None:
        self.module: Any = module
        self._basis = basis
        self._weights = {
            name: self._linear(name).weight for name in basis.blocks
        }  # (out, in) fp32, dense

    def _linear(self, name: str) -> Any:
        _, index, part, projection = name.split(".")
        return getattr(getattr(models.inner(self.module).layers[int(index)], part), projection)

    def logits(self, params: Mapping[str, mx.array], tokens: mx.array) -> mx.array:
        for name, e in params.items():
            block, weight = self._basis.blocks[name], self._weights[name]
            n, b = block.singular_values.shape
            vectors = mx.array(block.vectors)
            columns = weight.reshape(-1, n, b).transpose(1, 0, 2)  # (n, out, b)
            change = ((columns @ vectors) * e.reshape(n, 1, b)) @ vectors.transpose(0, 2, 1)
            edited = (columns + change).transpose(1, 0, 2).reshape(weight.shape)
            self._linear(name).weight = edited
        logits: mx.array = self.module(tokens)
        return logits


def references(folder: Path, kind: str, quantised: bool) -> tuple[EditedDecoder, Params, Any]:
    """A decoder, an expert's parameters, and the same model as a plain function of them."""
    module = module_of(folder, quantised)
    if kind == "lora":
        params = lora_params(module)
        plain: Any = MlxLmLora(module_of(folder, quantised))
        return decoder_of(module, lora.LoraEdit(LORA.scale)), params, plain
    basis = load_basis(models.load(folder, dense_fp32=True), "spectral")
    edit = SpectralEdit(basis)
    # The explicit form needs weights that can be written: the same numbers, dequantised.
    plain = ExplicitSpectral(module_of(folder, quantised=False), basis)
    return decoder_of(module, edit), scrambled(edit.initial(), 2), plain


def plain_gradient(
    plain: Any, params: Params, loss: Callable[[mx.array], mx.array], tokens: mx.array
) -> tuple[float, Params]:
    """``mx.value_and_grad`` of the whole model at once."""
    value, gradient = mx.value_and_grad(lambda p: loss(plain.logits(p, tokens)))(params)
    mx.eval(value, gradient)
    return value.item(), gradient


def relative_error(found: Mapping[str, mx.array], wanted: Mapping[str, mx.array]) -> float:
    """|found - wanted| / |wanted| over all parameters together."""
    assert set(found) == set(wanted)
    difference, size = 0.0, 0.0
    for name, value in wanted.items():
        difference += float(((found[name] - value) ** 2).sum().item())
        size += float((value**2).sum().item())
    assert size > 0
    return float(np.sqrt(difference / size))


def as_bytes(params: Mapping[str, mx.array]) -> dict[str, bytes]:
    return {name: np.array(value).tobytes() for name, value in params.items()}
