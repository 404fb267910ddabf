"""What users are told over HTTP while the engine is restarted, and when it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.engine import worker as worker_module
from app.engine.config import Care
from tests.app.engine.library import loading_held
from tests.app.serving import Service, serving, settings_of, until

CHAT = "/v1/chat/completions"


@pytest.fixture
def own(tiny_model: Path, tmp_path: Path) -> Iterator[Service]:
    """A service of the test's own, whose engine it may break."""
    settings = settings_of(tmp_path / "data", tiny_model, training="idle", duty_cycle=0.5)
    with serving(settings) as running:
        yield running


@pytest.fixture
def bare(own: Service) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {own.parts.token}"}
    with httpx.Client(base_url=own.url, headers=headers, timeout=60) as client:
        yield client


def ask(bare: httpx.Client, own: Service, **extra: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hello"}]
    model = own.parts.engine.info.name
    return bare.post(CHAT, json={"model": model, "messages": messages, "max_tokens": 3} | extra)


def died(*_: object) -> None:
    raise RuntimeError("no memory in /secret/path")


def test_requests_are_told_when_to_come_back_while_the_engine_restarts(
    own: Service, bare: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go = loading_held(monkeypatch)
    before = ask(bare, own).json()["choices"]
    own.parts.engine._worker._step = died  # type: ignore[method-assign]
    lost = ask(bare, own)
    loading.wait()
    refused = ask(bare, own, stream=True)
    for response in (lost, refused):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "restarting"
        assert int(response.headers["Retry-After"]) >= 1
        assert "secret" not in response.text
    health = bare.get("/healthz")
    assert health.status_code == 503
    assert health.json()["status"] == "restarting"
    assert "secret" not in health.text
    assert bare.get("/").status_code == 200
    go.set()
    until(lambda: bare.get("/healthz").status_code == 200)
    assert ask(bare, own).json()["choices"] == before
    engine = bare.get("/healthz").json()["engine"]
    assert engine["restarts"] == 1
    assert engine["training"] == {"when": "idle", "duty_cycle": 0.5, "waits_until": None}


def test_an_engine_that_has_failed_promises_nothing(
    own: Service, bare: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "load", died)
    own.parts.engine._watchdog._care = Care(backoff_s=0.0)
    own.parts.engine._worker._step = died  # type: ignore[method-assign]
    ask(bare, own)
    until(lambda: bare.get("/healthz").json()["status"] == "failed")
    response = ask(bare, own)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_failed"
    assert "Retry-After" not in response.headers
    assert bare.get("/healthz").status_code == 503
    assert bare.get("/v1/tasks").status_code == 200
