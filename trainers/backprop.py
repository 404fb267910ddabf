"""Backpropagation, one layer at a time (MeBP, arXiv 2510.03425, section 3).

    forward    h_0 = embed(tokens),  h_{l+1} = F_l(h_l; theta_l);  keep the h_l, nothing else
    head       loss and dL/dh_N from rows of h_N, a chunk at a time
    backward   for l = N-1 .. 0:  recompute F_l at h_l,
               (dL/dh_l, dL/dtheta_l) = vjp(F_l)(dL/dh_{l+1});  evaluate; hand over; free

Each arrow is evaluated before the next is built, so the activations of one layer, and its weights
if they are dequantised, are all that exists beside the kept inputs; and a run can be stopped
between any two.  Logits exist for one chunk of rows, of the rows that are trained on.

A ``Plan`` says which layers are differentiated, so that LCSB and ABSignSGD are this loop, too:
inputs are kept, and layers recomputed, for those only.

fp16 holds gradients down to 6e-8 only.  So the loss is multiplied by a power of two that makes its
largest weight one, and gradients are divided by it at the end; elsewhere that changes no digit.
Not compiled: a trace would keep the selection and weights of its first call.
Writing the kept inputs to disk, as the source can, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from trainers.decoder import Decoder, Params, by_layer
from trainers.objectives import Batch

CHUNK_ROWS = 32
"""Rows of hidden states whose logits exist at once."""

OnGradient = Callable[[int, Params], None]
ShouldStop = Callable[[], str | None]


class Stopped(Exception):
    """The work was stopped between two layers; ``reason`` is what ``should_stop`` said."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Plan:
    """Which layers the backward pass visits.

    Attributes:
        trained: layers whose parameters' gradients are wanted.
        exact: layers that pass gradients on by their own Jacobian; the others by the identity.
    """

    trained: frozenset[int]
    exact: frozenset[int]

    @classmethod
    def full(cls, count: int) -> Plan:
        """Exact gradients of all layers."""
        return cls(frozenset(range(count)), frozenset(range(count)))

    @classmethod
    def selected(cls, layers: Sequence[int]) -> Plan:
        """LCSB: the others are the identity."""
        return cls(frozenset(layers), frozenset(layers))

    @classmethod
    def block(cls, layer: int, count: int) -> Plan:
        """ABSignSGD: the exact gradient of one layer, and nothing below it."""
        return cls(frozenset([layer]), frozenset(range(layer, count)))

    def visited(self, layers: Sequence[Params]) -> list[int]:
        """Layers to differentiate, from the top; none below the lowest that has parameters."""
        trained = [index for index in self.trained if layers[index]]
        lowest = min(trained, default=len(layers))
        return sorted((i for i in self.exact | set(trained) if i >= lowest), reverse=True)


def never() -> str | None:
    """A ``should_stop`` that lets the work go on."""
    return None


def gradients(
    decoder: Decoder,
    params: Mapping[str, mx.array],
    batch: Batch,
    plan: Plan,
    on_gradient: OnGradient,
    should_stop: ShouldStop = never,
    chunk_rows: int = CHUNK_ROWS,
) -> float:
    """The loss; ``on_gradient(layer, gradients)`` is called for each trained layer, top first.

    Gradients have the parameters' names and types, and are the callee's to keep or free: the next
    layer is not begun before it returns.  Raises ``Stopped``.
    """
    layers = by_layer(params, len(decoder))
    visited = plan.visited(layers)
    hidden, inputs = forward(decoder, layers, batch.tokens, frozenset(visited), should_stop)
    scale = _loss_scale(batch)
    loss, cotangent = head_gradient(decoder, hidden, batch, scale, should_stop, chunk_rows)
    del hidden
    for index in visited:
        _check(should_stop)
        own = layers[index] if index in plan.trained else {}
        through = index != visited[-1]
        found = layer_vjp(decoder, index, layers[index], own, inputs.pop(index), cotangent, through)
        if found.input is not None:
            cotangent = found.input
        if own:
            # Popped: MLX then divides in place.
            on_gradient(index, {name: found.params.pop(name) / scale for name in own})
    return loss


def forward(
    decoder: Decoder,
    layers: Sequence[Params],
    tokens: mx.array,
    keep: frozenset[int],
    should_stop: ShouldStop = never,
) -> tuple[mx.array, dict[int, mx.array]]:
    """The last layer's output, (B, L, hidden), and the inputs of the layers in ``keep``."""
    hidden = decoder.embed(tokens)
    inputs = {}
    for index, params in enumerate(layers):
        _check(should_stop)
        if index in keep:
            inputs[index] = hidden
        hidden = decoder.layer(index, params, hidden)
        mx.eval(hidden)
    return hidden, inputs


def hidden_at(
    decoder: Decoder,
    params: Mapping[str, mx.array],
    batch: Batch,
    should_stop: ShouldStop = never,
) -> mx.array:
    """(R, hidden) output of the last layer at the batch's rows; no parameters: the base's."""
    layers = by_layer(params, len(decoder))
    hidden, _ = forward(decoder, layers, batch.tokens, frozenset(), should_stop)
    rows = hidden.reshape(-1, hidden.shape[-1])[batch.rows]
    mx.eval(rows)
    return rows


def head_gradient(
    decoder: Decoder,
    hidden: mx.array,
    batch: Batch,
    scale: float = 1.0,
    should_stop: ShouldStop = never,
    chunk_rows: int = CHUNK_ROWS,
) -> tuple[float, mx.array]:
    """The loss, and ``scale`` times its gradient by ``hidden``, (B, L, hidden), of its type."""
    flat = hidden.reshape(-1, hidden.shape[-1])
    loss, parts = 0.0, []
    for start in range(0, batch.rows.size, chunk_rows):
        _check(should_stop)
        part = slice(start, start + chunk_rows)

        def scaled(rows: mx.array, part: slice = part) -> mx.array:
            return scale * batch.loss(decoder.head, rows, part)

        value, gradient = mx.value_and_grad(scaled)(flat[batch.rows[part]])
        mx.eval(value, gradient)
        loss += number(value) / scale
        parts.append(gradient)
    cotangent = mx.zeros_like(flat).at[batch.rows].add(mx.concatenate(parts))
    mx.eval(cotangent)
    return loss, cotangent.reshape(hidden.shape)


@dataclass(frozen=True)
class LayerGradient:
    """dL/dh of a layer's input, none if it was not wanted, and dL/dtheta of its parameters."""

    input: mx.array | None
    params: Params


def layer_vjp(
    decoder: Decoder,
    index: int,
    params: Params,
    trained: Params,
    hidden: mx.array,
    cotangent: mx.array,
    through: bool,
) -> LayerGradient:
    """Recompute layer ``index`` at ``hidden`` and pull ``cotangent`` back through it; evaluated.

    ``trained``: those of its ``params`` to differentiate; ``through``: the input, too.
    """
    names = list(trained)
    # As arguments: MLX gives arrays that a function closes over no gradient.
    primals = [*trained.values(), *([hidden] if through else [])]

    def layer(*arguments: mx.array) -> mx.array:
        own = dict(params)
        own.update(zip(names, arguments[: len(names)], strict=True))
        return decoder.layer(index, own, arguments[-1] if through else hidden)

    _, pulled = mx.vjp(layer, primals, [cotangent])
    mx.eval(pulled)
    by_name = dict(zip(names, pulled[: len(names)], strict=True))
    return LayerGradient(pulled[-1] if through else None, by_name)


def number(value: mx.array) -> float:
    """The value of a real scalar."""
    return cast(float, value.item())


def _loss_scale(batch: Batch) -> float:
    """A power of two; times it, the largest weight of a token lies in [1, 2)."""
    largest = number(mx.abs(batch.weights).max())
    return 2.0 ** -math.floor(math.log2(largest)) if largest > 0 else 1.0


def _check(should_stop: ShouldStop) -> None:
    reason = should_stop()
    if reason is not None:
        raise Stopped(reason)
