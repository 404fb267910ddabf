"""A layer's own weights as what is trained: ABSignSGD's *full* target, the paper's use.

The base must be unquantised.  Its layers' weights move from the model into the trainer's
parameters, named ``layers.<i>.<path in the layer>``, and the model keeps none of them: there is one
copy.  Embeddings, the final norm and the head stay frozen.

In bf16 a step of 1e-5 is lost on most weights of size 0.02, whose neighbours lie 6e-5 to 1.2e-4
apart.  So new values are computed in fp32 and rounded up or down at random, with the chances that
make the rounded value right on average.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from trainers.decoder import Params, causal_mask


class WeightDecoder:
    """A decoder (``trainers.decoder.Decoder``) whose layers are functions of their weights.

    Args: as of ``EditedDecoder``; the layers' weights are taken out of them, in place.

    Raises ``ValueError`` if a layer is quantised.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        windows: Sequence[int | None],
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
    ) -> None:
        if len(layers) != len(windows):
            raise ValueError(f"{len(layers)} layers, but windows of {len(windows)}")
        self.embed, self.head = embed, head
        self._layers, self._windows = layers, windows
        self._initial: Params = {}
        for index, layer in enumerate(layers):
            for path, value in _weights(layer):
                if not mx.issubdtype(value.dtype, mx.floating):
                    raise ValueError(f"layers.{index}.{path} is quantised: it cannot be trained")
                self._initial[f"layers.{index}.{path}"] = value
        for layer in layers:
            _empty(layer)

    def __len__(self) -> int:
        return len(self._layers)

    def take(self) -> Params:
        """The weights of all layers, handed over once: the caller's are the only copy then."""
        taken, self._initial = self._initial, {}
        return taken

    def layer(self, index: int, params: Mapping[str, mx.array], hidden: mx.array) -> mx.array:
        """The layer under ``params``, all of its weights (``Decoder.layer``)."""
        block = self._layers[index]
        block.update(tree_unflatten([(name.split(".", 2)[2], w) for name, w in params.items()]))
        try:
            mask = causal_mask(hidden.shape[1], self._windows[index])
            output: mx.array = block(hidden, mask, None)
        finally:
            _empty(block)
        return output


def _weights(layer: Any) -> list[tuple[str, mx.array]]:
    """(path in the layer, weight) of each of its weights."""
    return cast(list[tuple[str, mx.array]], tree_flatten(layer.parameters()))


def _empty(layer: Any) -> None:
    """Nothing in place of each weight: one that was forgotten is an error, not an old value."""
    nothing = mx.zeros((0,))
    layer.update(tree_unflatten([(path, nothing) for path, _ in _weights(layer)]))


def stochastically_rounded(value: mx.array, generator: np.random.Generator) -> mx.array:
    """fp32 -> bf16: one of the two neighbours, such that the mean over draws is ``value``.

    A value that bf16 holds exactly stays.
    """
    drawn = mx.array(generator.integers(0, 1 << 16, value.shape, dtype=np.uint32))
    # bf16 is the upper half of fp32: adding below it carries over with the right chance.
    bits = (mx.view(value, mx.uint32) + drawn) & 0xFFFF0000
    return mx.view(bits, mx.float32).astype(mx.bfloat16)
