"""A tiny model without an end, and a started engine of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.engine.scheduler import Engine, EngineConfig
from benchmarks.base import endless
from storage.experts import ExpertStore
from tests import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model whose answers never end early."""
    root = tmp_path_factory.mktemp("benchmarks")
    return endless(tiny.build(root / "tiny", max_position_embeddings=4096), root / "endless")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> ExpertStore:
    """The engine's experts."""
    return ExpertStore(tmp_path_factory.mktemp("store") / "experts")


@pytest.fixture(scope="session")
def engine(model: Path, store: ExpertStore) -> Iterator[Engine]:
    """A running engine with fewer slots than experts."""
    config = EngineConfig(slots=32)
    with closing(Engine(model, lambda version: store.load(version).tensors, config)) as running:
        running.start()
        yield running
