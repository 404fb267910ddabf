"""The demo against its own real service on a tiny model: numbers, files, what it leaves."""

from __future__ import annotations

import io
import json
import os
import signal
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console

from app import demo, home
from app.client import Client
from app.config import Settings
from app.engine.folder import ModelError
from app.night.gate import is_held_out
from app.security import read_token
from tests import tiny
from verifiers import build

SMALL = {"iterations": 2, "population": 2, "prompts": 2, "max_tokens": 4}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the demo makes its data folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def options(model: Path, **changes: object) -> demo.Options:
    fields = {"model": str(model), "training": SMALL, "commands": 60, "min_heldout": 2}
    return demo.Options(**(fields | changes))  # type: ignore[arg-type]


def test_a_demo_reports_the_gates_numbers_and_leaves_nothing(
    tiny_model: Path, tmp_path: Path, temporary: Path
) -> None:
    screen = Console(file=io.StringIO(), width=200)
    file = tmp_path / "result.json"
    settings = Settings(data_dir=tmp_path / "data")
    result = demo.run(options(tiny_model, json_file=file, seed=5), settings, screen)
    held = [
        command
        for command in home.sample(5)[:60]
        if is_held_out("group", command.template, demo.HELDOUT_FRACTION, demo.TASK)
    ]
    assert result.heldout == len(held)
    assert (result.seed, result.iterations, result.published) == (5, 2, False)
    assert 0 <= result.base_rate <= 1
    assert 0 < result.p_value <= 1
    assert result.swap_ms > 0
    assert result.read_ms > 0
    assert result.train_seconds > 0
    assert json.loads(file.read_text()) == asdict(result)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "60 posted" in text
    assert "Rejected" in text
    assert held[0].sentence in text
    assert list(temporary.iterdir()) == []
    assert not settings.data_dir.exists()


def test_a_kept_service_goes_on_answering(
    tiny_model: Path, tmp_path: Path, temporary: Path
) -> None:
    screen = Console(file=io.StringIO(), width=200)
    settings = Settings(data_dir=tmp_path / "data")
    with demo.serving(options(tiny_model, keep=True), settings) as service:
        pass
    try:
        with Client(service.url, read_token(service.data_dir / "token")) as client:
            assert client.health().status == "ok"
            assert client.tasks() == []
        demo.print_end(screen, service, options(tiny_model, keep=True))
        assert f"kill {service.process.pid}" in screen.file.getvalue()  # type: ignore[attr-defined]
    finally:
        demo.stop(service.process)
    assert list(temporary.iterdir()) == [service.data_dir]


def test_a_service_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, temporary: Path
) -> None:
    broken = tiny.build(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"")
    settings = Settings(data_dir=tmp_path / "data")
    with (
        pytest.raises(demo.DemoError, match=r"model\.safetensors"),
        demo.serving(options(broken), settings),
    ):
        pass
    assert list(temporary.iterdir()) == []


def test_only_the_embedded_model_is_ever_pulled(tmp_path: Path, temporary: Path) -> None:
    screen = Console(file=io.StringIO(), width=200)
    with pytest.raises(ModelError, match="nightowl model pull org/model"):
        demo.run(demo.Options(model="org/model"), Settings(data_dir=tmp_path), screen)
    assert list(temporary.iterdir()) == []


def test_a_terminated_demo_stops_its_service(
    tiny_model: Path, tmp_path: Path, temporary: Path
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    settings = Settings(data_dir=tmp_path / "data")
    with pytest.raises(SystemExit), demo.serving(options(tiny_model), settings) as service:
        os.kill(os.getpid(), signal.SIGTERM)
    assert service.process.returncode == 0
    assert list(temporary.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_night_without_a_verdict_is_an_error(
    tiny_model: Path, tmp_path: Path, temporary: Path
) -> None:
    screen = Console(file=io.StringIO(), width=200)
    few = options(tiny_model, commands=20, min_heldout=48)
    with pytest.raises(demo.DemoError, match="too few held-out prompts"):
        demo.run(few, Settings(data_dir=tmp_path / "data"), screen)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("seed", range(8))
def test_every_seed_holds_out_enough_commands_of_every_intent(seed: int) -> None:
    commands = home.sample(seed)
    held = [
        command
        for command in commands
        if is_held_out("group", command.template, demo.HELDOUT_FRACTION, demo.TASK)
    ]
    assert len(held) >= demo.MIN_HELDOUT
    assert len({command.intent for command in held}) >= 8
    assert len(commands) >= 250


def test_the_grader_and_the_training_settings_are_accepted_by_their_owners() -> None:
    from trainers.state import FuraSConfig

    build(demo.GRADER)
    FuraSConfig.model_validate(demo.TRAINING)
    FuraSConfig.model_validate(demo.TRAINING | demo.LONG | {"minutes": 60})
