"""Exponentials that MLX computes slowly on x86, composed of operations it computes fast.

MLX's CPU back end evaluates ``exp`` one scalar at a time there (19 ns each; a SwiGLU then costs a
third of its layer's matmuls), while additions and multiplications are vectorised (0.4 ns).
``exp`` below is the classic range reduction with a degree-6 polynomial in about twenty such
passes, three to four times faster.  On Metal the functions are MLX's own.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from app.engine import platform

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: k * _LN2_HIGH is exact for the k that occur.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_ROUND = 12582912.0  # 1.5 * 2^23: adding it leaves the nearest integer in the low mantissa bits
# exp(r) on |r| <= ln(2) / 2 is 1 + r + r^2 p(r); coefficients of p, highest first (Cephes expf).
_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
Activation = Callable[[mx.array, mx.array], mx.array]


def exp(x: mx.array) -> mx.array:
    """exp of fp32, relative error below 2e-7; arguments are clipped to [-87, 88]. NaN stays NaN."""
    x = mx.minimum(mx.maximum(x, -87.0), 88.0)
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = mx.view((mx.view(shifted, mx.int32) << 23) + (127 << 23), mx.float32)  # 2^k
    p = r * _POLYNOMIAL[0] + _POLYNOMIAL[1]
    for coefficient in _POLYNOMIAL[2:]:
        p = p * r + coefficient
    return (p * (r * r) + r + 1.0) * power


def _composed(x: mx.array) -> bool:
    return platform.STATUS.system == "linux" and x.dtype == mx.float32


def softmax(scores: mx.array) -> mx.array:
    """Softmax over the last axis, sums in fp32."""
    if not _composed(scores):
        return mx.softmax(scores, axis=-1, precise=True)
    weights = exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def logsumexp(logits: mx.array) -> mx.array:
    """log sum exp over the last axis of fp32."""
    if not _composed(logits):
        return mx.logsumexp(logits, axis=-1)
    highest = logits.max(axis=-1, keepdims=True)
    return mx.log(exp(logits - highest).sum(axis=-1)) + highest[..., 0]


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up."""
    return gate / (1.0 + exp(-gate)) * up


def geglu(gate: mx.array, up: mx.array) -> mx.array:
    """gelu(gate) * up with the tanh approximation: tanh(u) = 2 sigmoid(2u) - 1."""
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    return gate / (1.0 + exp(-inner)) * up


# Families whose MLP is down(activation(gate(x), up(x))).
ACTIVATIONS: dict[str, Activation] = {
    "llama": swiglu,
    "qwen2": swiglu,
    "qwen3": swiglu,
    "gemma3": geglu,
    "gemma3_text": geglu,
}
