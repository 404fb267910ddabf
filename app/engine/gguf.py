"""A Llama-family GGUF, quantised with Q4_1 and Q8_0, as an MLX folder without any loss.

MLX reads Q4_1 blocks (32 codes, scale, minimum) as 4-bit group-32 weight, scales and biases, and
Q8_0 as 8-bit ones: the same codes and the same fp16 numbers, so nothing is re-quantised here.
Three things differ between the formats: tensor names, the row order of q and k (GGUF interleaves
the rotary halves), and the tokenizer, which GGUF keeps as vocabulary and merges in its metadata.

The files written depend on the GGUF's bytes alone, not on library versions or hash-map order, so
two machines that convert the same GGUF get the same ``base_hash``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

from app.engine.folder import ModelError

GROUP_SIZE = 32
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens
_END_OF_TEXT = "<|endoftext|>"


def convert(source: Path, folder: Path) -> None:
    """Writes the MLX folder of the GGUF file ``source`` into the existing, empty ``folder``.

    Raises ``ModelError`` where the file is not a Llama-family GGUF with a ``smollm`` tokenizer.
    """
    try:
        loaded: Any = mx.load(str(source), format="gguf", return_metadata=True)
    except RuntimeError as error:
        raise ModelError(f"{source.name}: not a readable GGUF file: {error}") from error
    tensors, metadata = loaded
    meta = {key: _plain(value) for key, value in metadata.items()}
    _check_kind(source.name, meta)
    try:
        _write_folder(folder, _weights(tensors, meta), meta)
    except KeyError as error:
        raise ModelError(f"{source.name}: {error} is missing or unknown") from error


def _write_folder(folder: Path, weights: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    _write(folder / "config.json", _config(weights, meta))
    _write(folder / "generation_config.json", _special_ids(meta))
    _write(folder / "tokenizer.json", _tokenizer(meta))
    _write(folder / "tokenizer_config.json", _tokenizer_config(meta))
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def _plain(value: Any) -> Any:
    """GGUF metadata as plain Python: numbers, strings and lists."""
    if not isinstance(value, mx.array):
        return value
    if value.dtype == mx.float32 and value.ndim == 0:
        return float(str(np.array(value)))  # 1e-05, not 9.99999974e-06
    return value.tolist()


def _check_kind(name: str, meta: dict[str, Any]) -> None:
    wanted = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
    }
    for key, value in wanted.items():
        if meta.get(key) != value:
            raise ModelError(f"{name}: {key} is {meta.get(key)!r}; only {value!r} can be converted")


def _weights(tensors: dict[str, mx.array], meta: dict[str, Any]) -> dict[str, np.ndarray]:
    """All tensors under their MLX names, q and k in MLX's row order."""
    heads = {
        "attn_q": meta["llama.attention.head_count"],
        "attn_k": meta["llama.attention.head_count_kv"],
    }
    weights: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        array = np.array(tensor)
        parts = name.split(".")
        if parts[0] != "blk":
            weights[f"{_TOP_NAMES[parts[0]]}.{parts[1]}"] = array
            continue
        _, layer, kind, part = parts
        if kind in heads:
            array = _unpermute(array, heads[kind])
        weights[f"model.layers.{layer}.{_NAMES[kind]}.{part}"] = np.ascontiguousarray(array)
    return weights


def _unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (heads * head_dim, n) from interleaved rotary pairs back to two halves per head."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _special_ids(meta: dict[str, Any]) -> dict[str, Any]:
    """Both ends of text stop generation: the chat's end of turn and the end of a document."""
    eos = meta["tokenizer.ggml.eos_token_id"]
    tokens = meta["tokenizer.ggml.tokens"]
    ends = [eos]
    if _END_OF_TEXT in tokens and tokens.index(_END_OF_TEXT) != eos:
        ends.append(tokens.index(_END_OF_TEXT))
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": ends,
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _config(weights: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": 4, "mode": "affine"}
    for name, scales in weights.items():
        if not name.endswith(".scales"):
            continue
        layer = name.removesuffix(".scales")
        bits = weights[f"{layer}.weight"].shape[-1] // scales.shape[-1]
        if bits != 4:
            quantization[layer] = {"group_size": GROUP_SIZE, "bits": bits, "mode": "affine"}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "vocab_size": meta["llama.vocab_size"],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        **_special_ids(meta),
        "quantization": quantization,
        "quantization_config": quantization,
    }


def _tokenizer(meta: dict[str, Any]) -> dict[str, Any]:
    """``tokenizer.json`` of a byte-level BPE that splits digits (GGUF's ``smollm``)."""
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    types: list[int] = meta["tokenizer.ggml.token_type"]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(index, token)
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in meta["tokenizer.ggml.merges"]],
        },
    }


def _added_token(index: int, token: str) -> dict[str, Any]:
    return {
        "id": index,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    types = meta["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "additional_special_tokens": special,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
