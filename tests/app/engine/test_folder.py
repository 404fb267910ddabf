"""Folders on disk: facts read from headers, and every way a folder can be broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine import folder, models  # isort: skip  (before MLX: it sets the platform up)
import numpy as np
import pytest
from mlx.utils import tree_flatten
from safetensors.numpy import load_file, save_file

from app.engine.folder import ModelError
from storage.atomic import write_json
from tests import tiny


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("models") / "tiny", "qwen3")


@pytest.fixture
def model(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "tiny"))


def edit_config(model: Path, **changes: Any) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changes))


def split_in_two(model: Path) -> list[Path]:
    """The weights as two shards with an index, as a large model has them."""
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(tensors)
    files = [model / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    weight_map = {}
    for file, part in zip(files, (names[::2], names[1::2]), strict=True):
        save_file({name: tensors[name] for name in part}, file)
        weight_map |= dict.fromkeys(part, file.name)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return files


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_facts_from_the_headers_equal_those_of_the_loaded_model(
    family: str, tmp_path: Path
) -> None:
    path = tiny.build(tmp_path / "m", family)
    info = folder.show(path)
    stack = models.inner(models.load(path, dense_fp32=True).module)
    columns = [
        getattr(owner, name).weight.shape[1]
        for layer in stack.layers
        for owner, names in (
            (layer.self_attn, folder.PROJECTIONS[:4]),
            (layer.mlp, folder.PROJECTIONS[4:]),
        )
        for name in names
    ]
    assert info.spectral_coordinates == sum(columns)
    assert info.expert_bytes == 2 * sum(columns)
    assert info.layers == len(stack.layers)
    assert (info.vocab_size, info.hidden_size) == stack.embed_tokens.weight.shape
    assert info.parameters == models.mlx_lm_utils.get_total_parameters(stack)
    assert info.quantisation == "4-bit group 32"
    assert info.family == family


def test_an_unquantised_model_says_so(tmp_path: Path) -> None:
    path = tiny.build(tmp_path / "m", "llama")
    dense = models.load(path, dense_fp32=True)
    weights = dict(tree_flatten(dense.module.parameters()))
    (path / "model.safetensors").unlink()
    save_file({n: np.array(w) for n, w in weights.items()}, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    del config["quantization"]
    (path / "config.json").write_text(json.dumps(config))
    info = folder.show(path)
    assert info.quantisation == "none"
    assert info.spectral_coordinates == dense.info.spectral_coordinates
    assert info.parameters == dense.info.parameters


def test_a_sharded_model_has_the_facts_of_the_whole(model: Path) -> None:
    whole = folder.show(model)
    split_in_two(model)
    folder.check_files(model)
    sharded = folder.show(model)
    assert sharded.parameters == whole.parameters
    assert sharded.spectral_coordinates == whole.spectral_coordinates


def remove_shard(model: Path) -> None:
    split_in_two(model)[1].unlink()


def remove_shard_and_index(model: Path) -> None:
    remove_shard(model)
    (model / "model.safetensors.index.json").unlink()


def add_stray_shard(model: Path) -> None:
    split_in_two(model)
    save_file({"extra": np.zeros(1, np.float32)}, model / "model-old.safetensors")


def double_a_tensor(model: Path) -> None:
    first, second = split_in_two(model)
    (model / "model.safetensors.index.json").unlink()
    shutil.copy(first, second)


def forget_a_tensor(model: Path) -> None:
    first, _ = split_in_two(model)
    tensors = load_file(first)
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, first)


def truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def append(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as stream:
        stream.write(b"\0")


def shift_offsets(model: Path) -> None:
    file = model / "model.safetensors"
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    name = max((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[name]["data_offsets"][0] += 4
    new = json.dumps(header).encode()
    file.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + length :])


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (remove_shard, "shard model-00002-of-00002.safetensors is missing"),
    (remove_shard_and_index, "shard model-00002-of-00002.safetensors is missing"),
    (add_stray_shard, "model-old.safetensors is not in model.safetensors.index.json"),
    (double_a_tensor, "is also in model-00001-of-00002.safetensors"),
    (forget_a_tensor, "model-00001-of-00002.safetensors: .* is missing"),
    (truncate, "model.safetensors: truncated"),
    (append, "model.safetensors: truncated or overlong"),
    (shift_offsets, "model.safetensors: .* has wrong offsets"),
    (lambda m: (m / "model.safetensors").write_bytes(b""), "model.safetensors: truncated"),
    (lambda m: (m / "model.safetensors").write_bytes(b"\2" + b"\0" * 7 + b"[]"), "malformed"),
    (lambda m: (m / "model.safetensors").unlink(), "model.safetensors is missing"),
    (lambda m: (m / "config.json").unlink(), "config.json is missing"),
    (lambda m: (m / "config.json").write_text("{"), "config.json is not valid JSON"),
    (lambda m: (m / "config.json").write_text("[" * 100_000), "config.json is not valid JSON"),
    (lambda m: (m / "config.json").write_text("[]"), "config.json is not a JSON object"),
    (lambda m: edit_config(m, model_type=None), "config.json names no model_type"),
    (lambda m: edit_config(m, model_type="../x"), "config.json names no model_type"),
    (lambda m: edit_config(m, model_file="evil.py"), "own code run"),
    (lambda m: (m / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    (lambda m: (m / "tokenizer.json").write_text("x"), "tokenizer.json is not valid JSON"),
    (
        lambda m: (m / "model.safetensors.index.json").write_text("{}"),
        "model.safetensors.index.json has no weight_map",
    ),
    (shutil.rmtree, "no such model folder"),
]


@pytest.mark.parametrize(("breaking", "reason"), BROKEN, ids=[r for _, r in BROKEN])
def test_a_broken_folder_is_refused_with_the_file_and_the_reason(
    breaking: Callable[[Path], object], reason: str, model: Path
) -> None:
    breaking(model)
    with pytest.raises(ModelError, match=reason) as caught:
        folder.check_files(model)
    assert str(model.parent) not in str(caught.value)


def test_a_quantised_model_without_group_size_is_refused(model: Path) -> None:
    edit_config(model, quantization={"bits": 4})
    with pytest.raises(ModelError, match=r"config\.json: no group_size"):
        folder.show(model)


def test_weights_of_another_architecture_are_refused(model: Path) -> None:
    save_file({"h.0.attn.weight": np.zeros((2, 2), np.float32)}, model / "model.safetensors")
    with pytest.raises(ModelError, match="no decoder of the Llama kind"):
        folder.show(model)


def test_the_hash_follows_weights_config_and_tokenizer(model: Path) -> None:
    seen = {folder.base_hash(model)}
    edit_config(model, rope_theta=5.0)
    seen.add(folder.base_hash(model))
    tokenizer = model / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    seen.add(folder.base_hash(model))
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, model / "model.safetensors")
    seen.add(folder.base_hash(model))
    assert len(seen) == 4


def test_the_hash_is_that_of_the_contents_wherever_the_folder_lies(
    built: Path, model: Path
) -> None:
    assert folder.base_hash(built) == folder.base_hash(model)


def test_a_kept_hash_is_reused_while_sizes_and_times_stand(model: Path) -> None:
    folder.base_hash(model)
    kept = json.loads((model / "base_hash.json").read_text())
    (model / "base_hash.json").write_text(json.dumps(kept | {"sha256": "from the cache"}))
    assert folder.base_hash(model) == "from the cache"


def test_the_same_seed_gives_the_same_tiny_model(built: Path, tmp_path: Path) -> None:
    again = tiny.build(tmp_path / "again", "qwen3")
    other = tiny.build(tmp_path / "other", "qwen3", seed=1)
    assert folder.base_hash(again) == folder.base_hash(built) != folder.base_hash(other)


def test_installed_lists_models_by_name_and_skips_what_is_no_model_name(model: Path) -> None:
    tiny.build(model.parent / "another", "llama")
    (model.parent / ".nightowl-tmp-left").mkdir()
    assert [info.name for info in folder.installed(model.parent)] == ["another", "tiny"]
    assert folder.installed(model.parent / "nowhere") == []


def test_resolve_finds_names_hub_ids_and_paths(model: Path, tmp_path: Path) -> None:
    write_json(model / folder.SOURCE_FILE, {"source": "Org/Tiny"})
    assert folder.resolve("tiny", tmp_path) == model
    assert folder.resolve("Org/Tiny", tmp_path) == model
    assert folder.resolve(str(model), tmp_path / "elsewhere") == model


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (folder.BUILTIN, "nightowl model pull smollm2-135m"),
        ("Other/Tiny", "nightowl model pull Other/Tiny"),
        ("unknown", "nightowl model list"),
        ("/no/such/folder", "nightowl model list"),
    ],
)
def test_resolve_names_the_remedy(asked: str, remedy: str, model: Path, tmp_path: Path) -> None:
    write_json(model / folder.SOURCE_FILE, {"source": "Org/Tiny"})
    with pytest.raises(ModelError, match=remedy):
        folder.resolve(asked, tmp_path)


def test_resolve_refuses_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        folder.resolve(str(tmp_path), tmp_path / "models")


@pytest.mark.parametrize(
    ("text", "name"),
    [("mlx-community/Qwen3-8B-4bit", "qwen3-8b-4bit"), ("org/Gemma-3.1", "gemma-3-1")],
)
def test_slug_makes_a_model_name(text: str, name: str) -> None:
    assert folder.slug(text) == name


def test_slug_refuses_what_leaves_no_name() -> None:
    with pytest.raises(ModelError, match="no usable model name"):
        folder.slug("org/...")
