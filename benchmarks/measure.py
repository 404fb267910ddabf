"""What the benchmarks share: paired rounds, medians with their spread, tables, JSON."""

import argparse
import json
import os
import platform as host
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Work = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and their lowest and highest value."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(self.low)}..{short(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Of values that were measured in the same rounds."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by this share of the values."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def seconds(work: Work) -> float:
    """Time that work takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def rounds(works: Mapping[str, Work], count: int, budget_s: float = 0.0) -> dict[str, list[float]]:
    """Seconds of each work, once per round and in turn, every other round backwards.

    More than ``count`` rounds are run while another one fits into ``budget_s``.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    begun = time.perf_counter()
    done = 0
    while done < count or (time.perf_counter() - begun) * (done + 1) < budget_s * done:
        for name in list(works)[:: 1 if done % 2 == 0 else -1]:
            taken[name].append(seconds(works[name]))
        done += 1
    return taken


def fastest(work: Work, repeats: int) -> float:
    """Seconds of the fastest of several runs, the first not counted."""
    work()
    return min(seconds(work) for _ in range(repeats))


def short(value: float) -> str:
    """Three digits that count, thousands apart."""
    if value == 0 or not abs(value) < float("inf"):
        return str(value)
    magnitude = abs(value)
    places = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 0.1 else 4
    return f"{value:,.{places}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints columns as wide as they need to be, the first one to the left."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    for line in cells:
        first = line[0].ljust(widths[0])
        rest = (text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))
        print("  ".join([first, *rest]))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return short(value) if isinstance(value, float) else str(value)


def options(description: str, name: str, model: str | None = None) -> argparse.ArgumentParser:
    """The options of every benchmark; with a default ``model``, of one that runs a model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller, within a minute")
    parser.add_argument("--json", type=Path, default=Path(f"build/bench/{name}.json"))
    if model is not None:
        parser.add_argument("--model", default=model, help="an installed model or a folder")
    return parser


def write(path: Path, result: Mapping[str, Any]) -> None:
    """The result as JSON, with what is known of the machine; spreads as objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**result, "machine": machine()}
    path.write_text(json.dumps(whole, indent=2, default=asdict) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "system": host.platform(),
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }
