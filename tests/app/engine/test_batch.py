"""The batched forward of every family against mlx-lm's own model, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.engine.batch import Batch, Runtime, absorbed, aligned, right_aligned  # isort: skip
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from tests import tiny
from tests.app.engine import rigs
from trainers.spectral import Basis

Runtimes = Callable[[str], tuple[Runtime, Basis]]
LENGTHS = [23, 14, 19]  # longer than gemma's window of 8
SHARED = 12
# Logits spread by about 8; two ways to the same fp32 sum differ by far less.
CLOSE = 2e-3

families = pytest.mark.parametrize("family", tiny.FAMILIES)


def started(
    runtime: Runtime, prompts: list[rigs.Tokens], split: int, flat: rigs.FloatArray | None
) -> tuple[Batch, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """A batch with each group's prefix filled, the rows' own tokens and their padding."""
    groups = 1 if flat is None else len(flat)
    edits = runtime.edits(None if flat is None else mx.array(flat))
    tokens, pad = right_aligned([prompt[split:] for prompt in prompts])
    tokens, pad = np.tile(tokens, (groups, 1)), np.tile(pad, groups)
    prefix = None
    if split:
        shared = Batch.fresh(runtime, groups, np.zeros(groups, np.int32), split, edits)
        runtime.forward(shared, np.tile(prompts[0][:split], (groups, 1)))
        prefix = shared.filled()
    return Batch.fresh(runtime, groups, pad, tokens.shape[1], edits, prefix), tokens, pad


def logits(runtime: Runtime, batch: Batch, tokens: npt.NDArray[np.int32]) -> rigs.FloatArray:
    return np.array(runtime.logits(runtime.forward(batch, tokens)), dtype=np.float32)


def assert_rows_are(
    got: rigs.FloatArray,
    pad: npt.NDArray[np.int32],
    prompts: list[rigs.Tokens],
    split: int,
    references: list[Any],
) -> None:
    """Every row's logits at its own tokens are those of its group's reference model."""
    for row in range(len(got)):
        reference, prompt = references[row // len(prompts)], prompts[row % len(prompts)]
        expected = rigs.logits_of(reference, prompt)[split:]
        assert np.abs(got[row, pad[row] :] - expected).max() < CLOSE
    spread = np.concatenate([rigs.logits_of(r, p) for r in references for p in prompts]).std()
    assert spread > 1000 * CLOSE


@families
@pytest.mark.parametrize("split", [0, SHARED])
def test_the_base_with_prefix_padding_and_windows_is_mlx_lms_model(
    family: str, split: int, runtimes: Runtimes, stocks: Callable[[str], Any]
) -> None:
    runtime, _ = runtimes(family)
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, pad = started(runtime, prompts, split, None)
    got = logits(runtime, batch, tokens)
    assert_rows_are(got, pad, prompts, split, [stocks(family)])


@families
def test_experts_are_mlx_lms_model_with_edited_singular_values(
    family: str, runtimes: Runtimes, folder_of: Callable[[str], Path]
) -> None:
    runtime, basis = runtimes(family)
    flat = rigs.experts(basis, 3, scale=0.1)
    flat[1] = 0
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, pad = started(runtime, prompts, SHARED, flat)
    got = logits(runtime, batch, tokens)
    references = [rigs.edited(folder_of(family), basis, one) for one in flat]
    assert_rows_are(got, pad, prompts, SHARED, references)
    base = np.array(got[0, -1]), np.array(got[3, -1])
    assert np.abs(base[0] - base[1]).max() > 100 * CLOSE  # the expert does something


@families
@pytest.mark.parametrize("columns", [1, 5])
def test_any_number_of_columns_a_pass_gives_the_same(
    family: str, columns: int, runtimes: Runtimes, stocks: Callable[[str], Any]
) -> None:
    runtime, _ = runtimes(family)
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, pad = started(runtime, prompts, SHARED, None)
    parts = [
        logits(runtime, batch, tokens[:, at : at + columns])
        for at in range(0, tokens.shape[1], columns)
    ]
    got = np.concatenate(parts, axis=1)
    assert_rows_are(got, pad, prompts, SHARED, [stocks(family)])


def test_a_model_of_four_bits_runs_as_its_dense_form_does(
    folder_of: Callable[[str], Path], stocks: Callable[[str], Any]
) -> None:
    from app.engine import models
    from app.engine.basis import load_basis

    model = models.load(folder_of("llama"), dtype=mx.float32)
    runtime = Runtime(model, load_basis(model))
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, pad = started(runtime, prompts, SHARED, None)
    got = logits(runtime, batch, tokens)
    assert_rows_are(got, pad, prompts, SHARED, [stocks("llama")])


def last(runtime: Runtime, batch: Batch, tokens: list[int]) -> rigs.FloatArray:
    """Logits after one more token of each row."""
    batch.reserve(1)
    return logits(runtime, batch, np.array(tokens, np.int32)[:, None])[:, 0]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_kept_rows_go_on_as_if_alone(
    family: str, runtimes: Runtimes, folder_of: Callable[[str], Path]
) -> None:
    runtime, basis = runtimes(family)
    flat = rigs.experts(basis, 3, scale=0.1)
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, _ = started(runtime, prompts, SHARED, flat)
    logits(runtime, batch, tokens)
    edits = runtime.edits(mx.array(flat[[2, 0]]))
    kept = batch.keep([[8, 6], [1, 1]], edits, spare=2)
    got = last(runtime, kept, [7, 8, 9, 9])
    rows = [(2, 2, 7), (2, 0, 8), (0, 1, 9), (0, 1, 9)]
    for row, (expert, prompt, token) in enumerate(rows):
        reference = rigs.edited(folder_of(family), basis, flat[expert])
        expected = rigs.logits_of(reference, [*prompts[prompt], token])[-1]
        assert np.abs(got[row] - expected).max() < CLOSE


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_batches_of_different_widths_join_into_one(
    family: str, runtimes: Runtimes, stocks: Callable[[str], Any]
) -> None:
    runtime, _ = runtimes(family)
    prompts = rigs.prompts_of([9, 4, 23, 15, 1])
    parts = []
    for members in (prompts[:2], prompts[2:4], prompts[4:]):
        tokens, pad = right_aligned(members)
        part = Batch.fresh(runtime, 1, pad, tokens.shape[1], None)
        logits(runtime, part, tokens)
        parts.append(part)
    joined = aligned(parts, None)
    assert joined.layout.cursor == 23
    got = last(runtime, joined, [5, 6, 7, 8, 9])
    for row, (prompt, token) in enumerate(zip(prompts, range(5, 10), strict=True)):
        expected = rigs.logits_of(stocks(family), [*prompt, token])[-1]
        assert np.abs(got[row] - expected).max() < CLOSE
    short = aligned([joined.keep([[1, 4]], None, 0)], None)
    assert short.layout.cursor == 5  # the columns that were padding in both are gone
    got = last(runtime, short, [10, 11])
    for row, (prompt, ending) in enumerate([(prompts[1], [6, 10]), (prompts[4], [9, 11])]):
        expected = rigs.logits_of(stocks(family), [*prompt, *ending])[-1]
        assert np.abs(got[row] - expected).max() < CLOSE


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_rows_of_several_batches_run_in_one_pass_each_behind_its_own_prefix(
    family: str, runtimes: Runtimes, folder_of: Callable[[str], Path]
) -> None:
    runtime, basis = runtimes(family)
    flat = np.concatenate([np.zeros((1, basis.coordinates.total), np.float32)] * 3)
    flat[1:] = rigs.experts(basis, 2, scale=0.1)
    groups = [(1, rigs.prompts_of([25, 21], 19)), (0, rigs.prompts_of([9, 30, 4])), (2, [])]
    groups[2] = (2, rigs.prompts_of([12], seed=4))
    parts, rows = [], []
    for (expert, prompts), split in zip(groups, (18, 0, 0), strict=True):
        edits = runtime.edits(mx.array(flat[[expert]]))
        prefix = None
        if split:
            shared = Batch.fresh(runtime, 1, np.zeros(1, np.int32), split, edits)
            runtime.forward(shared, prompts[0][None, :split])
            prefix = shared.filled()
        tokens, pad = right_aligned([prompt[split:] for prompt in prompts])
        part = Batch.fresh(runtime, 1, pad, tokens.shape[1] + 1, edits, prefix)
        runtime.forward(part, tokens)
        parts.append(part)
        rows += [(expert, prompt) for prompt in prompts]
    slots = mx.array(np.stack([flat[expert] for expert, _ in rows]))

    def check(batches: Sequence[Batch], order: Sequence[int], endings: list[list[int]]) -> None:
        asked = [rows[index] for index in order]
        edits = runtime.edits(slots[mx.array(list(order))])
        last = np.array([[ending[-1]] for ending in endings], np.int32)
        hidden = runtime.together(batches, last, edits)
        got = np.array(runtime.logits(hidden[:, -1]))
        for row, ((expert, prompt), ending) in enumerate(zip(asked, endings, strict=True)):
            reference = rigs.edited(folder_of(family), basis, flat[expert])
            expected = rigs.logits_of(reference, [*prompt, *ending])[-1]
            assert np.abs(got[row] - expected).max() < CLOSE

    check(parts, range(6), [[5], [6], [7], [8], [9], [10]])
    copied = absorbed(parts[0])
    assert copied.layout.prefix == 0
    assert absorbed(copied) is copied
    joined = aligned([copied, parts[2], parts[1].keep([[2, 1]], None, 0)], None)
    endings = [[5, 1], [6, 2], [10, 3], [9, 4], [8, 5]]
    check([joined], [0, 1, 5, 4, 3], endings)


def test_batches_behind_one_prefix_join_behind_it(
    runtimes: Runtimes, stocks: Callable[[str], Any]
) -> None:
    runtime, _ = runtimes("llama")
    prompts = rigs.prompts_of([25, 21, 30], 19)
    shared = Batch.fresh(runtime, 1, np.zeros(1, np.int32), 18, None)
    runtime.forward(shared, prompts[0][None, :18])
    parts = []
    for members in (prompts[:2], prompts[2:]):
        tokens, pad = right_aligned([prompt[18:] for prompt in members])
        part = Batch.fresh(runtime, 1, pad, tokens.shape[1], None, shared.filled())
        runtime.forward(part, tokens)
        parts.append(part)
    joined = aligned(parts, shared.filled())
    assert (joined.layout.prefix, joined.layout.cursor) == (18, 12)
    got = last(runtime, joined, [5, 6, 7])
    for row, (prompt, token) in enumerate(zip(prompts, [5, 6, 7], strict=True)):
        expected = rigs.logits_of(stocks("llama"), [*prompt, token])[-1]
        assert np.abs(got[row] - expected).max() < CLOSE


def test_room_is_made_without_losing_a_column(
    runtimes: Runtimes, stocks: Callable[[str], Any]
) -> None:
    runtime, _ = runtimes("llama")
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, pad = started(runtime, prompts, SHARED, None)
    head = logits(runtime, batch, tokens[:, :-1])
    before = batch.layers[0].capacity
    batch.reserve(1)
    assert batch.layers[0].capacity == before
    batch.reserve(2)
    assert batch.layers[0].capacity > before
    got = np.concatenate([head, logits(runtime, batch, tokens[:, -1:])], axis=1)
    assert_rows_are(got, pad, prompts, SHARED, [stocks("llama")])


def test_serving_and_training_leave_every_byte_of_the_base_weights(
    folder_of: Callable[[str], Path],
) -> None:
    runtime, basis = rigs.runtime_of(folder_of("llama"))
    before = rigs.weight_bytes(runtime.model.module)
    prompts = rigs.prompts_of(LENGTHS, SHARED)
    batch, tokens, _ = started(runtime, prompts, SHARED, rigs.experts(basis, 3))
    logits(runtime, batch, tokens)
    assert rigs.weight_bytes(runtime.model.module) == before


def test_prompts_are_padded_on_the_left() -> None:
    tokens, pad = right_aligned([np.array([5, 6, 7], np.int32), np.array([8], np.int32)])
    assert tokens.tolist() == [[5, 6, 7], [0, 0, 8]]
    assert pad.tolist() == [0, 2]
