"""A decoder whose layers are functions of what is trained.

``Decoder.layer(index, params, hidden)`` is what the gradient trainers differentiate: explicit, and
pure as seen from outside.  In an ``EditedDecoder`` the base's weights, INT4 or not, are never
written: the expert acts on the linear layers through an *edit* (``trainers.lora``,
``trainers.spectral_edit``), and with no parameters at all, a layer is the base model's.

What differs between model families is handed in: how tokens are embedded (Gemma scales them), the
window of each layer's attention, and the head with the final norm (tied or not, capped or not).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx import nn

from trainers.spectral import ATTENTION_TARGETS, MLP_TARGETS

Params = dict[str, mx.array]
Mask = mx.array | str | None


class Edit(Protocol):
    """How an expert changes one linear layer."""

    def __call__(
        self,
        matrix: str,
        linear: Callable[[mx.array], mx.array],
        x: mx.array,
        params: Mapping[str, mx.array],
    ) -> mx.array:
        """Output of the layer named ``layers.<i>.<part>.<projection>`` under ``params``."""


class _Binding:
    """The parameters of the layer that is being traced."""

    def __init__(self) -> None:
        self.params: Mapping[str, mx.array] = {}


class EditedLinear(nn.Module):
    """A linear layer of the base with the edit around it.

    With ``dense``, quantised weights are dequantised where the layer is traced, and freed with the
    trace: CPUs multiply INT4 weights slowly.
    """

    def __init__(
        self, name: str, linear: nn.Module, edit: Edit, binding: _Binding, dense: bool
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx.nn has no types
        self.linear = linear
        # Underscored: not parameters of the model.
        self._name, self._edit, self._binding = name, edit, binding
        self._dense = dense and isinstance(linear, nn.QuantizedLinear)

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, in) -> (B, L, out)."""
        return self._edit(self._name, self._base, x, self._binding.params)

    def _base(self, x: mx.array) -> mx.array:
        linear: Any = self.linear
        if not self._dense:
            output: mx.array = linear(x)
            return output
        y = x @ dequantised(linear, x.dtype).T
        return y + linear.bias if "bias" in linear else y


def dequantised(linear: Any, dtype: mx.Dtype) -> mx.array:
    """Weights (out, in) of a quantised linear layer; lazy."""
    scales, biases = linear.scales, linear.get("biases")
    if biases is not None:  # affine; the other modes pack their scales into bytes
        scales, biases = scales.astype(dtype), biases.astype(dtype)
    return mx.dequantize(
        linear.weight,
        scales,
        biases,
        group_size=linear.group_size,
        bits=linear.bits,
        mode=linear.mode,
        global_scale=linear.get("global_scale"),
    ).astype(dtype)


class Decoder(Protocol):
    """A model, cut where the per-layer loop cuts it."""

    def embed(self, tokens: mx.array, /) -> mx.array:
        """(B, L) tokens -> (B, L, hidden)."""

    def head(self, hidden: mx.array, /) -> mx.array:
        """(R, hidden) output of the last layer -> (R, vocab) logits, final norm included."""

    def layer(self, index: int, params: Mapping[str, mx.array], hidden: mx.array) -> mx.array:
        """(B, L, hidden) -> (B, L, hidden); ``params`` of this layer, under their full names.

        Rows are padded on the right: causal attention then needs no mask for it.
        """

    def __len__(self) -> int:
        """Number of layers."""


class EditedDecoder:
    """A frozen base model whose linear layers an expert edits.

    Args:
        layers: mlx-lm's blocks; their projections are wrapped in place.
        windows: per layer the tokens its attention looks back, ``None`` for all of them.
        embed: (B, L) tokens -> (B, L, hidden).
        head: (R, hidden) output of the last layer -> (R, vocab) logits, final norm included.
        edit: how the expert acts.
        dense: multiply by dequantised weights (``EditedLinear``).

    Attributes:
        matrices: name -> (out, in) of each matrix that an expert may change.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        windows: Sequence[int | None],
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
        edit: Edit,
        dense: bool = False,
    ) -> None:
        if len(layers) != len(windows):
            raise ValueError(f"{len(layers)} layers, but windows of {len(windows)}")
        self.embed, self.head = embed, head
        self._layers, self._windows = layers, windows
        self._binding = _Binding()
        self.matrices = matrix_shapes(layers)
        for name, part, projection, linear in projections(layers):
            wrapped = EditedLinear(name, linear, edit, self._binding, dense)
            setattr(part, projection, wrapped)

    def __len__(self) -> int:
        return len(self._layers)

    def layer(self, index: int, params: Mapping[str, mx.array], hidden: mx.array) -> mx.array:
        """The layer under an expert's ``params`` (``Decoder.layer``)."""
        self._binding.params = params
        try:
            mask = causal_mask(hidden.shape[1], self._windows[index])
            output: mx.array = self._layers[index](hidden, mask, None)
        finally:
            self._binding.params = {}
        return output


def projections(layers: Sequence[Any]) -> Iterator[tuple[str, Any, str, Any]]:
    """(name, module that holds it, projection, linear layer) of all matrices that carry edits."""
    for index, layer in enumerate(layers):
        for part, targets in (("self_attn", ATTENTION_TARGETS), ("mlp", MLP_TARGETS)):
            owner = getattr(layer, part)
            for target in targets:
                yield f"layers.{index}.{part}.{target}", owner, target, getattr(owner, target)


def matrix_shapes(layers: Sequence[Any]) -> dict[str, tuple[int, int]]:
    """Matrix name -> (out, in) of a model whose projections are not yet wrapped."""
    shapes = {}
    for name, _, _, linear in projections(layers):
        out, columns = linear.weight.shape
        if isinstance(linear, nn.QuantizedLinear):
            columns = columns * 32 // linear.bits
        shapes[name] = (out, columns)
    return shapes


def causal_mask(length: int, window: int | None) -> Mask:
    """What a block's attention takes: as mlx-lm makes it for a sequence read at once."""
    if length == 1:
        return None
    if window is None or length <= window:
        return "causal"
    position = mx.arange(length)
    back = position[:, None] - position[None]
    return (back >= 0) & (back < window)


def by_layer(params: Mapping[str, mx.array], count: int) -> list[Params]:
    """The parameters of each layer, under their full names ``layers.<i>...``."""
    layers: list[Params] = [{} for _ in range(count)]
    for name, value in params.items():
        layers[int(name.split(".")[1])][name] = value
    return layers
