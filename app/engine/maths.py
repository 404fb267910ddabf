"""Exponentials that MLX computes slowly on x86, composed of operations it computes fast.

MLX's CPU back end evaluates ``exp`` one scalar at a time there (15-19 ns each; a SwiGLU then costs
a third of its layer's matmuls), while additions and multiplications are vectorised (0.3-0.5 ns).
``exp`` below is range reduction in base two with a degree-5 polynomial in eighteen such passes.
On Metal the functions are MLX's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from app.engine import platform

_LOG2_E = 1.4426950408889634
_LOWEST, _HIGHEST = -125.51446533203125, 126.95716094970703  # -87 and 88 times it
# 1.5 * 2^23 + 127: adding it leaves the nearest integer, plus the bias of an exponent, in the low
# bits of the mantissa.
_ROUND = 12583039.0
# 2^f on |f| <= 1/2 with 2^0 = 1, highest coefficient first; minimax fit, relative error 1.1e-07.
_POLYNOMIAL = (
    0.0013264729641377926,
    0.009671512991189957,
    0.05550733581185341,
    0.24022242426872253,
    0.6931470036506653,
    1.0,
)
# Up to so many numbers, starting eighteen operations takes longer than MLX's one.
_FEW = 4096
Activation = Callable[[mx.array, mx.array], mx.array]


def exp(x: mx.array) -> mx.array:
    """exp of fp32, relative error below 2e-7 (1 + |x|); clipped at -87 and 88. NaN stays NaN."""
    if x.size <= _FEW:
        return mx.exp(mx.clip(x, -87, 88))
    return _exp2(mx.minimum(x * _LOG2_E, _HIGHEST))


def _exp2(y: mx.array) -> mx.array:
    """2^y of fp32 up to _HIGHEST; clipped at _LOWEST."""
    y = mx.maximum(y, _LOWEST)
    shifted = y + _ROUND
    f = y - (shifted - _ROUND)
    power = mx.view(mx.view(shifted, mx.int32) << 23, mx.float32)  # 2^round(y)
    p = f * _POLYNOMIAL[0] + _POLYNOMIAL[1]
    for coefficient in _POLYNOMIAL[2:]:
        p = p * f + coefficient
    return p * power


def _composed(x: mx.array) -> bool:
    return platform.STATUS.system == "linux" and x.dtype == mx.float32 and x.size > _FEW


def softmax_parts(parts: Sequence[mx.array]) -> tuple[list[mx.array], mx.array]:
    """Softmax over the last axes of several arrays together, not yet normalised.

    Returns the weights of each part and their common sum (..., 1), both fp32: whoever sums values
    with the weights divides once, at the end.
    """
    highest = parts[0].max(axis=-1, keepdims=True)
    for part in parts[1:]:
        highest = mx.maximum(highest, part.max(axis=-1, keepdims=True))
    weights = [_exp_of_negative(part.astype(mx.float32) - highest) for part in parts]
    total = weights[0].sum(axis=-1, keepdims=True)
    for weight in weights[1:]:
        total = total + weight.sum(axis=-1, keepdims=True)
    return weights, total


def _exp_of_negative(x: mx.array) -> mx.array:
    """exp of fp32 that is not positive."""
    return _exp2(x * _LOG2_E) if _composed(x) else mx.exp(x)


def logsumexp(logits: mx.array) -> mx.array:
    """log sum exp over the last axis of fp32."""
    if not _composed(logits):
        return mx.logsumexp(logits, axis=-1)
    highest = logits.max(axis=-1, keepdims=True)
    return mx.log(_exp_of_negative(logits - highest).sum(axis=-1)) + highest[..., 0]


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up."""
    return gate / (1.0 + exp(-gate)) * up


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """gelu(gate) * up with the tanh approximation: tanh(u) = 2 sigmoid(2u) - 1."""
    inner = -1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + exp(inner)) * up


# Families whose MLP is down(activation(gate(x), up(x))).
ACTIVATIONS: dict[str, Activation] = {
    "llama": swiglu,
    "qwen2": swiglu,
    "qwen3": swiglu,
    "gemma3": geglu,
    "gemma3_text": geglu,
}
