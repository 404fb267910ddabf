"""Loading: the contract with mlx-lm for each family, the dense form, and what is refused."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from app.engine.models import ModelError
from tests import tiny

PROMPT = mx.array([[40, 7, 300, 12, 99, 3, 150, 8, 77, 201, 5]])


@pytest.fixture(scope="module", params=tiny.FAMILIES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny.build(tmp_path / "tiny", "llama")


class Recorder(nn.Module):
    """Stands in for a block's attention and keeps what the block calls it with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        self.seen.append((x, mask, cache))
        return mx.zeros_like(x)


def test_attention_and_mlp_have_the_parts_that_experts_and_batches_use(built: Path) -> None:
    stack = models.inner(models.load(built).module)
    for layer in stack.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
            assert isinstance(part, nn.QuantizedLinear)
        for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            assert isinstance(part, nn.QuantizedLinear)
        assert attention.n_heads == 4
        assert attention.n_kv_heads == 2
        assert isinstance(attention.scale, float)
        normed = built.name in ("qwen3", "gemma3", "gemma3_text")
        assert ("q_norm" in attention) == ("k_norm" in attention) == normed
        assert list(inspect.signature(type(attention).__call__).parameters) == [
            "self",
            "x",
            "mask",
            "cache",
        ]


def test_a_block_hands_its_mask_and_cache_to_its_attention(built: Path) -> None:
    layer = models.inner(models.load(built).module).layers[0]
    layer.self_attn = recorder = Recorder()
    mask, cache = object(), object()
    layer(mx.zeros((1, 3, 64)), mask, cache)
    [(x, seen_mask, seen_cache)] = recorder.seen
    assert x.shape == (1, 3, 64)
    assert seen_mask is mask
    assert seen_cache is cache


def test_rope_takes_one_offset_per_row(built: Path) -> None:
    for layer in models.inner(models.load(built).module).layers:
        rope = layer.self_attn.rope
        keys = mx.random.normal((2, 2, 3, layer.self_attn.k_proj.weight.shape[0] // 2))
        together = rope(keys, offset=mx.array([5, 0]))
        for row, offset in ((0, 5), (1, 0)):
            alone = rope(keys[row : row + 1], offset=offset)
            assert mx.allclose(together[row], alone[0], rtol=0, atol=1e-5).item()


def test_head_of_inner_is_the_whole_model(built: Path) -> None:
    module = models.load(built).module
    hidden = models.inner(module)(PROMPT, None)
    assert mx.array_equal(models.head(module, hidden), module(PROMPT)).item()


def test_head_of_inner_is_the_whole_model_with_an_untied_head(tmp_path: Path) -> None:
    module = models.load(tiny.build(tmp_path / "m", "llama", tie_word_embeddings=False)).module
    hidden = models.inner(module)(PROMPT, None)
    assert mx.array_equal(models.head(module, hidden), module(PROMPT)).item()


def test_logits_equal_those_of_stock_mlx_lm(built: Path) -> None:
    stock, _ = mlx_lm.load(str(built))
    assert mx.array_equal(models.load(built).module(PROMPT), stock(PROMPT)).item()


def test_the_dense_model_is_numerically_the_four_bit_one(built: Path) -> None:
    packed = models.load(built, dtype=mx.float32).module(PROMPT)
    dense = models.load(built, dense_fp32=True)
    assert mx.allclose(dense.module(PROMPT), packed, rtol=1e-4, atol=1e-3).item()
    assert all(a.dtype == mx.float32 for _, a in tree_flatten(dense.module.parameters()))
    kinds = {type(leaf) for _, leaf in tree_flatten(dense.module.leaf_modules(), is_leaf=is_module)}
    assert not kinds & {nn.QuantizedLinear, nn.QuantizedEmbedding}


def is_module(value: object) -> bool:
    return isinstance(value, nn.Module)


def test_dense_weights_equal_codes_times_scale_plus_bias(built: Path) -> None:
    stored = load_file(built / "model.safetensors")
    dense = dict(tree_flatten(models.load(built, dense_fp32=True).module.parameters()))
    for name in (n.removesuffix(".scales") for n in stored if n.endswith(".scales")):
        packed = stored[f"{name}.weight"]
        codes = (packed[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
        groups = codes.reshape(len(packed), -1, 32).astype(np.float32)
        scales = stored[f"{name}.scales"].astype(np.float32)[..., None]
        biases = stored[f"{name}.biases"].astype(np.float32)[..., None]
        expected = (groups * scales + biases).reshape(len(packed), -1)
        np.testing.assert_allclose(np.array(dense[f"{name}.weight"]), expected, rtol=0, atol=1e-6)


def test_dtype_casts_all_but_the_packed_codes(built: Path) -> None:
    parameters = dict(tree_flatten(models.load(built, dtype=mx.float32).module.parameters()))
    kept = {n for n, a in parameters.items() if a.dtype != mx.float32}
    assert kept == {f"{n.removesuffix('.scales')}.weight" for n in parameters if ".scales" in n}
    assert all(parameters[name].dtype == mx.uint32 for name in kept)


def test_nothing_in_a_loaded_base_is_trainable(built: Path) -> None:
    assert tree_flatten(models.load(built).module.trainable_parameters()) == []


def test_windows_are_those_of_the_config(built: Path) -> None:
    windows = models.attention_windows(models.load(built).module)
    gemma = built.name.startswith("gemma3")
    assert windows == ([8, None, 8, None] if gemma else [None, None])


def test_llama_layers_may_slide_too(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention"]
    path = tiny.build(tmp_path / "m", "llama", layer_types=kinds, sliding_window=6)
    assert models.attention_windows(models.load(path).module) == [None, 6]


def test_the_window_is_what_a_layer_really_sees(tmp_path: Path) -> None:
    path = tiny.build(tmp_path / "m", "gemma3_text", num_hidden_layers=2)
    stack = models.inner(models.load(path, dense_fp32=True).module)
    stack.layers = stack.layers[:1]
    changed = mx.concatenate([PROMPT[:, :1] + 1, PROMPT[:, 1:]], axis=1)
    first, second = (stack(x, [models.KVCache(), models.KVCache()]) for x in (PROMPT, changed))
    same = mx.all(first == second, axis=-1)[0].tolist()
    assert same == [position >= 8 for position in range(PROMPT.shape[1])]


def test_the_tokenizer_is_the_one_in_the_folder(built: Path) -> None:
    tokenizer = models.load(built).tokenizer
    reference = Tokenizer.from_file(str(built / "tokenizer.json"))
    text = "turn on the light <|im_end|>\n é 漢字 🙂"
    assert tokenizer.encode(text) == reference.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == {0, 2}
    assert len(tokenizer) <= tiny.VOCAB


def test_the_chat_template_is_the_one_in_the_folder(built: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    text = models.load(built).tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def change_weights(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


def change_config(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


Q = "model.layers.1.self_attn.q_proj"


def narrow(weights: dict[str, Any]) -> None:
    weights[f"{Q}.weight"] = weights[f"{Q}.weight"][:, :-1].copy()


def put_nan(weights: dict[str, Any]) -> None:
    weights[f"{Q}.scales"][0, 0] = np.nan


def put_infinity(weights: dict[str, Any]) -> None:
    weights["model.norm.weight"][3] = np.inf


def many_tokens(path: Path) -> None:
    content = json.loads((path / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"extra{i}": tiny.VOCAB + i for i in range(3)}
    (path / "tokenizer.json").write_text(json.dumps(content))


REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda p: change_weights(p, narrow), r"model\.safetensors: .*shape.*q_proj\.weight"),
    (lambda p: change_weights(p, put_nan), r"model\.safetensors: .*q_proj\.scales holds NaN"),
    (lambda p: change_weights(p, put_infinity), r"model\.safetensors: model\.norm\.weight holds"),
    (
        lambda p: change_weights(p, lambda w: w.pop("model.layers.0.input_layernorm.weight")),
        r"model\.safetensors: .*Missing 1 parameters",
    ),
    (
        lambda p: change_weights(p, lambda w: w.update(more=np.zeros(2, np.float32))),
        r"model\.safetensors: .*not in model: \s*more",
    ),
    (lambda p: change_config(p, model_type="nonsense"), r"config\.json: .*nonsense not supported"),
    (lambda p: change_config(p, model_type="cache"), r"config\.json: .*Model"),
    (lambda p: change_config(p, num_hidden_layers=3), r"model\.safetensors: .*Missing"),
    (lambda p: change_config(p, hidden_size="x"), r"config\.json: TypeError"),
    (many_tokens, r"tokenizer\.json has 323 tokens, the embedding only 320 rows"),
    (lambda p: (p / "tokenizer.json").write_text("{}"), r"tokenizer\.json: "),
    (lambda p: (p / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    (lambda p: (p / "model.safetensors").unlink(), r"model\.safetensors is missing"),
    (shutil.rmtree, "no such model folder"),
]


@pytest.mark.parametrize(("breaking", "reason"), REFUSED, ids=[r for _, r in REFUSED])
def test_a_wrong_model_is_refused_with_the_file_and_the_reason(
    breaking: Callable[[Path], object], reason: str, llama: Path
) -> None:
    breaking(llama)
    with pytest.raises(ModelError, match=rf"(?s)tiny: .*{reason}") as caught:
        models.load(llama)
    assert str(llama.parent) not in str(caught.value)


def test_a_tokenizer_that_wants_its_own_code_run_is_refused(llama: Path) -> None:
    settings = json.loads((llama / "tokenizer_config.json").read_text())
    settings |= {"auto_map": {"AutoTokenizer": [None, "evil.Evil"]}, "tokenizer_class": "Evil"}
    (llama / "tokenizer_config.json").write_text(json.dumps(settings))
    (llama / "evil.py").write_text("raise SystemExit('code of the folder was run')")
    with pytest.raises(ModelError, match=r"tokenizer\.json: .* custom code"):
        models.load(llama)


def test_another_family_of_the_same_build_is_probed_and_accepted(tmp_path: Path) -> None:
    path = tiny.build(tmp_path / "m", "mistral")
    assert models.load(path).info.family == "mistral"


def test_a_family_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    scaling = {"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "logits_scaling": 8.0}
    more = {"residual_multiplier": 1.0, "attention_bias": False, "mlp_bias": False}
    path = tiny.build(tmp_path / "m", "granite", **scaling, **more)
    with pytest.raises(ModelError, match="family granite computes its logits"):
        models.load(path)


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    settings = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
        "head_dim": 32,
    }
    path = tiny.build(tmp_path / "m", "qwen3_moe", **settings)
    with pytest.raises(ModelError, match="family qwen3_moe is not a dense decoder"):
        models.load(path)


def test_importing_leaves_the_limit_of_open_files_alone() -> None:
    """3000 is below the 4096 that mlx-lm sets: unprivileged, its import would even fail."""
    code = (
        "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (1500, 3000))\n"
        "import app.engine.models\n"
        "assert r.getrlimit(r.RLIMIT_NOFILE) == (1500, 3000)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loading_never_asks_a_hub(llama: Path) -> None:
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        code = (
            f"import os; os.environ['HF_ENDPOINT'] = 'http://127.0.0.1:{server.server_port}'\n"
            "os.environ['HF_HUB_OFFLINE'] = '0'\n"
            "from pathlib import Path\n"
            "from app.engine import models\n"
            f"models.load(Path({str(llama)!r}))\n"
            "for missing in ('org/missing', 'missing'):\n"
            "    try: models.load(Path(missing))\n"
            "    except models.ModelError as error: assert 'no such model folder' in str(error)\n"
            "    else: raise SystemExit('loaded')\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        server.shutdown()
    assert asked == []
