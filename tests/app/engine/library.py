"""Engines of tiny models, and the experts they are given."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine import worker
from app.engine.sampling import Sampling
from app.engine.scheduler import Engine, EngineConfig
from app.engine.stream import Stream
from app.engine.text import Completion
from tests.app.engine import rigs
from trainers.spectral import Basis

GREEDY = Sampling(max_tokens=6)


class Library:
    """Experts by name. One named ``hold`` holds the engine's thread until it is let go."""

    def __init__(self, basis: Basis) -> None:
        self.basis = basis
        self.flat = {name: rigs.experts(basis, 1, seed)[0] for seed, name in enumerate("abc", 1)}
        self.flat["broken"] = np.full_like(self.flat["a"], np.inf)
        self.read: list[str] = []
        self._held = threading.Semaphore(0)
        self._go = threading.Semaphore(0)

    def __call__(self, name: str) -> dict[str, rigs.FloatArray]:
        self.read.append(name)
        if name == "hold":
            self._held.release()
            self._go.acquire()
            raise InterruptedError("only there to hold the engine")
        if name not in self.flat:
            raise FileNotFoundError(f"version {name} is not in the store")
        return self.basis.coordinates.split(self.flat[name])

    def wait_held(self) -> None:
        """Returns when the engine's thread is held."""
        assert self._held.acquire(timeout=300)

    def let_go(self) -> None:
        """Lets the engine's thread go on."""
        self._go.release()

    @contextmanager
    def hold(self, engine: Engine) -> Iterator[Stream]:
        """The engine's thread stands still between two steps; yields the row that holds it."""
        stream = engine.submit([5, 6], Sampling(max_tokens=1), "hold")
        self.wait_held()
        try:
            yield stream
        finally:
            self.let_go()


@contextmanager
def started(folder: Path, library: Library, **config: Any) -> Iterator[Engine]:
    """An engine that runs."""
    engine = Engine(folder, library, EngineConfig(**config))
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def answers(engine: Engine, prompts: list[rigs.Tokens], *experts: str | None) -> list[Completion]:
    """The results of rows that are submitted together."""
    named = experts or (None,) * len(prompts)
    streams = [engine.submit(p, GREEDY, e) for p, e in zip(prompts, named, strict=True)]
    return [stream.result() for stream in streams]


def loading_held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Threads that load a model stand still: set when one does, and to be set to let it go on."""
    loading, go = threading.Event(), threading.Event()
    load = worker.load

    def held(*args: Any, **options: Any) -> Any:
        loading.set()
        go.wait()
        return load(*args, **options)

    monkeypatch.setattr(worker, "load", held)
    return loading, go
