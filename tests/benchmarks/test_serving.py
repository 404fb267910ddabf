"""The benchmark of serving on a tiny model: traffic, swaps, adapters for mlx-lm."""

from itertools import combinations
from pathlib import Path

import numpy as np

from app.engine.scheduler import Engine
from benchmarks import serving
from benchmarks.experts import dense_copy, lora_adapter, publish
from storage.experts import ExpertStore

import mlx.core as mx  # isort: skip  (after the platform is set up)
from mlx_lm import load

SIZE = serving.Size(new_tokens=2, rounds=1)


def test_every_kind_of_traffic_is_measured(engine: Engine, store: ExpertStore) -> None:
    names = [f"t{n}" for n in range(32)]
    experts, trained = (
        [stored.sha for stored in publish(engine, store, names, depth)] for depth in (1.0, 1 / 3)
    )
    assert not set(experts) & set(trained)
    found = serving.traffic(engine, experts, trained, SIZE)
    assert len(found["traffic"]) == len(serving.KINDS) * len(serving.ROWS)
    assert found["share"].median > 0 and found["trained_share"].median > 0


def test_every_row_brings_its_expert_in(engine: Engine, store: ExpertStore) -> None:
    experts = [stored.sha for stored in publish(engine, store, [f"s{n}" for n in range(40)])]
    found = serving.swaps(engine, experts, 45)
    assert found["swap_ms"].low > 0 and found["read_ms"].low > 0


def test_mlx_lm_loads_the_dense_copy_and_its_adapters(model: Path, tmp_path: Path) -> None:
    dense = dense_copy(model, tmp_path / "dense")
    adapters = [lora_adapter(dense, tmp_path / f"lora-{seed}", seed) for seed in (0, 1)]
    logits = []
    for adapter in (None, *adapters):
        module = load(str(dense), adapter_path=None if adapter is None else str(adapter))[0]
        logits.append(np.array(module(mx.array([[5, 6, 7]]))))
    assert np.isfinite(logits).all()
    assert all(not np.allclose(a, b) for a, b in combinations(logits, 2))
