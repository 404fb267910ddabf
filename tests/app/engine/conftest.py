"""Tiny models, built once for all tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.engine.batch import Runtime
from tests import tiny
from tests.app.engine import rigs
from trainers.spectral import Basis


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
