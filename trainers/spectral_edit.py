"""Spectral experts as an edit that gradients flow through (``trainers.spectral``, equation 1).

    x' = x + V (e * (V^T x)),      y = W x'

The coordinates e of a matrix are its one parameter, under the matrix's own name.  V is a constant:
gradients reach e and x only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx

from trainers.spectral import Basis, BlockBasis

Params = dict[str, mx.array]


class SpectralEdit:
    """Spectral coordinates as an edit of linear layers (``trainers.decoder.Edit``).

    Args:
        basis: of the base model.
    """

    def __init__(self, basis: Basis) -> None:
        self._shapes = {name: b.singular_values.shape for name, b in basis.blocks.items()}
        self._vectors = {name: _vectors(block) for name, block in basis.blocks.items()}

    def initial(self) -> Params:
        """The coordinates of the base model: zeros, fp32, (in,) a matrix."""
        return {name: mx.zeros(n * b) for name, (n, b) in self._shapes.items()}

    def __call__(
        self,
        matrix: str,
        linear: Callable[[mx.array], mx.array],
        x: mx.array,
        params: Mapping[str, mx.array],
    ) -> mx.array:
        """The layer's output under ``params``; a matrix without coordinates is the base's."""
        e = params.get(matrix)
        return linear(x if e is None else self._edited(matrix, x, e))

    def _edited(self, matrix: str, x: mx.array, e: mx.array) -> mx.array:
        """x' in at least fp16 precision: bf16's 0.4 % steps would eat e."""
        n, b = self._shapes[matrix]
        exact = x.astype(mx.float16 if x.dtype == mx.float16 else mx.float32)
        blocks = exact.reshape(-1, n, b).transpose(1, 0, 2)  # (n, M, b)
        coordinates = e.astype(exact.dtype).reshape(n, 1, b)
        vectors = self._vectors[matrix]
        if vectors is None:
            delta = blocks * coordinates
        else:
            v = vectors.astype(exact.dtype)
            delta = ((blocks @ v) * coordinates) @ v.transpose(0, 2, 1)
        edited = exact + delta.transpose(1, 0, 2).reshape(x.shape)
        return edited.astype(x.dtype)


def _vectors(block: BlockBasis) -> mx.array | None:
    """V, (n, b, b) fp32; none where V = I."""
    return None if block.vectors is None else mx.array(block.vectors)
