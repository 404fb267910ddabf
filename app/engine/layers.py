"""Layers with expert slots: each row of a batch is computed with its own expert's edit.

A batch is *P groups of R rows*; every row of a group uses the same expert.  Chat batches have
R = 1, a training population has one group per candidate.  The base weights are shared and never
written: an expert acts on the layer's input (``trainers.spectral``, equation 1), so rows of
different experts ride in the same matmuls.

    x' = x + V (e * (V^T x)),   y = W x'

Slot 0, the plain base, has e = 0 and is bit-identical to no edit: x + 0 = x.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from mlx import nn

from app.engine import platform
from app.engine.maths import Activation
from trainers.spectral import (
    ATTENTION_TARGETS,
    MLP_TARGETS,
    Basis,
    BlockBasis,
    Coordinates,
)

# On CPU it multiplies x's columns where they are; matmul copies them block by block first. MLX's is
# wrong there in half precision.
_SEGMENTED = platform.STATUS.system == "linux"


class Edits:
    """The coordinates of the P experts of one batch, cut per matrix.

    Args:
        coordinates: layout of the flat vector.
        flat: (P, total) fp32, one expert a row.
        blocks: matrix name -> (n, b).
        touched: the matrices that any of the experts changes; the others run as the base's.

    Raises ``ValueError`` for another number of coordinates.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        flat: mx.array,
        blocks: dict[str, tuple[int, int]],
        touched: Collection[str],
    ) -> None:
        if flat.shape[1] != coordinates.total:
            raise ValueError(f"expected {coordinates.total} coordinates, got {flat.shape[1]}")
        self.groups = flat.shape[0]
        self._coordinates = coordinates
        self._flat = flat
        self._blocks = blocks
        self._touched = touched
        self._views = {
            # (n, P, 1, b): lines up with (n, P, R * L, b), views without a copy
            name: flat[:, part].reshape(self.groups, 1, *blocks[name]).transpose(2, 0, 1, 3)
            for name, part in coordinates.slices()
            if name in touched
        }

    def keep(self, groups: Sequence[int]) -> Edits:
        """The edits of some of the groups."""
        kept = self._flat[mx.array(list(groups))]
        return Edits(self._coordinates, kept, self._blocks, self._touched)

    def of(self, name: str) -> mx.array | None:
        """(n, P, 1, b) coordinates of one matrix; ``None`` if no expert changes it."""
        return self._views.get(name)


class Meter:
    """Sums the energy of each coordinate, (V^T x)^2, over the positions of a pass.

    Args:
        weights: (M,) 1 for a position that counts, 0 for padding.
    """

    def __init__(self, weights: mx.array) -> None:
        self._weights = weights[None, :, None]
        self.sums: dict[str, mx.array] = {}  # matrix name -> (n, b)

    def add(self, name: str, spectrum: mx.array) -> None:
        """(n, M, b) projections of one matrix's input."""
        exact = spectrum.astype(mx.float32)  # squares of fp16 would overflow from 256 on
        self.sums[name] = (exact * exact * self._weights).sum(axis=1)


class Selection:
    """What the layers do in the forward pass being built.

    One object is shared by all layers of a model and set by the engine thread before each pass.

    Attributes:
        edits: the experts to apply; ``None`` is the plain base.
        meter: measures the coordinates' energies on the way; ``None`` otherwise.
    """

    def __init__(self) -> None:
        self.edits: Edits | None = None
        self.meter: Meter | None = None


class SlotLinear(nn.Module):
    """A dense or quantised linear layer whose input is edited per group of rows."""

    def __init__(
        self, name: str, linear: nn.Module, basis: BlockBasis, selection: Selection
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx.nn has no types
        self.linear = linear
        # Underscored: neither the vectors nor the selection are parameters of the model.
        self._name = name
        self._selection = selection
        n, b = self._blocks = basis.singular_values.shape
        # (n * b, b), the blocks one below the other, and where each of them begins and ends; and
        # views of the same, made once: 200 matrices build their part of a graph for every token
        self._vectors = None if basis.vectors is None else mx.array(basis.vectors.reshape(-1, b))
        if self._vectors is not None:
            self._forth = self._vectors.reshape(n, b, b)
            self._back = self._forth.transpose(0, 2, 1)
        ends = np.arange(n + 1, dtype=np.uint32) * b
        self._segments = mx.array(np.stack([ends[:-1], ends[1:]], axis=1))

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, in) -> (B, L, out)."""
        edits, meter = self._selection.edits, self._selection.meter
        if meter is not None:
            meter.add(self._name, self._spectrum(x))
        e = None if edits is None else edits.of(self._name)
        y: mx.array = self.linear(x if e is None else self._edited(x, e))
        return y

    def _edited(self, x: mx.array, e: mx.array) -> mx.array:
        """x + V (e * (V^T x)) in at least fp16 precision: bf16's 0.4 % steps would eat e."""
        n, b = self._blocks
        spectrum = self._spectrum(x)
        scaled = spectrum.reshape(n, e.shape[1], -1, b) * _as(e, spectrum.dtype)
        delta = scaled.reshape(n, -1, b)
        if self._vectors is not None:
            delta = delta @ _as(self._back, delta.dtype)
        # The sum reads delta across its blocks: no copy of it in the order of x.
        edited = x.reshape(-1, n, b) + delta.transpose(1, 0, 2)
        return _as(edited.reshape(x.shape), x.dtype)

    def _spectrum(self, x: mx.array) -> mx.array:
        """V^T x per block, (n, M, b) with M = P R L."""
        n, b = self._blocks
        exact = mx.float16 if x.dtype == mx.float16 else mx.float32
        rows = _as(x.reshape(-1, n * b), exact)
        if self._vectors is not None and _SEGMENTED and rows.dtype == mx.float32:
            return mx.segmented_mm(rows, self._vectors, self._segments)
        blocks = rows.reshape(-1, n, b).transpose(1, 0, 2)
        if self._vectors is None:
            return blocks
        return blocks @ _as(self._forth, exact)


def _as(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """x in a type; `astype` adds to the graph even where nothing changes."""
    return x if x.dtype == dtype else x.astype(dtype)


class LayerCache(Protocol):
    """What attention needs of a layer's key-value store (``app.engine.cache``)."""

    @property
    def positions(self) -> mx.array:
        """(B,) position of the first new token of each row."""

    def attend(
        self, q: mx.array, k: mx.array, v: mx.array, scale: float, window: int | None
    ) -> mx.array:
        """Store k and v, (B, Hkv, L, D), and return attention of q, (B, H, L, D)."""


class SlotAttention(nn.Module):
    """Attention of llama, qwen2, qwen3 and gemma3 over our own key-value store.

    Takes the projections, norms and rotary embedding of an mlx-lm attention module as they are;
    masks come from the store, so the ``mask`` argument of the block is not used.
    """

    def __init__(self, attention: Any, window: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx.nn has no types
        for part in ("q_proj", "k_proj", "v_proj", "o_proj", "rope"):
            setattr(self, part, getattr(attention, part))
        self.q_norm = attention.q_norm if "q_norm" in attention else None
        self.k_norm = attention.k_norm if "k_norm" in attention else None
        self._heads: tuple[int, int] = (attention.n_heads, attention.n_kv_heads)
        self._scale = float(attention.scale)
        self._window = window

    @property
    def kv_width(self) -> int:
        """Numbers of one token's keys."""
        width: int = self.k_proj.linear.weight.shape[0]
        return width

    def __call__(
        self,
        x: mx.array,
        mask: Any = None,  # noqa: ARG002  (the block passes one)
        cache: LayerCache | None = None,
    ) -> mx.array:
        """(B, L, hidden) -> (B, L, hidden)."""
        if cache is None:
            raise ValueError("the engine's attention needs a key-value store")
        rows, length, _ = x.shape
        heads, kv_heads = self._heads
        q = self._split(self.q_proj(x), heads, self.q_norm)
        k = self._split(self.k_proj(x), kv_heads, self.k_norm)
        v = self._split(self.v_proj(x), kv_heads, None)
        q = self.rope(q, offset=cache.positions)
        k = self.rope(k, offset=cache.positions)
        out = cache.attend(q, k, v, self._scale, self._window)
        result: mx.array = self.o_proj(out.transpose(0, 2, 1, 3).reshape(rows, length, -1))
        return result

    @staticmethod
    def _split(x: mx.array, heads: int, norm: nn.Module | None) -> mx.array:
        """(B, L, heads * D) -> (B, heads, L, D), normalised per head where the family does."""
        x = x.reshape(x.shape[0], x.shape[1], heads, -1)
        if norm is not None:
            x = norm(x)
        return x.transpose(0, 2, 1, 3)


class SlotMLP(nn.Module):
    """A gated MLP whose activation is ours; used on CPU only (``app.engine.maths``)."""

    def __init__(self, mlp: Any, activation: Activation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # mlx.nn has no types
        self.gate_proj, self.up_proj, self.down_proj = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        self._activation = activation

    def __call__(self, x: mx.array) -> mx.array:
        """(B, L, hidden) -> (B, L, hidden)."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        gated = self._activation(gate.astype(mx.float32), up.astype(mx.float32))
        y: mx.array = self.down_proj(gated.astype(x.dtype))
        return y


def matrices(inner: Any) -> Iterator[tuple[str, Any]]:
    """The layers that carry coordinates, as (``layers.<i>.<part>.<projection>``, layer)."""
    for index, layer in enumerate(inner.layers):
        for part, projections in (("self_attn", ATTENTION_TARGETS), ("mlp", MLP_TARGETS)):
            for projection in projections:
                name = f"layers.{index}.{part}.{projection}"
                yield name, getattr(getattr(layer, part), projection)


def install(
    inner: Any, windows: list[int | None], basis: Basis, activation: Activation | None = None
) -> Selection:
    """Replace the attention and projections of a decoder stack by their slotted forms, in place.

    Args:
        inner: decoder stack with ``.layers`` (``app.engine.models.inner``).
        windows: sliding window of each layer, ``None`` for full attention.
        basis: basis of this base model; its matrix names are ``layers.<i>.<part>.<projection>``.
        activation: of the gated MLPs where ours is the faster one, else they are left alone.

    Returns the selection that the engine sets before each forward pass.
    """
    selection = Selection()
    for name, linear in list(matrices(inner)):
        _, index, part, projection = name.split(".")
        slotted = SlotLinear(name, linear, basis.blocks[name], selection)
        setattr(getattr(inner.layers[int(index)], part), projection, slotted)
    for layer, window in zip(inner.layers, windows, strict=True):
        layer.self_attn = SlotAttention(layer.self_attn, window)
        if activation is not None:
            layer.mlp = SlotMLP(layer.mlp, activation)
    return selection
