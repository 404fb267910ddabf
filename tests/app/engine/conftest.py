"""Tiny models, built once for all tests of the engine; Hypothesis without deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from app.engine.batch import Runtime
from app.engine.scheduler import Engine
from tests import tiny
from tests.app.engine import rigs
from tests.app.engine.library import Library, started
from trainers.spectral import Basis

# How long an example takes depends on what else the machine does.
settings.register_profile("engine", deadline=None)
settings.load_profile("engine")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> the folder of its tiny model; gemma's window is 8 tokens."""
    root = tmp_path_factory.mktemp("families")
    return cache(lambda family: tiny.build(root / family, family))


@pytest.fixture(scope="session")
def runtimes(folder_of: Callable[[str], Path]) -> Callable[[str], tuple[Runtime, Basis]]:
    """Family -> its runtime and basis, for the test's own thread."""
    return cache(lambda family: rigs.runtime_of(folder_of(family)))


@pytest.fixture(scope="session")
def stocks(folder_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """Family -> the model as mlx-lm itself loads it."""
    return cache(lambda family: rigs.stock_of(folder_of(family)))


@pytest.fixture(scope="session")
def library(runtimes: Callable[[str], tuple[Runtime, Basis]]) -> Library:
    """Experts of the tiny llama."""
    return Library(runtimes("llama")[1])


@pytest.fixture(scope="session")
def engine(folder_of: Callable[[str], Path], library: Library) -> Iterator[Engine]:
    """An engine of the tiny llama, for tests that leave it as it was."""
    with started(folder_of("llama"), library) as running:
        yield running


@pytest.fixture
def own(folder_of: Callable[[str], Path], library: Library) -> Iterator[Engine]:
    """An engine of the test's own, with one slot and room for three waiting rows."""
    library.read.clear()
    with started(folder_of("llama"), library, slots=1, queue=3) as running:
        yield running
