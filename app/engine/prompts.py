"""Where the prompts of rows that start together are put, beside what is known of them already."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from app.engine.batch import Batch, Runtime, Tokens, right_aligned
from app.engine.cache import LayerTensors
from app.engine.layers import Edits
from app.engine.prefixes import Known


def behind(
    runtime: Runtime, known: Known | None, prompts: Sequence[Tokens], edits: Edits | None
) -> tuple[Batch, Tokens]:
    """A batch for prompts that begin with ``known``, which stays in place; the tokens to read."""
    shared = known.length if known else 0
    tokens, pad = right_aligned([prompt[shared:] for prompt in prompts])
    prefix = known.tensors() if known else None
    return Batch.fresh(runtime, 1, pad, tokens.shape[1] + 1, edits, prefix), tokens


def beside(
    runtime: Runtime,
    known: Sequence[Known | None],
    prompts: Sequence[Tokens],
    edits: Edits | None,
) -> tuple[Batch, Tokens]:
    """A batch into which each prompt's own known beginning is copied; the tokens to read."""
    lengths = [len(prompt) for prompt in prompts]
    counts = [found.length if found else 0 for found in known]
    # Every row runs the same number of columns, at least one: the longest unknown part.
    width = max(n - min(k, n - 1) for n, k in zip(lengths, counts, strict=True))
    reused = [max(0, n - width) for n in lengths]
    filled = max(reused)
    pad = np.array([filled + width - n for n in lengths], dtype=np.int32)
    tokens, _ = right_aligned([p[count:] for p, count in zip(prompts, reused, strict=True)])
    capacity = filled + width + 1
    if not filled:
        return Batch.fresh(runtime, 1, pad, capacity, edits), tokens
    return Batch.resumed(_copied(known, reused, filled), pad, capacity, edits), tokens


def _copied(known: Sequence[Known | None], reused: Sequence[int], filled: int) -> LayerTensors:
    """Known beginnings right-aligned in ``filled`` columns, per layer (B, Hkv, filled, D)."""
    some = next(k for k, count in zip(known, reused, strict=True) if k and count).entry.layers

    def column(layer: int, side: int) -> mx.array:
        like = some[layer][side]
        parts = []
        for found, count in zip(known, reused, strict=True):
            if found is None or count == 0:
                shape = (1, like.shape[1], filled, like.shape[3])
                parts.append(mx.zeros(shape, like.dtype))
                continue
            part = found.entry.layers[layer][side][:, :, :count]
            parts.append(mx.pad(part, [(0, 0), (0, 0), (filled - count, 0), (0, 0)]))
        return mx.concatenate(parts)

    return [(column(layer, 0), column(layer, 1)) for layer in range(len(some))]
