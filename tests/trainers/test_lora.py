"""LoRA experts: a fresh one is the base, and they are mlx-lm's adapters, strictly checked."""

import json
from pathlib import Path

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.utils import load_adapters
from pydantic import ValidationError

from tests import tiny
from tests.trainers import gradients
from trainers import lora, spectral
from trainers.decoder import EditedDecoder, by_layer, matrix_shapes

SHAPES = {"layers.0.self_attn.q_proj": (6, 4), "layers.1.mlp.down_proj": (4, 8)}
CONFIG = lora.LoraConfig(rank=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("lora") / "qwen2", "qwen2")


def logits(decoder: EditedDecoder, params: lora.Params, tokens: mx.array) -> mx.array:
    hidden = decoder.embed(tokens)
    for index, own in enumerate(by_layer(params, len(decoder))):
        hidden = decoder.layer(index, own, hidden)
    return decoder.head(hidden)


def test_the_default_targets_are_all_matrices_that_experts_change():
    assert lora.ALL == spectral.TARGETS


def test_apply_is_a_change_of_the_weight():
    rng = np.random.default_rng(0)
    w, a, b, x = (
        mx.array(rng.standard_normal(shape).astype(np.float32))
        for shape in ((5, 4), (4, 2), (2, 5), (3, 7, 4))
    )
    found = lora.apply(x @ w.T, x, lora.Factors(a, b, 1.5))
    assert mx.allclose(found, x @ (w + 1.5 * (a @ b).T).T, atol=1e-5).item()


def test_apply_keeps_the_precision_of_the_layer():
    x = mx.ones((1, 4), mx.float16)
    factors = lora.Factors(mx.ones((4, 2)), mx.ones((2, 5)), 1.0)
    assert lora.apply(mx.ones((1, 5), mx.float16), x, factors).dtype == mx.float16


def test_a_fresh_expert_is_the_base_model(folder: Path):
    module = gradients.module_of(folder, quantised=True)
    tokens = gradients.tokens_of(2, 9)
    base = module(tokens)
    params = lora.initial(CONFIG, matrix_shapes(models.inner(module).layers), 5)
    decoder = gradients.decoder_of(module, lora.LoraEdit(2.0))
    assert mx.array_equal(logits(decoder, params, tokens), base).item()
    assert mx.array_equal(logits(decoder, {}, tokens), base).item()


def test_factors_are_drawn_by_the_seed_and_differ_between_matrices():
    shapes = {f"layers.{i}.mlp.up_proj": (8, 64) for i in range(2)}
    first, again = (lora.initial(CONFIG, shapes, 5) for _ in range(2))
    other = lora.initial(CONFIG, shapes, 6)
    a = "layers.0.mlp.up_proj.lora_a"
    assert gradients.as_bytes(first) == gradients.as_bytes(again)
    assert not mx.array_equal(first[a], other[a]).item()
    assert not mx.array_equal(first[a], first["layers.1.mlp.up_proj.lora_a"]).item()
    values = np.array(first[a])
    assert values.dtype == np.float32
    assert np.abs(values).max() <= 64**-0.5
    assert np.abs(values).max() > 0.9 * 64**-0.5


def test_rank_targets_and_layers_choose_the_factors():
    config = lora.LoraConfig(rank=3, targets=("down_proj",), layers=1)
    assert lora.expected_shapes(config, SHAPES) == {
        "layers.1.mlp.down_proj.lora_a": (8, 3),
        "layers.1.mlp.down_proj.lora_b": (3, 4),
    }
    with pytest.raises(ValidationError):
        lora.LoraConfig(targets=("lm_head",))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_names_and_shapes_are_those_of_mlx_lm(family: str, tmp_path: Path):
    module = gradients.module_of(tiny.build(tmp_path / family, family), quantised=True)
    params = gradients.lora_params(module)
    theirs = gradients.MlxLmLora(module).names()
    assert {name: value.shape for name, value in lora.to_adapter(params).items()} == theirs


def test_mlx_lm_reads_the_adapter_and_computes_the_same(folder: Path, tmp_path: Path):
    config = lora.LoraConfig(rank=3, scale=1.5, targets=("v_proj", "up_proj"), layers=1)
    module = gradients.module_of(folder, quantised=True)
    params = gradients.lora_params(module, config=config)
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), lora.to_adapter(params))
    document = lora.adapter_config(config, 2)
    (tmp_path / "adapter_config.json").write_text(json.dumps(document))
    theirs = load_adapters(gradients.module_of(folder, quantised=True), str(tmp_path))
    tokens = gradients.tokens_of(2, 9)
    ours = logits(gradients.decoder_of(module, lora.LoraEdit(1.5)), params, tokens)
    assert mx.allclose(ours, theirs(tokens), rtol=0, atol=1e-4).item()
    assert lora.read_adapter_config(document, 2) == config


def adapter(**changes: np.ndarray) -> dict[str, np.ndarray]:
    params = lora.initial(CONFIG, SHAPES, 0)
    tensors = {name: np.array(value) for name, value in lora.to_adapter(params).items()}
    return tensors | {f"model.layers.0.self_attn.q_proj.{n}": v for n, v in changes.items()}


def test_an_adapter_comes_back_exactly():
    params = gradients.scrambled(lora.initial(CONFIG, SHAPES, 0), 3)
    tensors = {n: np.array(v) for n, v in lora.to_adapter(params, "language_model.").items()}
    expected = lora.expected_shapes(CONFIG, SHAPES)
    again = lora.from_adapter(dict(reversed(tensors.items())), expected, "language_model.")
    assert gradients.as_bytes(again) == gradients.as_bytes(params)
    assert list(again) == list(params)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        (adapter(lora_c=np.zeros(1)), "lora_c is not a factor"),
        ({n: v for n, v in adapter().items() if not n.endswith("q_proj.lora_a")}, "is missing"),
        (adapter(lora_a=np.zeros((2, 4), np.float32)), r"shape \(2, 4\), expected \(4, 2\)"),
        (adapter(lora_a=np.zeros((4, 2), np.int32)), "int32 is not a floating-point type"),
        (adapter(lora_b=np.full((2, 6), np.nan, np.float32)), "NaN or infinity"),
        (adapter(lora_b=np.full((2, 6), 1e39)), "NaN or infinity"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(tensors: dict[str, np.ndarray], reason: str):
    with pytest.raises(ValueError, match=reason):
        lora.from_adapter(tensors, lora.expected_shapes(CONFIG, SHAPES))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fine_tune_type": "dora"}, "dora"),
        ({"num_layers": None}, "lacks"),
        ({"lora_parameters": {"rank": 2}}, "lacks"),
        ({"lora_parameters": {"rank": 2, "scale": 1.0, "keys": ["lm_head"]}}, "lm_head"),
        ({"lora_parameters": {"rank": 0, "scale": 1.0}}, "rank"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(changes: dict[str, object], reason: str):
    with pytest.raises(ValueError, match=reason):
        lora.read_adapter_config(lora.adapter_config(CONFIG, 2) | changes, 2)
