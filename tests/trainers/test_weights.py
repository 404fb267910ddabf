"""Training a model's own weights, block by block; rounding that is right on average."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from safetensors.numpy import load_file, save_file

from tests import tiny
from tests.trainers import gradients
from trainers import absignsgd, backprop
from trainers.absignsgd import ABSignSGDConfig, State
from trainers.backprop import Plan
from trainers.objectives import Attempt, Batch, imitation
from trainers.weights import WeightDecoder, stochastically_rounded

CONFIG = ABSignSGDConfig(lr=1e-4, lr_end=1.0, weight_decay=0.1, iterations=4)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("weights")
    return cache(lambda family: tiny.build(root / family, family))


def dense(folder: Path, dtype: mx.Dtype = mx.float32) -> nn.Module:
    module = gradients.module_of(folder, quantised=False)
    module.set_dtype(dtype)
    return module


def decoder_of(module: nn.Module) -> WeightDecoder:
    stack: Any = models.inner(module)
    return WeightDecoder(
        stack.layers,
        models.attention_windows(module),
        lambda tokens: models.embed(module, tokens),
        lambda hidden: models.head(module, stack.norm(hidden)),
    )


def batch_of(number: int, _: Any = None) -> Batch:
    rng = np.random.default_rng(number)
    prompt, completion = rng.integers(3, 300, 6).tolist(), rng.integers(3, 300, 7).tolist()
    batch = imitation([Attempt(prompt, completion, 1.0, True)], 64)
    assert batch is not None
    return batch


def loss_of(module: Any, batch: Batch) -> mx.array:
    """By mlx-lm's own forward pass."""
    logits = module(batch.tokens)
    rows = logits.reshape(-1, logits.shape[-1])[batch.rows]
    return nn.losses.cross_entropy(rows, batch.targets, reduction="mean")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_gradients_are_those_of_the_whole_model(family: str, folder_of: Callable[[str], Path]):
    batch, plain = batch_of(0), dense(folder_of(family))
    stack = models.inner(plain)
    stack.unfreeze()
    wanted_loss, tree = nn.value_and_grad(stack, lambda: loss_of(plain, batch))()
    wanted = {n: g for n, g in tree_flatten(tree) if n.startswith("layers.")}
    decoder = decoder_of(dense(folder_of(family)))
    params, found = decoder.take(), {}
    plan = Plan.full(len(decoder))
    loss = backprop.gradients(decoder, params, batch, plan, lambda _, own: found.update(own))
    assert loss == pytest.approx(wanted_loss.item(), rel=1e-5)
    assert gradients.relative_error(found, wanted) <= 1e-5


def test_a_quantised_layer_is_refused(folder_of: Callable[[str], Path]):
    module = gradients.module_of(folder_of("llama"), quantised=True)
    with pytest.raises(ValueError, match=r"layers.0.*is quantised"):
        decoder_of(module)


def test_the_model_keeps_no_copy_of_the_weights(folder_of: Callable[[str], Path]):
    module = dense(folder_of("llama"))
    decoder = decoder_of(module)
    params = decoder.take()
    assert decoder.take() == {}

    def kept() -> int:
        layers: Any = models.inner(module).layers
        return sum(w.size for layer in layers for _, w in tree_flatten(layer.parameters()))

    assert kept() == 0
    own = backprop.by_layer(params, 2)[0]
    decoder.layer(0, own, decoder.embed(gradients.tokens_of(1, 3)))
    assert kept() == 0


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_the_trained_weights_are_a_model_with_a_lower_loss(
    dtype: mx.Dtype, folder_of: Callable[[str], Path]
):
    module, batch = dense(folder_of("qwen3"), dtype), batch_of(0)
    before = loss_of(module, batch).item()
    decoder = decoder_of(module)
    state = State.fresh(CONFIG, decoder.take(), 1)
    config = CONFIG.model_copy(update={"iterations": 10, "lr": 2e-3, "weight_decay": 0.0})
    absignsgd.train(config, state, decoder, lambda *_: batch, lambda *_: None, lambda: None)
    assert all(w.dtype == dtype for w in state.params.values())
    trained = dense(folder_of("qwen3"), dtype)
    models.inner(trained).update(tree_unflatten(list(state.params.items())))
    after = loss_of(trained, batch).item()
    assert after < before - 0.5


def test_a_step_in_bf16_moves_its_block_by_the_step_on_average(folder_of: Callable[[str], Path]):
    decoder = decoder_of(dense(folder_of("llama"), mx.bfloat16))
    state = State.fresh(CONFIG, decoder.take(), 1)
    before = {n: np.array(w.astype(mx.float32)) for n, w in state.params.items()}
    gradient: dict[str, mx.array] = {}
    plan = Plan.block(1, 2)
    backprop.gradients(decoder, state.params, batch_of(0), plan, lambda _, g: gradient.update(g))
    outcome = absignsgd.step(CONFIG, state, decoder, batch_of(0))
    assert outcome.layers == (1,)
    moved, wanted, size = 0.0, 0.0, 0
    for name, old in before.items():
        new = np.array(state.params[name].astype(mx.float32))
        if name.startswith("layers.0."):
            assert (new == old).all()
            continue
        sign = np.sign(np.array(gradient[name].astype(mx.float32)))
        moved += float(((new - old) * -sign).sum())
        wanted += float((1e-4 * (1e-1 * old * sign + np.abs(sign))).sum())
        size += old.size
    assert size > 30_000
    # Most single weights stay where they are; together they move as far as they should.
    assert moved == pytest.approx(wanted, rel=0.1)


@given(st.floats(-1e3, 1e3, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3))
@settings(deadline=None, max_examples=60)
def test_rounding_gives_a_neighbour_and_is_right_on_average(value: float):
    many = mx.full((4096,), value)
    found = stochastically_rounded(many, np.random.default_rng(0)).astype(mx.float32)
    seen = np.unique(np.array(found))
    below = np.float32(value).view(np.uint32) & np.uint32(0xFFFF0000)
    toward_zero = below.view(np.float32)
    away = (below + np.uint32(0x10000)).view(np.float32)
    assert set(seen) <= {toward_zero, away}
    if toward_zero == np.float32(value):
        assert set(seen) == {toward_zero}
    gap = abs(float(away) - float(toward_zero))
    assert abs(np.array(found, np.float64).mean() - value) <= 5 * gap / 2 / 64


def test_half_precision_other_than_bf16_is_refused():
    with pytest.raises(ValueError, match="only fp32 and bf16"):
        State.fresh(CONFIG, {"layers.0.x": mx.zeros(3, mx.float16)}, 1)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_a_run_that_was_stored_half_way_goes_on_byte_for_byte(
    dtype: mx.Dtype, folder_of: Callable[[str], Path], tmp_path: Path
):
    def fresh() -> tuple[WeightDecoder, State]:
        decoder = decoder_of(dense(folder_of("llama"), dtype))
        return decoder, State.fresh(CONFIG, decoder.take(), 7)

    def train(decoder: WeightDecoder, state: State, until: int) -> None:
        stop = lambda: "paused" if state.iteration == until else None  # noqa: E731
        absignsgd.train(CONFIG, state, decoder, batch_of, lambda *_: None, stop)

    decoder, whole = fresh()
    train(decoder, whole, 4)
    decoder, half = fresh()
    train(decoder, half, 2)
    save_file(half.pack(), tmp_path / "state.safetensors")
    resumed = State.unpack(load_file(tmp_path / "state.safetensors"))
    train(decoder, resumed, 4)
    resumed.elapsed_s = whole.elapsed_s
    found, wanted = resumed.pack(), whole.pack()
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
