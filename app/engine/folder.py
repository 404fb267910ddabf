"""A model folder on disk: is it complete, what is in it, what is it called. Never imports MLX.

A folder is what mlx-lm writes: ``config.json``, ``model*.safetensors`` (with an index where there
are several) and a tokenizer. Everything here is read from the JSON files and the safetensors
headers, so ``nightowl model list`` costs milliseconds and a broken folder is named as such before
a single weight is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.atomic import write_json

BUILTIN = "smollm2-135m"
SOURCE_FILE = "source.json"  # which hub id or package a pulled folder came from
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LAYER = re.compile(r"(?:language_model\.)?model\.layers\.(\d+)\.(.+)\.weight")
_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\.safetensors")
_HASH_FILE = "base_hash.json"
_HEADER_LIMIT_BYTES = 100 << 20
_DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


class ModelError(Exception):
    """A model that is missing, broken or not supported: says which file and why, without paths."""


@dataclass(frozen=True)
class TensorHeader:
    """One tensor as its safetensors header states it."""

    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelInfo:
    """What ``model list|show`` tell. ``bytes`` are those of the weight files.

    ``spectral_coordinates`` is the sum of ``in_features`` over q, k, v, o, gate, up and down of
    every layer; an expert stores one fp16 number for each (``expert_bytes``).
    """

    name: str
    path: Path
    family: str
    hidden_size: int
    layers: int
    vocab_size: int
    quantisation: str
    parameters: int
    bytes: int
    spectral_coordinates: int
    expert_bytes: int
    base_hash: str


def slug(text: str) -> str:
    """The model name for a folder or hub id: its last part in lower case, ``[a-z0-9_-]`` only."""
    name = re.sub(r"[^a-z0-9_-]+", "-", text.rsplit("/", 1)[-1].lower()).strip("-_")[:64]
    if not _NAME.fullmatch(name):
        raise ModelError(f"{text!r} gives no usable model name")
    return name


def resolve(name_or_path: str, models_dir: Path) -> Path:
    """The folder of an installed model (by name or hub id) or of a local path. Never goes online.

    Raises ``ModelError`` with the remedy where there is none.
    """
    if _NAME.fullmatch(name_or_path) and (models_dir / name_or_path).is_dir():
        return models_dir / name_or_path
    if HUB_ID.fullmatch(name_or_path):
        folder = models_dir / slug(name_or_path)
        if folder.is_dir() and source(folder) == name_or_path:
            return folder
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file():
        return path.resolve()
    if path.is_dir():
        raise ModelError(f"{path.name}: config.json is missing, so this is no model folder")
    if name_or_path == BUILTIN or HUB_ID.fullmatch(name_or_path):
        raise ModelError(
            f"model {name_or_path} is not installed: run `nightowl model pull {name_or_path}`"
        )
    raise ModelError(
        f"no model named {path.name!r}: give an installed name (`nightowl model list`), "
        "a folder that holds config.json, or pull one with `nightowl model pull`"
    )


def source(folder: Path) -> str | None:
    """Where a pulled folder came from (hub id or package), None for a folder not pulled."""
    if not (folder / SOURCE_FILE).is_file():
        return None
    return str(_read_object(folder, SOURCE_FILE).get("source"))


def installed(models_dir: Path) -> list[ModelInfo]:
    """All models in ``models_dir``, by name. Raises ``ModelError`` for a broken one."""
    if not models_dir.is_dir():
        return []
    folders = sorted(p for p in models_dir.iterdir() if _NAME.fullmatch(p.name) and p.is_dir())
    return [show(folder) for folder in folders]


def show(path: Path) -> ModelInfo:
    """Reads a model folder's facts from its config and headers; raises ``ModelError``."""
    path = path.resolve()
    name = slug(path.name)
    config = read_config(path)
    tensors = read_tensors(path)
    layers = sorted({int(m[1]) for m in map(_LAYER.fullmatch, tensors) if m})
    embedding = _first(tensors, "model.embed_tokens.weight")
    norm = _first(tensors, "model.norm.weight")
    if not layers or embedding is None or norm is None:
        raise ModelError(f"{name}: the weights hold no decoder of the Llama kind")
    quantisation = _quantisation(config)
    coordinates = sum(
        _columns(tensor, tensors, quantisation)
        for tensor in tensors
        if (m := _LAYER.fullmatch(tensor)) and m[2].rsplit(".", 1)[-1] in PROJECTIONS
    )
    return ModelInfo(
        name=name,
        path=path,
        family=config["model_type"],
        hidden_size=norm.shape[0],
        layers=len(layers),
        vocab_size=embedding.shape[0],
        quantisation=_describe(quantisation, tensors),
        parameters=_parameters(tensors, quantisation),
        bytes=sum(file.stat().st_size for file in weight_files(path)),
        spectral_coordinates=coordinates,
        expert_bytes=2 * coordinates,
        base_hash=base_hash(path),
    )


def read_config(path: Path) -> dict[str, Any]:
    """``config.json`` with a ``model_type`` that needs no code from the folder."""
    config = _read_object(path, "config.json")
    family = config.get("model_type")
    if not isinstance(family, str) or not re.fullmatch(r"\w[\w-]*", family):
        raise ModelError(f"{path.name}: config.json names no model_type")
    if config.get("model_file") is not None:
        raise ModelError(f"{path.name}: config.json wants its own code run (model_file): refused")
    return config


def context_length(path: Path) -> int:
    """Tokens the model was made for; 8192 where its configuration does not say."""
    config = read_config(path)
    text = config.get("text_config", config)
    return int(text.get("max_position_embeddings", 8192))


def check_files(path: Path) -> None:
    """Raises ``ModelError`` unless config, weights and tokenizer are there and well formed."""
    if not path.is_dir():
        raise ModelError(f"{path.name}: no such model folder")
    read_config(path)
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ModelError(f"{path.name}: tokenizer.json is missing")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (path / name).exists():
            _read_object(path, name)
    read_tensors(path)


def weight_files(path: Path) -> list[Path]:
    """The shards, complete: every file the index or the shard numbers promise is there."""
    files = {file.name: file for file in sorted(path.glob("model*.safetensors"))}
    promised = set(_weight_map(path).values())
    for name in files:
        if match := _SHARD.fullmatch(name):
            stem, width, count = match[1], len(match[2]), match[3]
            promised |= {
                f"{stem}-{i:0{width}d}-of-{count}.safetensors" for i in range(1, int(count) + 1)
            }
    if not files and not promised:
        raise ModelError(f"{path.name}: model.safetensors is missing")
    missing = sorted(promised - files.keys())
    if missing:
        raise ModelError(f"{path.name}: shard {missing[0]} is missing")
    # mlx-lm loads every model*.safetensors: a stray one would silently replace weights.
    stray = sorted(files.keys() - promised) if promised else []
    if stray:
        raise ModelError(f"{path.name}: {stray[0]} is not in model.safetensors.index.json")
    return list(files.values())


def read_tensors(path: Path) -> dict[str, TensorHeader]:
    """Headers of all tensors of all shards; raises ``ModelError`` for a broken or missing one."""
    tensors: dict[str, TensorHeader] = {}
    for file in weight_files(path):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise ModelError(f"{file.name}: {name} is also in {tensors[name].file}")
            tensors[name] = tensor
    for name, shard in _weight_map(path).items():
        if name not in tensors or tensors[name].file != shard:
            raise ModelError(f"{shard}: {name} is missing, though the index places it there")
    return tensors


def read_header(file: Path) -> dict[str, TensorHeader]:
    """The header of one safetensors file, checked against the file's size."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT_BYTES):
            raise ModelError(f"{file.name}: truncated or not a safetensors file")
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        entries = {name: value for name, value in header.items() if name != "__metadata__"}
        spans = sorted((*entry["data_offsets"], name) for name, entry in entries.items())
        tensors = {
            name: TensorHeader(file.name, entry["dtype"], tuple(map(int, entry["shape"])))
            for name, entry in entries.items()
        }
        sizes = {n: math.prod(t.shape) * _DTYPE_BYTES[t.dtype] for n, t in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file.name}: the safetensors header is malformed: {error!r}") from error
    position = 0
    for begin, end, name in spans:
        if begin != position or end - begin != sizes[name]:
            raise ModelError(f"{file.name}: {name} has wrong offsets in the header")
        position = end
    if 8 + length + position != size:
        raise ModelError(
            f"{file.name}: truncated or overlong: {size} bytes, the header says "
            f"{8 + length + position}"
        )
    return tensors


def base_hash(path: Path) -> str:
    """sha256 over weights, config and tokenizer: what an expert is bound to.

    Kept beside the model with the files' sizes and times, and computed anew when they change.
    The chat template is left out: it changes prompts, not what the expert's numbers mean.
    """
    names = ["config.json", "tokenizer.json", "tokenizer.model"]
    files = [path / name for name in names if (path / name).is_file()] + weight_files(path)
    stamp = [[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files]
    cache = path / _HASH_FILE
    if cache.is_file():
        kept = _read_object(path, _HASH_FILE)
        if kept.get("files") == stamp:
            return str(kept["sha256"])
    digests = {file.name: file_sha256(file) for file in files}
    listing = json.dumps(digests, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(listing.encode()).hexdigest()
    if os.access(path, os.W_OK):
        write_json(cache, {"files": stamp, "sha256": digest})
    return digest


def file_sha256(file: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _read_object(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{folder.name}: {name} is missing") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{folder.name}: {name} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{folder.name}: {name} is not a JSON object")
    return content


def _weight_map(path: Path) -> dict[str, str]:
    name = "model.safetensors.index.json"
    if not (path / name).is_file():
        return {}
    mapping = _read_object(path, name).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise ModelError(f"{path.name}: {name} has no weight_map")
    return mapping


def _first(tensors: dict[str, TensorHeader], name: str) -> TensorHeader | None:
    return tensors.get(name) or tensors.get(f"language_model.{name}")


def _quantisation(config: dict[str, Any]) -> dict[str, Any]:
    found = config.get("quantization") or config.get("quantization_config") or {}
    return found if isinstance(found, dict) else {}


def _columns(weight: str, tensors: dict[str, TensorHeader], quantisation: dict[str, Any]) -> int:
    """``in_features`` of a weight, packed or not."""
    layer = weight.removesuffix(".weight")
    scales = tensors.get(f"{layer}.scales")
    if scales is None:
        return tensors[weight].shape[-1]
    settings = quantisation.get(layer)
    if not isinstance(settings, dict):
        settings = quantisation
    group_size = settings.get("group_size")
    if not isinstance(group_size, int):
        raise ModelError(f"config.json: no group_size for the quantised {layer}")
    return scales.shape[-1] * group_size


def _parameters(tensors: dict[str, TensorHeader], quantisation: dict[str, Any]) -> int:
    """Numbers of the unquantised model: scales and biases of the quantisation do not count."""
    total = 0
    for name, tensor in tensors.items():
        if name.endswith((".scales", ".biases")):
            continue
        if name.endswith(".weight") and tensor.shape:
            columns = _columns(name, tensors, quantisation)
            total += math.prod(tensor.shape[:-1]) * columns
        else:
            total += math.prod(tensor.shape)
    return total


def _describe(quantisation: dict[str, Any], tensors: dict[str, TensorHeader]) -> str:
    if not any(name.endswith(".scales") for name in tensors):
        return "none"
    text = f"{quantisation.get('bits')}-bit group {quantisation.get('group_size')}"
    mode = quantisation.get("mode", "affine")
    return text if mode == "affine" else f"{text} {mode}"
