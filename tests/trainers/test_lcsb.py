"""LCSB: what a step computes, leaves out and moves; a run that goes on byte for byte."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine import models  # noqa: F401  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load_file, save_file

from tests import tiny
from tests.trainers import gradients
from trainers import adamw, backprop, decoder, lcsb, lora
from trainers.adamw import Moments
from trainers.backprop import Plan
from trainers.lcsb import LcsbConfig, State
from trainers.objectives import Attempt, Batch, imitation

LAYERS = 6
CONFIG = LcsbConfig(r=0.5, lr=1e-2, cosine_every=0, iterations=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lcsb") / "llama"
    return tiny.build(path, "llama", num_hidden_layers=LAYERS)


@pytest.fixture
def model(folder: Path) -> decoder.EditedDecoder:
    module = gradients.module_of(folder, quantised=False)
    return gradients.decoder_of(module, lora.LoraEdit(1.5))


def fresh(model: decoder.EditedDecoder, seed: int = 3) -> State:
    return State.fresh(lora.initial(gradients.LORA, model.matrices, seed), seed)


def batch_of(iteration: int, _: Any = None) -> Batch | None:
    rng = np.random.default_rng(iteration)
    attempt = Attempt(rng.integers(3, 300, 4).tolist(), rng.integers(3, 300, 5).tolist(), 1.0, True)
    return imitation([attempt], 64)


def run(
    config: LcsbConfig, state: State, model: decoder.EditedDecoder, next_batch: Any = batch_of
) -> list[lcsb.Progress]:
    seen: list[lcsb.Progress] = []
    lcsb.train(config, state, model, next_batch, lambda _, p: seen.append(p), lambda: None)
    return seen


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(1, 40), st.floats(0.01, 1))
def test_a_selection_is_a_share_of_the_layers_and_a_function_of_its_key(seed, step, count, r):
    found = lcsb.select(seed, step, 0, count, r)
    assert found == sorted(set(found)) == lcsb.select(seed, step, 0, count, r)
    assert set(found) <= set(range(count))
    assert len(found) == max(1, math.floor(r * count + 0.5))


def test_every_layer_is_selected_equally_often():
    counts = np.zeros(8)
    for step in range(2000):
        for layer in lcsb.select(1, step, 2, 10, 0.25):
            counts[layer - 2] += 1
    assert counts.sum() == 4000
    assert np.abs(counts - 500).max() < 5 * math.sqrt(500 * 0.75)


def test_selections_differ_between_steps_and_seeds():
    drawn = {tuple(lcsb.select(s, i, 0, 30, 0.5)) for s in range(3) for i in range(20)}
    assert len(drawn) == 60


def test_schedules_fall_from_r_to_r_end():
    places = np.linspace(0, 1, 31)

    def course(schedule: Any) -> list[float]:
        config = LcsbConfig(r=1.0, r_end=0.2, schedule=schedule)
        return [lcsb.fraction(config, p) for p in places]

    assert set(course("constant")) == {1.0}
    assert sorted(set(course("step_down"))) == pytest.approx([0.2, 0.6, 1.0])
    cosine = course("cosine")
    assert cosine[0] == pytest.approx(1.0)
    assert cosine[15] == pytest.approx(0.6)
    assert cosine[-1] == pytest.approx(0.2)
    for found in (course("step_down"), cosine):
        assert (np.diff(found) <= 1e-12).all()
    with pytest.raises(ValidationError, match="can only fall"):
        LcsbConfig(r=0.2, r_end=0.3, schedule="cosine")


def test_unselected_layers_are_neither_recomputed_nor_dequantised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    module = gradients.module_of(folder, quantised=True)
    model = gradients.decoder_of(module, lora.LoraEdit(1.5), dense=True)
    state = fresh(model)
    traced: list[int] = []
    unpacked: list[int] = []
    layer, dequantised = model.layer, decoder.dequantised

    def counting_layer(index: int, params: Any, hidden: mx.array) -> mx.array:
        traced.append(index)
        return layer(index, params, hidden)

    def counting_dequantised(linear: Any, dtype: mx.Dtype) -> mx.array:
        unpacked.append(traced[-1])
        return dequantised(linear, dtype)

    monkeypatch.setattr(model, "layer", counting_layer)
    monkeypatch.setattr(decoder, "dequantised", counting_dequantised)
    outcome = lcsb.step(CONFIG, state, model, batch_of(0))
    assert len(outcome.layers) == 3
    visits = [*range(LAYERS), *reversed(outcome.layers)]
    assert traced == visits
    assert unpacked == [index for index in visits for _ in range(7)]


def test_only_the_selected_layers_inputs_are_kept(model: decoder.EditedDecoder):
    layers = decoder.by_layer(fresh(model).params, LAYERS)
    batch = batch_of(0)
    assert batch is not None
    _, kept = backprop.forward(model, layers, batch.tokens, frozenset({1, 4}))
    assert set(kept) == {1, 4}


def test_momentum_moves_unselected_layers_and_their_moments_decay(model: decoder.EditedDecoder):
    state = fresh(model)
    everything = LcsbConfig(r=1.0, lr=1e-2, cosine_every=0)
    lcsb.step(everything, state, model, batch_of(0))
    before, moments = state.params, state.moments
    state.iteration = 1
    outcome = lcsb.step(CONFIG, state, model, batch_of(1))
    unselected = [i for i in range(LAYERS) if i not in outcome.layers]
    assert len(unselected) == 3
    for index in unselected:
        name = f"layers.{index}.mlp.up_proj.lora_b"
        assert not mx.array_equal(state.params[name], before[name]).item()
        assert np.allclose(state.moments.first[name], 0.9 * np.array(moments.first[name]))
        assert np.allclose(state.moments.second[name], 0.999 * np.array(moments.second[name]))


def test_r_of_one_is_full_backpropagation_with_adamw(model: decoder.EditedDecoder):
    config = LcsbConfig(r=1.0, lr=1e-2, cosine_every=0, iterations=3)
    state = fresh(model)
    run(config, state, model)
    params, moments = fresh(model).params, Moments.fresh(fresh(model).params)
    for iteration in range(3):
        exact: dict[str, mx.array] = {}
        batch = batch_of(iteration)
        assert batch is not None
        full = Plan.full(LAYERS)
        backprop.gradients(model, params, batch, full, lambda _, own: exact.update(own))  # noqa: B023
        params, moments = adamw.update(params, moments, exact, config.rates)
    assert gradients.as_bytes(state.params) == gradients.as_bytes(params)


def test_layers_without_parameters_below_the_lowest_are_not_drawn(model: decoder.EditedDecoder):
    config = gradients.LORA.model_copy(update={"layers": 2})
    state = State.fresh(lora.initial(config, model.matrices, 0), 0)
    drawn = set()
    for _ in range(12):
        outcome = lcsb.step(CONFIG, state, model, batch_of(0))
        assert len(outcome.layers) == 1
        drawn |= set(outcome.layers)
        state.iteration += 1
    assert drawn == {LAYERS - 2, LAYERS - 1}


def test_the_loss_of_one_batch_falls(model: decoder.EditedDecoder):
    config = CONFIG.model_copy(update={"iterations": 15})
    losses = [p.loss for p in run(config, fresh(model), model, lambda *_: batch_of(0))]
    assert losses[-1] < 0.5 * losses[0]


def test_the_health_metric_is_the_cosine_to_the_exact_gradient(model: decoder.EditedDecoder):
    state = fresh(model)
    state.params = gradients.scrambled(state.params, 1, 0.02)
    batch = batch_of(0)
    assert batch is not None
    state.iteration = 5
    layers = lcsb.select(state.seed, 5, 0, LAYERS, 0.5)
    assert layers != [3, 4, 5]  # above all others they would be exact
    found: dict[str, dict[str, mx.array]] = {"surrogate": {}, "exact": {}}
    for name, plan in (("surrogate", Plan.selected(layers)), ("exact", Plan.full(LAYERS))):
        into = found[name].update
        backprop.gradients(model, state.params, batch, plan, lambda _, g: into(g))  # noqa: B023
    names = list(found["surrogate"])
    a, b = (
        np.concatenate([np.array(side[n], np.float64).ravel() for n in names])
        for side in (found["surrogate"], found["exact"])
    )
    outcome = lcsb.step(CONFIG.model_copy(update={"cosine_every": 1}), state, model, batch)
    assert outcome.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-5)
    assert outcome.cosine < 0.9999


def test_the_health_metric_is_measured_every_k_iterations(model: decoder.EditedDecoder):
    config = CONFIG.model_copy(update={"cosine_every": 3, "r": 1.0, "iterations": 5})
    measured = [p.cosine for p in run(config, fresh(model), model)]
    assert measured == [pytest.approx(1.0), None, None, pytest.approx(1.0), None]


def saved(state: State, path: Path) -> State:
    save_file(state.pack(), path)
    return State.unpack(load_file(path))


def test_a_run_that_was_stored_half_way_goes_on_byte_for_byte(
    model: decoder.EditedDecoder, tmp_path: Path
):
    config = CONFIG.model_copy(update={"schedule": "cosine"})
    whole, half = fresh(model), fresh(model)
    run(config, whole, model)
    calls = iter(range(100))
    reason = lcsb.train(
        config,
        half,
        model,
        lambda i, _: batch_of(i) if next(calls) < 3 else pytest.fail("a fourth iteration"),
        lambda state, _: None,
        lambda: "paused" if half.iteration == 3 else None,
    )
    assert (reason, half.iteration) == ("paused", 3)
    resumed = saved(half, tmp_path / "state.safetensors")
    run(config, resumed, model)
    resumed.elapsed_s = whole.elapsed_s
    found, wanted = resumed.pack(), whole.pack()
    assert list(found) == list(wanted)
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


@pytest.mark.parametrize("question", [1, 6, 7, 8, 10])
def test_a_stop_between_layers_leaves_the_state_of_the_iteration_before(
    model: decoder.EditedDecoder, question: int
):
    state = fresh(model)
    run(CONFIG.model_copy(update={"iterations": 1}), state, model)
    before = {name: value.tobytes() for name, value in state.pack().items()}
    calls = iter(range(100))
    reason = lcsb.train(
        CONFIG,
        state,
        model,
        batch_of,
        lambda *_: pytest.fail("an iteration ended"),
        lambda: "cancelled" if next(calls) == question else None,
    )
    assert reason == "cancelled"
    assert {name: value.tobytes() for name, value in state.pack().items()} == before


def test_a_batch_without_targets_is_skipped_and_counted(model: decoder.EditedDecoder):
    state = fresh(model)
    before = gradients.as_bytes(state.params)
    seen = run(CONFIG, state, model, lambda *_: None)
    assert (state.skipped, state.iteration, state.moments.updates) == (6, 6, 0)
    assert gradients.as_bytes(state.params) == before
    assert seen[-1].loss is None


def test_gradients_that_are_not_finite_change_nothing_and_are_counted(model: decoder.EditedDecoder):
    state = fresh(model)
    before = gradients.as_bytes(state.params)
    head = model.head
    model.head = lambda hidden: head(hidden) * mx.array(float("nan"))
    seen = run(CONFIG.model_copy(update={"cosine_every": 1}), state, model)
    assert (state.non_finite, seen[-1].non_finite, seen[-1].layers) == (6, 6, ())
    assert gradients.as_bytes(state.params) == before
    assert not any(m.any().item() for m in state.moments.first.values())
    assert (seen[-1].loss, seen[-1].cosine) == (None, None)


def test_a_run_ends_when_its_minutes_are_used_up(model: decoder.EditedDecoder):
    state = fresh(model)
    state.elapsed_s = 61.0
    config = CONFIG.model_copy(update={"minutes": 1.0})
    reason = lcsb.train(config, state, model, batch_of, lambda *_: None, lambda: None)
    assert (reason, state.iteration) == ("minutes", 0)


def with_meta(change: Callable[[dict[str, Any]], Any]) -> dict[str, np.ndarray]:
    arrays = State.fresh({"layers.0.x": mx.zeros(3)}, 1).pack()
    meta = json.loads(arrays["meta"].tobytes())
    change(meta)
    return arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)}


def with_array(**changes: Any) -> dict[str, np.ndarray]:
    arrays = State.fresh({"layers.0.x": mx.zeros(3)}, 1).pack()
    return arrays | {f"{group}/layers.0.x": value for group, value in changes.items()}


@pytest.mark.parametrize(
    "arrays",
    [
        with_meta(lambda m: m["fields"].pop("iteration")),
        with_meta(lambda m: m["fields"].update(iteration="3")),
        with_meta(lambda m: m["names"].append("layers.1.x")),
        with_meta(lambda m: m.clear()),
        with_array(extra=np.zeros(3, np.float32)),
        with_array(first=np.zeros(4, np.float32)),
        with_array(second=np.zeros(3, np.float64)),
        with_array(params=np.array([0, np.nan, 0], np.float32)),
        {"meta": np.frombuffer(b"{", np.uint8)},
    ],
)
def test_a_damaged_state_is_refused(arrays: dict[str, np.ndarray]):
    with pytest.raises(ValueError, match=r"state|must be|NaN|Expecting"):
        State.unpack(arrays)
