"""Tiny random 4-bit model folders of each family, with a small real tokenizer.

The same seed gives the same bytes. Weights are scaled so that logits are well apart (standard
deviation around 8): greedy decoding then does not hang on rounding. The width of the queries
differs from ``hidden_size`` where the family allows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app.engine import models  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import numpy as np
import platformdirs
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3_text", "gemma3")
VOCAB = 320
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "turn on the light in the kitchen",
    "turn off the lights in the living room",
    "set the temperature in the bedroom to 21 degrees",
    "open the garage door and close the window",
)
_BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "vocab_size": VOCAB,
    "tie_word_embeddings": True,
}
_GEMMA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "sliding_window_pattern": 2,
    "rope_local_base_freq": 10000.0,
}
_FAMILY: dict[str, dict[str, Any]] = {"qwen3": {"head_dim": 32}, "gemma3_text": _GEMMA}


def build(
    folder: Path,
    family: str = "llama",
    seed: int = 0,
    dtype: mx.Dtype = mx.float16,
    **overrides: Any,
) -> Path:
    """Writes a model folder that mlx-lm loads and returns it. ``overrides`` go into the config.

    ``gemma3`` is the form with a vision part: its text model lies one level deeper.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _config(family, overrides)
    model_class, args_class = models.mlx_lm_utils._get_classes(config)
    module = model_class(args_class.from_dict(json.loads(json.dumps(config))))
    if family.startswith("gemma3"):
        text_model = module.language_model if family == "gemma3" else module
        text_model.pop("lm_head")
        text_model.tie_word_embeddings = True
    _randomise(module, seed, dtype, zero_centred_norms=family.startswith("gemma3"))
    nn.quantize(module, group_size=32, bits=4)
    weights = dict(tree_flatten(module.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def _config(family: str, overrides: dict[str, Any]) -> dict[str, Any]:
    quantization = {"group_size": 32, "bits": 4, "mode": "affine"}
    ends = {"bos_token_id": 1, "eos_token_id": [2, 0], "quantization": quantization}
    if family == "gemma3":
        text = _config("gemma3_text", overrides)
        return {"model_type": family, "text_config": text, "vocab_size": VOCAB} | ends
    return _BASE | _FAMILY.get(family, {}) | {"model_type": family} | ends | overrides


def _randomise(module: nn.Module, seed: int, dtype: mx.Dtype, *, zero_centred_norms: bool) -> None:
    """Random weights in ``module``, drawn in the order of the names from one NumPy generator."""
    generator = np.random.default_rng(seed)
    drawn = []
    for name, old in sorted(tree_flatten(module.parameters())):
        noise = generator.standard_normal(old.shape).astype(np.float32)
        if "norm" in name:
            value = 0.1 * noise + (0.0 if zero_centred_norms else 1.0)
        elif name.endswith(".bias"):
            value = 0.1 * noise
        elif "embed_tokens" in name:
            value = noise
        else:
            value = 1.5 * noise / np.sqrt(old.shape[-1])
        drawn.append((name, mx.array(value).astype(dtype)))
    module.update(tree_unflatten(drawn))


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of at most ``VOCAB`` tokens with a chat template, as mlx-lm reads it."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[2],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def real_model() -> Path:
    """The folder of the embedded SmolLM2-135M, pulled into the user's cache the first time."""
    return models.pull(models.BUILTIN, platformdirs.user_cache_path("nightowl") / "models")
