"""ABSignSGD: one block a step by signs alone, a short backward pass, votes that agree."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import tiny
from tests.trainers import gradients
from trainers import absignsgd, backprop, lora
from trainers.absignsgd import ABSignSGDConfig, State
from trainers.backprop import Plan
from trainers.decoder import EditedDecoder
from trainers.objectives import Attempt, Batch, imitation
from trainers.orders import periods

LAYERS = 6
CONFIG = ABSignSGDConfig(lr=1e-2, lr_end=1.0, iterations=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("absignsgd") / "llama"
    return tiny.build(path, "llama", num_hidden_layers=LAYERS)


@pytest.fixture
def model(folder: Path) -> EditedDecoder:
    module = gradients.module_of(folder, quantised=False)
    return gradients.decoder_of(module, lora.LoraEdit(1.5))


def fresh(model: EditedDecoder, config: ABSignSGDConfig = CONFIG) -> State:
    params = lora.initial(gradients.LORA, model.matrices, 3)
    return State.fresh(config, gradients.scrambled(params, 4, 0.01), 3)


def batch_of(number: int, _: Any = None) -> Batch:
    rng = np.random.default_rng(number)
    attempt = Attempt(rng.integers(3, 300, 4).tolist(), rng.integers(3, 300, 5).tolist(), 1.0, True)
    batch = imitation([attempt], 64)
    assert batch is not None
    return batch


def run(
    config: ABSignSGDConfig, state: State, model: EditedDecoder, next_batch: Any = batch_of
) -> list[absignsgd.Progress]:
    seen: list[absignsgd.Progress] = []
    absignsgd.train(config, state, model, next_batch, lambda _, p: seen.append(p), lambda: None)
    return seen


def test_a_step_moves_one_block_by_the_signs_of_its_exact_gradient(model: EditedDecoder):
    config = CONFIG.model_copy(update={"weight_decay": 0.1})
    state = fresh(model)
    before = dict(state.params)
    exact: dict[str, mx.array] = {}
    full = Plan.full(LAYERS)
    backprop.gradients(model, before, batch_of(0), full, lambda _, own: exact.update(own))
    outcome = absignsgd.step(config, state, model, batch_of(0))
    assert outcome.layers == (LAYERS - 1,)
    for name, x in before.items():
        if not name.startswith(f"layers.{LAYERS - 1}."):
            assert state.params[name] is x
            continue
        wanted = np.array(x) * (1 - 1e-3) - 1e-2 * np.sign(np.array(exact[name]))
        assert np.allclose(state.params[name], wanted, rtol=0, atol=1e-7)


def test_the_backward_pass_ends_at_the_block(model: EditedDecoder, monkeypatch: pytest.MonkeyPatch):
    state = fresh(model)
    traced: list[int] = []
    layer = model.layer

    def counting(index: int, params: Any, hidden: mx.array) -> mx.array:
        traced.append(index)
        return layer(index, params, hidden)

    monkeypatch.setattr(model, "layer", counting)
    for iteration in range(12):
        traced.clear()
        [block] = absignsgd.step(CONFIG, state, model, batch_of(iteration)).layers
        assert traced == [*range(LAYERS), *range(LAYERS - 1, block - 1, -1)]
        state.iteration += 1


def test_the_frozen_prefix_keeps_no_inputs():
    plan = Plan.block(3, LAYERS)
    assert plan.visited([{"x": mx.zeros(1)} for _ in range(LAYERS)]) == [5, 4, 3]


def test_the_depth_order_is_followed(model: EditedDecoder):
    state = fresh(model)
    assert state.clocks.tolist() == periods(LAYERS, 10).tolist() == [66, 56, 46, 36, 26, 16]
    picked = [p.layers for p in run(CONFIG, state, model)]
    # clocks: 5 at 16, 4 at 26, 5 at 32, 3 at 36, 2 at 46, 5 at 48
    assert picked == [(5,), (4,), (5,), (3,), (2,), (5,)]
    assert state.clocks.tolist() == [66, 56, 92, 72, 52, 64]


def test_blocks_are_the_layers_that_have_parameters(model: EditedDecoder):
    upper = gradients.LORA.model_copy(update={"layers": 2})
    state = State.fresh(CONFIG, lora.initial(upper, model.matrices, 0), 0)
    assert state.clocks.tolist() == [22, 12]
    assert {p.layers for p in run(CONFIG, state, model)} == {(4,), (5,)}


def test_the_learning_rate_falls_linearly(model: EditedDecoder):
    config = CONFIG.model_copy(update={"lr_end": 0.1})
    state = fresh(model)
    state.iteration = 3
    before = dict(state.params)
    [layer] = absignsgd.step(config, state, model, batch_of(0)).layers
    name = f"layers.{layer}.self_attn.v_proj.lora_b"
    change = np.abs(np.array(state.params[name]) - np.array(before[name]))
    assert change == pytest.approx(np.full(change.shape, 0.55e-2), rel=1e-3)


@pytest.mark.parametrize("order", ["depth", "cyclic", "uniform"])
def test_the_loss_of_one_batch_falls(model: EditedDecoder, order: Any):
    config = ABSignSGDConfig(order=order, lr=2e-2, iterations=12)
    losses = [p.loss for p in run(config, fresh(model), model, lambda *_: batch_of(0))]
    assert losses[-1] < 0.6 * losses[0]


def test_gradients_that_are_not_finite_skip_the_step_and_are_counted(model: EditedDecoder):
    config = CONFIG.model_copy(update={"weight_decay": 0.5})
    state = fresh(model, config)
    before = gradients.as_bytes(state.params)
    head = model.head
    model.head = lambda hidden: head(hidden) * mx.array(float("inf"))
    seen = run(config, state, model)
    assert (state.non_finite, state.skipped) == (6, 0)
    assert gradients.as_bytes(state.params) == before
    assert {p.layers for p in seen} == {()}
    assert state.clocks.tolist() == [66, 56, 92, 72, 52, 64]  # the order goes on


def test_a_batch_without_targets_is_skipped_and_counted(model: EditedDecoder):
    state = fresh(model)
    before = gradients.as_bytes(state.params)
    run(CONFIG, state, model, lambda *_: None)
    assert (state.non_finite, state.skipped) == (0, 6)
    assert gradients.as_bytes(state.params) == before


def test_a_run_that_was_stored_half_way_goes_on_byte_for_byte(model: EditedDecoder, tmp_path: Path):
    whole, half = fresh(model), fresh(model)
    run(CONFIG, whole, model)
    reason = absignsgd.train(
        CONFIG,
        half,
        model,
        batch_of,
        lambda *_: None,
        lambda: "paused" if half.iteration == 3 else None,
    )
    assert (reason, half.iteration) == ("paused", 3)
    save_file(half.pack(), tmp_path / "state.safetensors")
    resumed = State.unpack(load_file(tmp_path / "state.safetensors"))
    run(CONFIG, resumed, model)
    resumed.elapsed_s = whole.elapsed_s
    found, wanted = resumed.pack(), whole.pack()
    assert list(found) == list(wanted)
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


def test_the_state_is_parameters_and_clocks_alone(model: EditedDecoder):
    state = fresh(model)
    arrays = state.pack()
    assert len(arrays) == len(state.params) + 1
    assert json.loads(arrays["meta"].tobytes())["fields"]["clocks"] == state.clocks.tolist()


@pytest.mark.parametrize("clocks", [[1, 2], [1.5], ["a"], None])
def test_a_state_with_other_clocks_is_refused(clocks: Any):
    arrays = State.fresh(CONFIG, {"layers.0.x": mx.zeros(3)}, 1).pack()
    meta = json.loads(arrays["meta"].tobytes())
    meta["fields"]["clocks"] = clocks
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with pytest.raises(ValueError, match="state"):
        State.unpack(arrays)


def test_a_stop_between_layers_leaves_the_state_of_the_iteration_before(model: EditedDecoder):
    state = fresh(model)
    before = {name: value.tobytes() for name, value in state.pack().items()}
    calls = iter(range(100))
    reason = absignsgd.train(
        CONFIG,
        state,
        model,
        batch_of,
        lambda *_: pytest.fail("an iteration ended"),
        lambda: "cancelled" if next(calls) == 8 else None,
    )
    assert reason == "cancelled"
    assert {name: value.tobytes() for name, value in state.pack().items()} == before


def workers_run(folder: Path, count: int, next_batch: Any) -> list[State]:
    """Several workers in threads of their own, whose votes meet in memory."""
    barrier, votes = Barrier(count, timeout=60), [np.zeros(0, np.int8)] * count

    def work(rank: int) -> dict[str, np.ndarray]:
        def all_sum(values: mx.array) -> mx.array:
            votes[rank] = np.array(values)
            barrier.wait()
            total = sum(votes[1:], votes[0])
            barrier.wait()
            return mx.array(total)

        module = gradients.module_of(folder, quantised=False)
        model = gradients.decoder_of(module, lora.LoraEdit(1.5))
        state = fresh(model)
        absignsgd.train(
            CONFIG,
            state,
            model,
            lambda i, _: next_batch(rank, i),
            lambda *_: None,
            lambda: None,
            all_sum,
        )
        return state.pack()  # MLX's arrays belong to this thread

    with ThreadPoolExecutor(count) as pool:
        packed = list(pool.map(work, range(count)))
    return [State.unpack(arrays) for arrays in packed]


@pytest.mark.parametrize("count", [2, 3])
def test_workers_with_different_data_have_identical_weights(folder: Path, count: int):
    states = workers_run(folder, count, lambda rank, i: batch_of(10 * i + rank))
    first = gradients.as_bytes(states[0].params)
    assert all(gradients.as_bytes(s.params) == first for s in states[1:])
    assert all(s.clocks.tolist() == states[0].clocks.tolist() for s in states)
    losses = {s.loss for s in states}
    assert len(losses) == count


def test_workers_with_the_same_data_are_one_worker(folder: Path, model: EditedDecoder):
    alone = fresh(model)
    run(CONFIG, alone, model)
    states = workers_run(folder, 3, lambda _, i: batch_of(i))
    assert gradients.as_bytes(states[2].params) == gradients.as_bytes(alone.params)


def test_a_worker_without_a_batch_follows_the_others(folder: Path, model: EditedDecoder):
    alone = fresh(model)
    run(CONFIG, alone, model)
    states = workers_run(folder, 2, lambda rank, i: batch_of(i) if rank == 0 else None)
    assert [s.skipped for s in states] == [0, 6]
    for state in states:
        assert gradients.as_bytes(state.params) == gradients.as_bytes(alone.params)


def test_several_workers_need_a_budget_of_iterations(model: EditedDecoder):
    config = CONFIG.model_copy(update={"minutes": 1.0})
    with pytest.raises(ValueError, match="not of minutes"):
        absignsgd.train(
            config, fresh(model), model, batch_of, lambda *_: None, lambda: None, lambda v: v
        )
