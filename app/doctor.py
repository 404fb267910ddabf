"""What `nightowl doctor` shows: what was found on this machine, and what it means."""

import os
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.client import Client, ServiceUnreachable
from app.config import CONFIG_FILE, ENV_PREFIX, Settings, load_settings
from app.engine.folder import ModelError, ModelInfo, resolve, show
from app.security import TokenFileError

MATRIX = 1024
MEASURE_S = 0.5

Report = dict[str, Any]


def settings_with_origins(
    overrides: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> tuple[Settings, dict[str, str]]:
    """The settings in force, and for each where it came from. Raises ConfigError."""
    settings = load_settings(environ, overrides)
    config = settings.data_dir / CONFIG_FILE
    stored = tomllib.loads(config.read_text("utf-8")) if config.is_file() else {}
    origins = {}
    for key in Settings.model_fields:
        variable = f"{ENV_PREFIX}{key.upper()}"
        if key in overrides:
            origins[key] = "option"
        elif variable in environ:
            origins[key] = variable
        else:
            origins[key] = CONFIG_FILE if key in stored else "default"
    return settings, origins


def found_models(models_dir: Path) -> tuple[list[ModelInfo], list[dict[str, str]]]:
    """The installed models, and those that are broken as `{name, error}`."""
    good: list[ModelInfo] = []
    broken = []
    folders = sorted(models_dir.iterdir()) if models_dir.is_dir() else []
    for folder in folders:
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            good.append(show(folder))
        except ModelError as error:
            broken.append({"name": folder.name, "error": str(error)})
    return good, broken


def examine(settings: Settings, origins: Mapping[str, str], url: str | None = None) -> Report:
    """Everything `doctor` knows, as plain data. Takes a few seconds: it multiplies matrices.

    The service is looked for at `url`, if given, else at the configured address.
    """
    good, broken = found_models(settings.models)
    base, problem = _base_model(settings)
    values = settings.model_dump(mode="json") | {"models_dir": str(settings.models)}
    return {
        "platform": _platform(settings, base),
        "matmul_fp32": matmul_speed(),
        "base_model": {"name": settings.base_model, "problem": problem},
        "models_dir": str(settings.models),
        "models": [asdict(info) | {"path": str(info.path)} for info in good],
        "broken_models": broken,
        "data_dir": {"path": str(settings.data_dir), "exists": settings.data_dir.is_dir()},
        "service": _service(settings, url),
        "disk_free_bytes": {
            "data": _free_bytes(settings.data_dir),
            "models": _free_bytes(settings.models),
        },
        "settings": {key: {"value": values[key], "from": origins[key]} for key in values},
    }


def matmul_speed(size: int = MATRIX, seconds: float = MEASURE_S) -> dict[str, Any]:
    """Best GFLOP/s of a (size, size) fp32 matmul on one MLX stream, and on all at once."""
    from app.engine import platform
    import mlx.core as mx  # isort: skip  (after the platform is set up)

    on_linux = platform.STATUS.system == "linux"
    device = mx.cpu if on_linux else mx.default_device()
    matrix = mx.random.normal((size, size), stream=device)
    mx.eval(matrix)
    streams = platform.streams()

    def best(count: int) -> float:
        used = streams[:count]
        shortest, until = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < until or shortest == float("inf"):
            started = time.perf_counter()
            mx.eval([mx.matmul(matrix, matrix, stream=stream) for stream in used])
            shortest = min(shortest, time.perf_counter() - started)
        return round(count * 2 * size**3 / shortest / 1e9, 1)

    return {
        "size": size,
        "gflops_one_stream": best(1),
        "gflops_all_streams": best(len(streams)),
        "streams": len(streams),
    }


def lines(report: Report) -> Iterator[str]:
    """The report for people."""
    yield from _platform_lines(report["platform"], report["matmul_fp32"])
    yield ""
    yield f"models in {report['models_dir']}"
    for model in report["models"]:
        yield f"  {model['name']}: {model['family']}, {model['quantisation']}, " + (
            f"{size(model['bytes'])}, an expert takes {size(model['expert_bytes'])}"
        )
    for model in report["broken_models"]:
        yield f"  {model['name']} is broken: {model['error']}"
    if not report["models"] and not report["broken_models"]:
        yield "  none"
    base = report["base_model"]
    yield f"base model: {base['problem'] or base['name'] + ', ready'}"
    yield ""
    data, free = report["data_dir"], report["disk_free_bytes"]
    yield f"data folder: {data['path']}{'' if data['exists'] else ' (made by the first serve)'}"
    yield f"disk: {size(free['data'])} free for data, {size(free['models'])} for models"
    yield f"service: {report['service']}"
    yield ""
    yield "settings"
    for key, setting in report["settings"].items():
        yield f"  {key:<18}{setting['value']}  ({setting['from']})"


def size(count: int) -> str:
    """Bytes for people: 299.5 kB, 4.2 GB (powers of ten)."""
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):  # noqa: B007 (the last one is used)
        if value < 1000:
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def _platform(settings: Settings, base: ModelInfo | None) -> Report:
    """What is active, and whether the base model's weights are held as dense fp32."""
    from app.engine import platform

    dense = None if base is None else platform.dense_fits(base.parameters, settings.memory_budget)
    return asdict(platform.STATUS) | {
        "memory_bytes": platform.total_memory_bytes(),
        "dense_fp32": dense,
        "notes": list(dict.fromkeys(platform.STATUS.notes)),
    }


def _platform_lines(platform: Report, matmul: Report) -> Iterator[str]:
    yield f"platform: {platform['system']}, {platform['cores']} cores, " + (
        f"{size(platform['memory_bytes'])} memory"
    )
    if platform["system"] == "linux":
        yield f"  OpenBLAS under MLX: {_word(platform['openblas'])}"
        yield f"  allocator keeps large buffers: {_word(platform['allocator'])}"
        yield f"  mx.compile: {'off' if platform['compile_disabled'] else 'on'}"
        if platform["dense_fp32"] is not None:
            kind = "dense fp32" if platform["dense_fp32"] else "INT4"
            yield f"  base model's weights in memory: {kind}"
    for note in platform["notes"]:
        yield f"  note: {note}"
    yield (
        f"  fp32 matmul {matmul['size']}: {matmul['gflops_one_stream']} GFLOP/s on one stream, "
        + (f"{matmul['gflops_all_streams']} on all {matmul['streams']}")
    )


def _word(active: bool) -> str:
    return "active" if active else "off"


def _base_model(settings: Settings) -> tuple[ModelInfo | None, str | None]:
    """The configured base model, or what keeps it from being used."""
    try:
        return show(resolve(settings.base_model, settings.models)), None
    except ModelError as error:
        return None, str(error)


def _service(settings: Settings, url: str | None) -> str:
    """Whether a service answers."""
    try:
        with Client.of(settings, url) as client:
            health = client.health()
            restarts = health.engine["restarts"]
            training = health.engine["training"]["when"]
            return f"answers at {client.url}, status {health.status}, training {training}" + (
                f", engine restarted {restarts} times" if restarts else ""
            )
    except (ServiceUnreachable, TokenFileError) as error:
        return f"does not answer: {error}"


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk on which a folder is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
