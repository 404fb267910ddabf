"""The per-layer loop: exact gradients of every family, few logits, and a stop between layers."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from tests import tiny
from tests.trainers import gradients
from trainers import backprop, lora
from trainers.backprop import Plan
from trainers.decoder import EditedDecoder, causal_mask
from trainers.objectives import Attempt, Batch, imitation

FAMILIES = tiny.FAMILIES
CASES = [(family, kind, q) for family in FAMILIES for kind in ("lora", "spectral") for q in (0, 1)]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("backprop")
    return cache(lambda family: tiny.build(root / family, family))


def batch_of(lengths: tuple[tuple[int, int], ...] = ((4, 9), (7, 3)), seed: int = 0) -> Batch:
    """Rows of (prompt, completion) tokens; the first is longer than Gemma's window of 8."""
    rng = np.random.default_rng(seed)
    attempts = [
        Attempt(rng.integers(3, 300, p).tolist(), rng.integers(3, 300, c).tolist(), 1.0, True)
        for p, c in lengths
    ]
    found = imitation(attempts, 64)
    assert found is not None
    return found


def whole_loss(batch: Batch) -> Callable[[mx.array], mx.array]:
    """The same loss of the logits of all tokens, by mlx's own cross entropy."""

    def loss(logits: mx.array) -> mx.array:
        rows = logits.reshape(-1, logits.shape[-1])[batch.rows]
        return nn.losses.cross_entropy(rows, batch.targets, reduction="mean")

    return loss


def run(decoder: EditedDecoder, params: Any, batch: Batch, **options: Any) -> tuple[float, Any]:
    """The loss, and the gradients handed over."""
    found: dict[str, mx.array] = {}
    plan = options.pop("plan", Plan.full(len(decoder)))
    loss = backprop.gradients(
        decoder, params, batch, plan, lambda _, own: found.update(own), **options
    )
    return loss, found


@pytest.mark.parametrize(("family", "kind", "quantised"), CASES)
def test_gradients_are_those_of_the_whole_model(
    family: str, kind: str, quantised: int, folder_of: Callable[[str], Path]
):
    decoder, params, plain = gradients.references(folder_of(family), kind, bool(quantised))
    batch = batch_of()
    wanted_loss, wanted = gradients.plain_gradient(plain, params, whole_loss(batch), batch.tokens)
    loss, found = run(decoder, params, batch, chunk_rows=5)
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    assert gradients.relative_error(found, wanted) <= 1e-5


def test_a_capped_head_is_differentiated(folder_of: Callable[[str], Path]):
    decoder, params, plain = gradients.references(folder_of("llama"), "lora", True)
    batch, head = batch_of(), decoder.head
    decoder.head = lambda hidden: 5 * mx.tanh(head(hidden) / 5)
    loss = whole_loss(batch)
    wanted_loss, wanted = gradients.plain_gradient(
        plain, params, lambda logits: loss(5 * mx.tanh(logits / 5)), batch.tokens
    )
    found_loss, found = run(decoder, params, batch, chunk_rows=5)
    assert found_loss == pytest.approx(wanted_loss, rel=1e-5)
    assert gradients.relative_error(found, wanted) <= 1e-5


@pytest.mark.parametrize("kind", ["lora", "spectral"])
def test_gradients_are_finite_differences_of_the_loss(kind: str, folder_of: Callable[[str], Path]):
    decoder, params, _ = gradients.references(folder_of("llama"), kind, True)
    batch = batch_of()
    _, found = run(decoder, params, batch)
    for name in list(params)[:: max(1, len(params) // 4)]:
        flat = np.array(found[name]).ravel()
        place = int(np.abs(flat).argmax())
        step = np.zeros(flat.size, np.float32)
        step[place] = 1e-2
        moved = mx.array(step.reshape(params[name].shape))
        losses = [
            run(decoder, params | {name: params[name] + sign * moved}, batch)[0] for sign in (1, -1)
        ]
        assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(flat[place], rel=2e-2)


def test_lazily_dequantised_weights_give_the_same_gradients(folder_of: Callable[[str], Path]):
    module = gradients.module_of(folder_of("qwen2"), quantised=True)
    params, batch = gradients.lora_params(module), batch_of()
    _, packed = run(gradients.decoder_of(module, lora.LoraEdit(1.5)), params, batch)
    again = gradients.module_of(folder_of("qwen2"), quantised=True)
    dense = gradients.decoder_of(again, lora.LoraEdit(1.5), dense=True)
    assert gradients.relative_error(run(dense, params, batch)[1], packed) <= 1e-5


def test_small_gradients_survive_half_precision(folder_of: Callable[[str], Path]):
    exact_module = gradients.module_of(folder_of("llama"), quantised=True)
    params = gradients.lora_params(exact_module)
    batch = batch_of()
    tiny_weights = Batch(
        batch.tokens, batch.rows, batch.targets, batch.weights * 1e-6, batch.share * 1e-6
    )
    _, exact = run(gradients.decoder_of(exact_module, lora.LoraEdit(1.5)), params, tiny_weights)
    half = models.load(folder_of("llama"), dtype=mx.float16).module
    _, found = run(gradients.decoder_of(half, lora.LoraEdit(1.5)), params, tiny_weights)
    assert all(value.dtype == mx.float32 for value in found.values())
    assert gradients.relative_error(found, exact) <= 0.05


def counted(decoder: EditedDecoder) -> tuple[list[int], list[int]]:
    """Rows of each call of the head, and the layer of each trace of a layer."""
    rows: list[int] = []
    traced: list[int] = []
    head, layer = decoder.head, decoder.layer

    def counting_head(hidden: mx.array) -> mx.array:
        rows.append(hidden.shape[0])
        return head(hidden)

    def counting_layer(index: int, params: Any, hidden: mx.array) -> mx.array:
        traced.append(index)
        return layer(index, params, hidden)

    decoder.head, decoder.layer = counting_head, counting_layer  # type: ignore[method-assign]
    return rows, traced


@pytest.fixture
def llama(folder_of: Callable[[str], Path]) -> tuple[EditedDecoder, dict[str, mx.array]]:
    module = gradients.module_of(folder_of("llama"), quantised=True)
    params = gradients.lora_params(module)
    return gradients.decoder_of(module, lora.LoraEdit(1.5)), params


def test_logits_exist_for_one_chunk_of_the_trained_rows_at_a_time(llama):
    decoder, params = llama
    rows, _ = counted(decoder)
    batch = batch_of(((20, 11), (5, 6)))
    run(decoder, params, batch, chunk_rows=4)
    assert rows == [4, 4, 4, 4, 1]  # 17 of 60 rows predict a token of a completion


def test_the_size_of_a_chunk_changes_nothing(llama):
    decoder, params = llama
    one, all_rows = (run(decoder, params, batch_of(), chunk_rows=n) for n in (1, 64))
    assert one[0] == pytest.approx(all_rows[0], rel=1e-6)
    assert gradients.relative_error(one[1], all_rows[1]) <= 1e-5


def test_full_backpropagation_runs_each_layer_twice(llama):
    decoder, params = llama
    _, traced = counted(decoder)
    run(decoder, params, batch_of())
    assert traced == [0, 1, 1, 0]


def test_the_backward_pass_ends_at_the_lowest_layer_with_parameters(llama):
    decoder, params = llama
    upper = {name: value for name, value in params.items() if name.startswith("layers.1.")}
    _, traced = counted(decoder)
    loss, found = run(decoder, upper, batch_of())
    assert traced == [0, 1, 1]
    assert set(found) == set(upper)
    assert np.isfinite(loss)


def test_unselected_layers_are_the_identity(folder_of: Callable[[str], Path]):
    module = gradients.module_of(folder_of("gemma3_text"), quantised=True)
    params, batch = gradients.lora_params(module), batch_of()
    decoder = gradients.decoder_of(module, lora.LoraEdit(1.5))
    chosen = {0, 2}
    _, found = run(decoder, params, batch, plan=Plan.selected(sorted(chosen)))

    def surrogate(own: dict[str, mx.array]) -> mx.array:
        hidden = decoder.embed(batch.tokens)
        for index in range(4):
            part = {n: v for n, v in own.items() if n.startswith(f"layers.{index}.")}
            after = decoder.layer(index, part, hidden)
            if index not in chosen:
                after = hidden + mx.stop_gradient(after - hidden)
            hidden = after
        rows = hidden.reshape(-1, hidden.shape[-1])[batch.rows]
        return batch.loss(decoder.head, rows, slice(None))

    wanted = mx.grad(surrogate)(params)
    kept = {n: v for n, v in wanted.items() if int(n.split(".")[1]) in chosen}
    assert gradients.relative_error(found, kept) <= 1e-5
    others = [v for n, v in wanted.items() if n not in kept]
    assert all(not value.any().item() for value in others)


@pytest.mark.parametrize("asked", range(7))
def test_a_run_stops_between_any_two_layers(llama, asked: int):
    decoder, params = llama
    calls = iter(range(100))
    layers: list[int] = []
    with pytest.raises(backprop.Stopped, match="cancelled"):
        backprop.gradients(
            decoder,
            params,
            batch_of(),
            Plan.full(2),
            lambda index, _: layers.append(index),
            lambda: "cancelled" if next(calls) == asked else None,
            chunk_rows=4,
        )
    # Two layers forward, three chunks of the head, two layers back: seven questions.
    assert layers == ([1] if asked == 6 else [])


def test_a_layer_keeps_no_parameters_when_its_trace_fails(llama):
    decoder, params = llama
    hidden = decoder.embed(gradients.tokens_of(1, 3))
    base = decoder.layer(0, {}, hidden)
    broken = params | {"layers.0.mlp.up_proj.lora_a": mx.zeros((5, 3))}
    with pytest.raises(ValueError, match="matmul"):
        decoder.layer(0, broken, hidden)
    assert mx.array_equal(decoder.layer(0, {}, hidden), base).item()


def test_the_base_at_the_batch_s_rows_is_the_model_without_parameters(llama, folder_of):
    decoder, _ = llama
    batch = batch_of()
    module = gradients.module_of(folder_of("llama"), quantised=True)
    stack: Any = models.inner(module)
    hidden = decoder.embed(batch.tokens)
    for layer in stack.layers:
        hidden = layer(hidden, "causal", None)
    found = backprop.hidden_at(decoder, {}, batch)
    assert mx.array_equal(found, hidden.reshape(-1, 64)[batch.rows]).item()


def test_a_window_lets_a_position_see_itself_and_those_before():
    mask = causal_mask(5, 2)
    assert isinstance(mask, mx.array)
    assert np.array(mask).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    assert causal_mask(5, None) == causal_mask(5, 5) == "causal"
    assert causal_mask(1, 2) is None
