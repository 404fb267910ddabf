"""Many rows in one forward pass, each with its own expert.

``Runtime`` is a loaded base model with expert slots; ``Batch`` is the state of rows being
generated: P groups of R rows with their keys and values (``app.engine.cache``) and their experts'
edits (``app.engine.layers``).  Nothing here samples, schedules or knows about requests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine import platform
from app.engine.cache import Context, GroupKV, Joined, LayerTensors, Layout
from app.engine.layers import Edits, Meter, Selection, install
from app.engine.maths import ACTIVATIONS
from app.engine.models import LoadedModel, attention_windows, embed, head, head_rows, inner
from trainers.spectral import Basis, Coordinates

Tokens = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
# Columns reserved beyond what is needed now, so that a decode step rarely reallocates.
_GROWTH = 64


class Runtime:
    """A base model ready to run batches.

    Args:
        model: loaded base model; its layers are replaced by slotted ones, in place.
        basis: the basis of this model.
    """

    def __init__(self, model: LoadedModel, basis: Basis) -> None:
        self.model = model
        self.basis_hash = basis.sha256
        self.coordinates: Coordinates = basis.coordinates
        self._blocks = {
            name: (block.singular_values.shape[0], block.singular_values.shape[1])
            for name, block in basis.blocks.items()
        }
        self._singular_values = {n: b.singular_values for n, b in basis.blocks.items()}
        self._inner: Any = inner(model.module)
        self._windows = attention_windows(model.module)
        activation = platform.STATUS.system == "linux" and ACTIVATIONS.get(model.info.family)
        self._selection: Selection = install(self._inner, self._windows, basis, activation or None)
        self.eos: frozenset[int] = frozenset(model.tokenizer.eos_token_ids)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self._windows)

    def edits(
        self, flat: FloatArray | mx.array | None, touched: Collection[str] | None = None
    ) -> Edits | None:
        """Edits of (P, total) fp32 experts; ``None`` stays the plain base.

        ``touched``: the matrices that any of them changes; found in ``flat`` by default.
        """
        if flat is None:
            return None
        names = self.coordinates.touched(np.asarray(flat)) if touched is None else touched
        return Edits(self.coordinates, mx.array(flat), self._blocks, names)

    def forward(self, batch: Batch, tokens: Tokens) -> mx.array:
        """Run ``tokens`` (B, L) as the next columns of ``batch``; hidden states (B, L, hidden).

        Lazy: nothing is computed before ``mx.eval``.
        """
        return self.run(batch, self.embed(tokens))

    def embed(self, tokens: Tokens) -> mx.array:
        """(B, L) token ids -> (B, L, hidden), what enters the first layer."""
        return embed(self.model.module, mx.array(tokens))

    def run(self, batch: Batch, hidden: mx.array) -> mx.array:
        """Run (B, L, hidden) through the batch's layers as its next columns; lazy.

        The final norm follows the last layer.
        """
        self._selection.edits = batch.edits
        batch.layout.begin(hidden.shape[1])
        for number, cache in zip(batch.span, batch.layers, strict=True):
            hidden = self._inner.layers[number](hidden, None, cache)
        batch.layout.end()
        return self._inner.norm(hidden) if batch.span.stop == self.layers else hidden

    def together(self, batches: Sequence[Batch], tokens: Tokens, edits: Edits | None) -> mx.array:
        """One more column (B, 1) of the rows of all batches in one pass; lazy.

        Their matmuls are shared; each batch attends to its own keys and values.  ``edits``: of
        the rows, in the order of the batches; (B, 1, hidden).
        """
        self._selection.edits = edits
        for batch in batches:
            batch.layout.begin(1)
        positions = mx.concatenate([batch.layout.positions for batch in batches])
        hidden = self.embed(tokens)
        for layer, stores in zip(
            self._inner.layers, zip(*(batch.layers for batch in batches), strict=True), strict=True
        ):
            hidden = layer(hidden, None, Joined(stores, positions))
        for batch in batches:
            batch.layout.end()
        normed: mx.array = self._inner.norm(hidden)
        return normed

    def read(
        self, hidden: mx.array, edits: Edits | None, span: range
    ) -> tuple[mx.array, LayerTensors]:
        """Run (1, T, hidden) of one sequence through some layers; lazy.

        Returns what leaves them and their keys and values, none where there are no tokens.
        """
        length = hidden.shape[1]
        if not length:
            return hidden, []
        batch = Batch.fresh(self, 1, np.zeros(1, dtype=np.int32), length, edits, span=span)
        return self.run(batch, hidden), batch.filled()

    def measured(self, batch: Batch, tokens: Tokens, weights: mx.array) -> dict[str, mx.array]:
        """Matrix name -> (n, b) energies of ``forward`` summed over positions of weight 1; lazy."""
        meter = self._selection.meter = Meter(weights)
        try:
            self.forward(batch, tokens)
            return meter.sums
        finally:
            self._selection.meter = None

    def relative_energies(self, sums: Mapping[str, mx.array]) -> npt.NDArray[np.float32]:
        """(total,) mean output energies sigma^2 (V^T x)^2, relative to the mean of their matrix."""
        parts = []
        for name in self.coordinates.sizes:
            energy = np.array(sums[name], dtype=np.float64) * self._singular_values[name] ** 2
            with np.errstate(invalid="ignore"):  # not finite under a broken expert, and stays so
                parts.append((energy / max(energy.mean(), 1e-30)).reshape(-1))
        return np.concatenate(parts).astype(np.float32)

    def head_rows(self, ids: mx.array) -> mx.array:
        """Head weights of tokens (...,) -> (..., hidden)."""
        return head_rows(self.model.module, ids)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        size = int(self._inner.layers[0].input_layernorm.weight.dtype.size)
        return 2 * size * sum(int(layer.self_attn.kv_width) for layer in self._inner.layers)

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the head knows."""
        return self.model.info.vocab_size

    def first_coordinate(self, layer: int) -> int:
        """Where the coordinates of ``layer`` begin in the flat vector; layers are in order."""
        return layer * (self.coordinates.total // self.layers)

    def logits(self, hidden: mx.array) -> mx.array:
        """(..., hidden) -> (..., vocabulary)."""
        return head(self.model.module, hidden)


@dataclass
class Batch:
    """P groups of R rows being generated.

    Attributes:
        layout: positions and padding, shared by the layers.
        layers: keys and values of each layer.
        edits: the groups' experts; ``None`` when all rows use the plain base.
        span: the model's layers that the batch runs through.
    """

    layout: Layout
    layers: list[GroupKV]
    edits: Edits | None
    span: range

    @classmethod
    def fresh(
        cls,
        runtime: Runtime,
        groups: int,
        pad: npt.NDArray[np.int32],
        capacity: int,
        edits: Edits | None,
        prefix: LayerTensors | None = None,
        span: range | None = None,
        context: tuple[Context, LayerTensors] | None = None,
    ) -> Batch:
        """An empty batch of ``len(pad)`` rows in ``groups`` groups, with room for ``capacity``.

        ``prefix``: keys and values of each group's shared prefix, per layer (P or 1, Hkv, T, D).
        ``span``: layers to run through, all by default.
        ``context``: columns before the rows, which all groups share, and their tensors per layer.
        """
        span = range(runtime.layers) if span is None else span
        length = prefix[0][0].shape[2] if prefix else 0
        before, tensors = context or (None, None)
        layout = Layout(groups, len(pad) // groups, length, pad, before)
        layers = [
            GroupKV(
                layout,
                capacity,
                prefix[index] if prefix else None,
                context=tensors[index] if tensors else None,
            )
            for index in range(len(span))
        ]
        return cls(layout, layers, edits, span)

    @classmethod
    def resumed(
        cls,
        filled: LayerTensors,
        pad: npt.NDArray[np.int32],
        capacity: int,
        edits: Edits | None,
        prefix: LayerTensors | None = None,
    ) -> Batch:
        """A batch of one group whose first own columns are filled already.

        ``filled``: per layer (B, Hkv, c, D); ``pad``: (B,) padding columns of each row;
        ``prefix``: keys and values before them that all rows share, per layer (1, Hkv, T, D).
        """
        layout = Layout(1, len(pad), prefix[0][0].shape[2] if prefix else 0, pad)
        layout.cursor = filled[0][0].shape[2]
        layers = [
            GroupKV(layout, capacity, prefix[index] if prefix else None, own)
            for index, own in enumerate(filled)
        ]
        return cls(layout, layers, edits, range(len(layers)))

    def tensors(self) -> list[mx.array]:
        """All keys and values, for ``mx.eval``."""
        return [part for kv in self.layers for part in (kv.keys, kv.values) if part is not None]

    def filled(self) -> LayerTensors:
        """Keys and values of the filled columns, per layer (B, Hkv, cursor, D)."""
        return [kv.own() for kv in self.layers]

    def keep(self, rows: Sequence[Sequence[int]], edits: Edits | None, spare: int) -> Batch:
        """The rows named by ``rows``: P' lists of R' row numbers, a group's list from one group.

        Args:
            rows: row numbers; a number may repeat, to keep groups equally long.
            edits: edits of the kept groups.
            spare: columns still to be generated.
        """
        index = np.asarray(rows, dtype=np.int32)  # (P', R')
        flat = mx.array(index.reshape(-1))
        groups = mx.array(index[:, 0] // self.layout.rows)
        pad = self.layout.pad[index.reshape(-1)]
        layout = Layout(index.shape[0], index.shape[1], self.layout.prefix, pad)
        layout.cursor = self.layout.cursor
        layers = []
        for kv in self.layers:
            keys, values = kv.own()
            prefix = None if kv.prefix is None else (kv.prefix[0][groups], kv.prefix[1][groups])
            own = (keys[flat], values[flat])
            layers.append(GroupKV(layout, layout.cursor + spare, prefix, own))
        return Batch(layout, layers, edits, self.span)

    def reserve(self, columns: int) -> None:
        """Make room for ``columns`` more columns."""
        needed = self.layout.cursor + columns
        if needed <= self.layers[0].capacity:
            return
        own = self.filled()
        self.layers = [
            GroupKV(self.layout, needed + _GROWTH, kv.prefix, part)
            for kv, part in zip(self.layers, own, strict=True)
        ]


def aligned(parts: Sequence[Batch], prefix: LayerTensors | None) -> Batch:
    """One batch of one group out of several, their own columns right-aligned.

    Columns that are padding in every row are cut away.  ``prefix``: what all of them have as
    shared prefix; ``None`` = none has one.
    """
    width = max(int((b.layout.cursor - b.layout.pad).max()) for b in parts)
    pads = [b.layout.pad + (width - b.layout.cursor) for b in parts]
    filled = [
        tuple(
            mx.concatenate([_fit(b.layers[layer].own()[side], width) for b in parts])
            for side in (0, 1)
        )
        for layer in range(len(parts[0].layers))
    ]
    pad = np.concatenate(pads).astype(np.int32)
    return Batch.resumed([(k, v) for k, v in filled], pad, width + _GROWTH, None, prefix)


def absorbed(batch: Batch) -> Batch:
    """A batch of one group whose prefix is copied into the own columns of each of its rows."""
    length = batch.layout.prefix
    if not length:
        return batch
    pad, width = batch.layout.pad, batch.layout.cursor
    column = np.arange(length + width)[None, :]
    # (R, T + W): where each column comes from, the prefix moved to behind the row's padding
    behind = column - pad[:, None]
    source = mx.array(np.where(behind < length, np.maximum(behind, 0), column).astype(np.int32))

    def moved(prefix: mx.array, own: mx.array) -> mx.array:
        shape = (own.shape[0], *prefix.shape[1:])
        whole = mx.concatenate([mx.broadcast_to(prefix, shape), own], axis=2)
        return mx.take_along_axis(whole, source[:, None, :, None], axis=2) if pad.any() else whole

    filled: LayerTensors = []
    for kv in batch.layers:
        assert kv.prefix is not None
        (keys, values), own = kv.prefix, kv.own()
        filled.append((moved(keys, own[0]), moved(values, own[1])))
    return Batch.resumed(filled, pad, length + width, batch.edits)


def _fit(part: mx.array, width: int) -> mx.array:
    """(B, Hkv, c, D) cut or zero-padded on the left to ``width`` columns."""
    columns = part.shape[2]
    if columns >= width:
        return part[:, :, columns - width :]
    return mx.pad(part, [(0, 0), (0, 0), (width - columns, 0), (0, 0)])


def right_aligned(prompts: Sequence[Tokens]) -> tuple[Tokens, npt.NDArray[np.int32]]:
    """Token matrix (B, longest) padded on the left with 0, and the padding of each row."""
    longest = max(len(p) for p in prompts)
    tokens = np.zeros((len(prompts), longest), dtype=np.int32)
    pad = np.array([longest - len(p) for p in prompts], dtype=np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, pad[row] :] = prompt
    return tokens, pad
