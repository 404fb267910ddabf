"""The conversion against an independent reader of GGUF: a small made file and the real one."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine import gguf, models, pull  # isort: skip  (before MLX: it sets the platform up)
import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from app.engine.folder import ModelError, show
from tests import tiny

F32, Q4_1, Q8_0 = 0, 3, 8  # GGUF's numbers of tensor types
BLOCK = 32
Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("codes", "u1", BLOCK // 2)])
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", BLOCK)])


@dataclass
class GgufFile:
    """What the tests' own reader finds: tensors dequantised to fp32, and their codes."""

    metadata: dict[str, Any] = field(default_factory=dict)
    dense: dict[str, np.ndarray] = field(default_factory=dict)
    codes: dict[str, np.ndarray] = field(default_factory=dict)


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}


class Reader:
    """GGUF version 3, read field by field as the format is specified."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 0

    def number(self, code: str) -> Any:
        [value] = struct.unpack_from(f"<{code}", self.raw, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.number("Q")
        self.at += length
        return self.raw[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == 8:
            return self.text()
        if kind == 9:
            item, count = self.number("I"), self.number("Q")
            return [self.value(item) for _ in range(count)]
        return self.number(SCALARS[kind])

    def file(self) -> GgufFile:
        assert self.raw[:4] == b"GGUF"
        self.at = 8
        tensors, pairs = self.number("Q"), self.number("Q")
        found = GgufFile()
        for _ in range(pairs):
            key = self.text()
            found.metadata[key] = self.value(self.number("I"))
        infos = []
        for _ in range(tensors):
            name, rank = self.text(), self.number("I")
            shape = [self.number("Q") for _ in range(rank)][::-1]  # GGUF names columns first
            infos.append((name, shape, self.number("I"), self.number("Q")))
        data = -(-self.at // 32) * 32
        for name, shape, kind, offset in infos:
            self.tensor(found, name, shape, kind, data + offset)
        return found

    def tensor(self, found: GgufFile, name: str, shape: list[int], kind: int, at: int) -> None:
        size = int(np.prod(shape))
        if kind == F32:
            found.dense[name] = np.frombuffer(self.raw, "<f4", size, at).reshape(shape)
            return
        blocks = np.frombuffer(self.raw, {Q4_1: Q4_1_BLOCK, Q8_0: Q8_0_BLOCK}[kind], size // 32, at)
        scale = blocks["scale"].astype(np.float32)[:, None]
        if kind == Q4_1:  # element i < 16 in the low half of byte i, element 16 + i in the high
            codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1)
            dense = codes * scale + blocks["minimum"].astype(np.float32)[:, None]
        else:
            codes, dense = blocks["codes"], blocks["codes"] * scale
        found.codes[name], found.dense[name] = codes.reshape(shape), dense.reshape(shape)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key: str, value: Any) -> bytes:
    kinds = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list) and isinstance(value[0], str):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, list):
        return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    kind, code = kinds[type(value)]
    return text(key) + struct.pack(f"<I{code}", kind, value)


HIDDEN, WIDE, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 260


def made_metadata() -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {
        "general.architecture": "llama",
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": WIDE,
        "llama.block_count": 2,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.context_length": 128,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "on"],
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * 257,
        "tokenizer.ggml.merges": ["o n"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": tiny.CHAT_TEMPLATE,
    }


def made_tensors() -> Iterator[tuple[str, list[int], int]]:
    yield "token_embd.weight", [VOCAB, HIDDEN], Q8_0
    yield "output_norm.weight", [HIDDEN], F32
    for layer in range(2):
        shapes = {
            "attn_q": [HIDDEN, HIDDEN],
            "attn_k": [HIDDEN // 2, HIDDEN],
            "attn_v": [HIDDEN // 2, HIDDEN],
            "attn_output": [HIDDEN, HIDDEN],
            "ffn_gate": [WIDE, HIDDEN],
            "ffn_up": [WIDE, HIDDEN],
            "ffn_down": [HIDDEN, WIDE],
        }
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape, Q4_1
        yield f"blk.{layer}.attn_norm.weight", [HIDDEN], F32
        yield f"blk.{layer}.ffn_norm.weight", [HIDDEN], F32


def made_data(generator: np.random.Generator, shape: list[int], kind: int) -> bytes:
    size = int(np.prod(shape))
    if kind == F32:
        return generator.standard_normal(size).astype("<f4").tobytes()
    blocks = np.zeros(size // 32, {Q4_1: Q4_1_BLOCK, Q8_0: Q8_0_BLOCK}[kind])
    blocks["scale"] = generator.uniform(0.01, 0.02, len(blocks))
    low, high = (0, 256) if kind == Q4_1 else (-127, 128)
    blocks["codes"] = generator.integers(low, high, blocks["codes"].shape)
    if kind == Q4_1:
        blocks["minimum"] = generator.uniform(-0.2, 0.0, len(blocks))
    return blocks.tobytes()


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    generator = np.random.default_rng(0)
    infos, body = b"", b""
    tensors = list(made_tensors())
    for name, shape, kind in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        infos += struct.pack("<IQ", kind, len(body))
        body += made_data(generator, shape, kind)
        body += b"\0" * (-len(body) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items()) + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


@dataclass(frozen=True)
class Converted:
    source: GgufFile
    folder: Path
    loaded: models.LoadedModel


@pytest.fixture(scope="module", params=["made", pytest.param("real", marks=pytest.mark.real_model)])
def converted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Converted:
    scratch = tmp_path_factory.mktemp("gguf")
    if request.param == "made":
        source = write_gguf(scratch / "made.gguf", made_metadata())
    else:
        source = pull._packaged_gguf() or pull._downloaded_gguf(scratch, lambda *_: None)
    folder = scratch / "model"
    folder.mkdir()
    gguf.convert(source, folder)
    return Converted(
        Reader(source.read_bytes()).file(), folder, models.load(folder, dense_fp32=True)
    )


MLX_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
}


def mlx_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if len(parts) == 1:
        return MLX_NAMES[parts[0]]
    return f"model.layers.{parts[1]}.{MLX_NAMES[parts[2]]}"


def mlx_row(name: str, metadata: dict[str, Any], rows: int) -> np.ndarray:
    """For each row of the GGUF tensor the row it has in MLX.

    GGUF puts the two halves of a rotary pair side by side, MLX half a head apart.
    """
    heads = {"attn_q": "head_count", "attn_k": "head_count_kv"}
    kind = name.split(".")[2] if name.startswith("blk") else ""
    if kind not in heads:
        return np.arange(rows)
    head_dim = rows // metadata[f"llama.attention.{heads[kind]}"]
    head, within = np.divmod(np.arange(rows), head_dim)
    pair_index, half = np.divmod(within, 2)
    return head * head_dim + half * (head_dim // 2) + pair_index


def test_every_tensor_equals_the_ggufs_dequantised(converted: Converted) -> None:
    ours = dict(tree_flatten(converted.loaded.module.parameters()))
    assert {f"{mlx_name(name)}.weight" for name in converted.source.dense} == set(ours)
    for name, dense in converted.source.dense.items():
        rows = mlx_row(name, converted.source.metadata, len(dense))
        made = np.array(ours[f"{mlx_name(name)}.weight"])[rows]
        # The same fp32 numbers; a fused multiply-add may round the last bit the other way.
        np.testing.assert_allclose(made, dense, rtol=0, atol=1e-6 * np.abs(dense).max())


def test_every_code_is_kept_bit_for_bit(converted: Converted) -> None:
    weights = load_file(converted.folder / "model.safetensors")
    for name, codes in converted.source.codes.items():
        packed = weights[f"{mlx_name(name)}.weight"]
        bits = packed.shape[1] * 32 // codes.shape[1]
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        ours = ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(codes.shape)
        signed = ours.astype(np.int64) - (128 if bits == 8 else 0)
        rows = mlx_row(name, converted.source.metadata, len(codes))
        np.testing.assert_array_equal(signed[rows], codes)


def test_stock_mlx_lm_loads_the_folder_with_the_right_ends(converted: Converted) -> None:
    model, tokenizer = mlx_lm.load(str(converted.folder))
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.bos_token == "<|im_start|>"
    assert len(tokenizer) == model.args.vocab_size
    assert model.args.rms_norm_eps == 1e-5
    assert model.args.rope_theta == converted.source.metadata["llama.rope.freq_base"]


@pytest.mark.parametrize(
    "sample",
    [
        "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
        "year 2024, 1234567890, 3.14",
        "Ünïcödé — 漢字 かな 🙂👩‍👩‍👧 العربية",
        "  two  spaces\tand\r\nlines ",
        "don't we'll I'm",
        "",
    ],
)
def test_the_tokenizer_round_trips(sample: str, converted: Converted) -> None:
    tokenizer = converted.loaded.tokenizer
    assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_special_tokens_are_one_id_and_digits_one_each(converted: Converted) -> None:
    tokenizer = converted.loaded.tokenizer
    assert tokenizer.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    digits = tokenizer.encode("20240")
    assert len(digits) == 5
    assert digits[0] == digits[2]
    assert tokenizer.decode([0, *tokenizer.encode("x"), 2], skip_special_tokens=True) == "x"


def test_the_chat_template_is_the_ggufs(converted: Converted) -> None:
    tokenizer = converted.loaded.tokenizer
    assert tokenizer.chat_template == converted.source.metadata["tokenizer.chat_template"]


def test_converting_twice_gives_the_same_base_hash(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "made.gguf", made_metadata())
    hashes = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        gguf.convert(source, tmp_path / name)
        hashes.add(show(tmp_path / name).base_hash)
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("general.architecture", "mamba", "general.architecture is 'mamba'"),
        ("tokenizer.ggml.model", "llama", "tokenizer.ggml.model is 'llama'"),
        ("tokenizer.ggml.pre", "qwen2", "tokenizer.ggml.pre is 'qwen2'"),
        ("llama.block_count", None, "llama.block_count' is missing"),
    ],
)
def test_another_kind_of_gguf_is_refused(key: str, value: Any, reason: str, tmp_path: Path) -> None:
    metadata = made_metadata() | {key: value}
    kept = {k: v for k, v in metadata.items() if v is not None}
    source = write_gguf(tmp_path / "made.gguf", kept)
    with pytest.raises(ModelError, match=rf"made\.gguf: .*{reason}"):
        gguf.convert(source, tmp_path)


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF nonsense")
    with pytest.raises(ModelError, match=r"x\.gguf: not a readable GGUF"):
        gguf.convert(tmp_path / "x.gguf", tmp_path)


@pytest.mark.real_model
def test_the_embedded_model_knows_the_capital_of_france() -> None:
    """Stock mlx-lm on the converted folder; in fp32, since its fp16 on CPU takes minutes."""
    model, tokenizer = mlx_lm.load(str(tiny.real_model()))
    model.set_dtype(mx.float32)
    answer = mlx_lm.generate(model, tokenizer, "The capital of France is", max_tokens=3)
    assert answer.strip().startswith("Paris")


@pytest.mark.real_model
def test_the_embedded_model_is_the_same_on_every_machine() -> None:
    info = show(tiny.real_model())
    assert info.base_hash == "80ee3c38c30df8ceceada7a45a8d191274e9b600aefd2d6bc8b51c4d3bf0fd05"
    assert info.spectral_coordinates == 149_760
    assert json.loads((info.path / "config.json").read_text())["tie_word_embeddings"] is True
