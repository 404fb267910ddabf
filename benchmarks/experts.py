"""Random experts for the benchmarks: in a store of ours, and as mlx-lm's LoRA adapters."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.engine import models
from app.engine.scheduler import Engine
from benchmarks.base import candidates
from storage import versions
from storage.db import Database
from storage.experts import DataSnapshot, ExpertStore, Manifest, StoredExpert
from storage.values import utcnow

import mlx.core as mx  # isort: skip  (after the platform is set up)
from mlx.utils import tree_flatten

LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}


def publish(
    engine: Engine, store: ExpertStore, tasks: Sequence[str], depth: float = 1.0
) -> list[StoredExpert]:
    """One expert per task in the store: small random coordinates of the engine's model.

    ``depth``: share of the layers, from the top, that an expert changes.
    """
    drawn = candidates(len(tasks), engine.coordinates.total)
    layers = engine.info.layers
    below = layers - max(1, round(depth * layers))
    drawn[:, : below * (engine.coordinates.total // layers)] = 0
    found = []
    for number, (task, flat) in enumerate(zip(tasks, drawn, strict=True)):
        parts = engine.coordinates.split(flat)
        tensors = {name: part.astype(np.float16) for name, part in parts.items()}
        manifest = Manifest(
            kind="spectral",
            base_model=engine.info.name,
            base_hash=engine.info.base_hash,
            basis=engine.basis_kind,
            basis_hash=engine.basis_hash,
            task=task,
            trainer="fura_s",
            config={},
            seed=number,
            parent=None,
            data=DataSnapshot(episode_ids=(), hash="0" * 64),
            gate=None,
            created_at=utcnow(),
        )
        found.append(store.put(tensors, manifest))
    return found


def activate(data_dir: Path, experts: Sequence[StoredExpert]) -> None:
    """Make stored experts the active versions of their tasks, as a night would."""
    database = Database(data_dir / "nightowl.db")
    for expert in experts:
        manifest = expert.manifest
        with database.session() as session:
            versions.add(
                session,
                id=expert.sha,
                task=manifest.task,
                kind=manifest.kind,
                base_model=manifest.base_model,
                base_hash=manifest.base_hash,
                basis_hash=manifest.basis_hash,
                nbytes=expert.nbytes,
                manifest=manifest.model_dump(mode="json"),
            )
            versions.activate(session, expert.sha)
    database.close()


def dense_copy(model: Path, folder: Path) -> Path:
    """The same model with dense fp32 weights, in which stock mlx-lm is fastest on CPU."""
    folder.mkdir()
    loaded = models.load(model, dense_fp32=True)
    weights: Any = tree_flatten(loaded.module.parameters())
    mx.save_safetensors(str(folder / "model.safetensors"), dict(weights), {"format": "mlx"})
    config = json.loads((model / "config.json").read_text("utf-8"))
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (model / name).is_file():
            (folder / name).write_bytes((model / name).read_bytes())
    return folder


def lora_adapter(model: Path, folder: Path, seed: int) -> Path:
    """A random LoRA adapter of all layers, in mlx-lm's format."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    folder.mkdir()
    loaded = models.load(model)
    loaded.module.freeze()
    layers = loaded.info.layers
    linear_to_lora_layers(loaded.module, layers, LORA)
    draw = np.random.default_rng(seed)
    parameters: Any = tree_flatten(loaded.module.trainable_parameters())
    weights = {
        name: mx.array(draw.normal(0, 0.01, value.shape).astype(np.float32))
        for name, value in parameters
    }
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
