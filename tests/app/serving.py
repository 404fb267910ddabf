"""The real service for tests: real engine, tiny model, real database, real HTTP on a free port."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.client import Client
from app.config import Settings
from app.main import DRAIN_S, Server, listen, running, url_of
from app.state import Parts
from storage import versions
from storage.experts import DataSnapshot, Manifest
from storage.tables import Version
from storage.values import utcnow

GRADER = {"type": "string_check", "reference": "{{item.answer}}", "operation": "eq"}
JOB = {"population": 2, "prompts": 2, "iterations": 2, "max_tokens": 2, "fitness": "score"}


@dataclass(frozen=True)
class Service:
    """A service that answers."""

    parts: Parts
    client: Client
    server: Server

    @property
    def url(self) -> str:
        return self.client.url


def settings_of(data_dir: Path, model: Path, **changes: Any) -> Settings:
    defaults: dict[str, Any] = {
        "base_model": str(model),
        "night_enabled": False,
        "heldout_fraction": 0.5,
        "min_heldout": 2,
    }
    return Settings(data_dir=data_dir, **(defaults | changes))


@contextmanager
def serving(settings: Settings, drain_s: float = DRAIN_S) -> Iterator[Service]:
    """A running service; at the end it is shut down as SIGTERM would."""
    with listen("127.0.0.1", 0) as listener, running(settings) as parts:
        server = Server(parts, drain_s)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with Client(url_of(listener), parts.token) as client:
                yield Service(parts, client, server)
        finally:
            server.should_exit = True
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; looks again every few milliseconds."""
    while not condition():
        threading.Event().wait(0.005)


def fresh(prefix: str = "task") -> str:
    """A name nobody has used."""
    return f"{prefix}-{secrets.token_hex(4)}"


def episode(task: str, n: int = 0, **fields: Any) -> dict[str, Any]:
    """The n-th episode of a task, a passing one."""
    return {
        "task": task,
        "messages": [{"role": "user", "content": f"turn on the light number {n}"}],
        "completion": f"on {n}",
        "item": {"answer": f"on {n}"},
        **fields,
    }


def add_expert(parts: Parts, task: str, seed: int = 0, **changes: Any) -> Version:
    """A candidate version of a task, far enough from the base to answer differently."""
    coordinates = parts.engine.coordinates
    flat = np.random.default_rng(seed).normal(0, 0.5, coordinates.total).astype(np.float32)
    tensors = {name: part.astype(np.float16) for name, part in coordinates.split(flat).items()}
    manifest = Manifest(
        **{
            "kind": "spectral",
            "base_model": parts.engine.info.name,
            "base_hash": parts.engine.info.base_hash,
            "basis": parts.engine.basis_kind,
            "basis_hash": parts.engine.basis_hash,
            "task": task,
            "trainer": "fura_s",
            "config": {},
            "seed": seed,
            "parent": None,
            "data": DataSnapshot(episode_ids=(), hash="0" * 64),
            "gate": None,
            "created_at": utcnow(),
        }
        | changes
    )
    stored = parts.experts.put(tensors, manifest)
    with parts.database.session() as session:
        return versions.add(
            session,
            id=stored.sha,
            task=task,
            kind=manifest.kind,
            base_model=manifest.base_model,
            base_hash=manifest.base_hash,
            basis_hash=manifest.basis_hash,
            nbytes=stored.nbytes,
            manifest=stored.manifest.model_dump(mode="json"),
            parent_id=manifest.parent,
        )
