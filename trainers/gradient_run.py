"""What LCSB and ABSignSGD share: the run's counters, its budget, its progress and its files."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from trainers.backprop import ShouldStop, Stopped
from trainers.decoder import Params
from trainers.objectives import Batch

Arrays = dict[str, npt.NDArray[np.generic]]
NextBatch = Callable[[int, Params], Batch | None]
"""(iteration, the expert's parameters) -> its batch, or ``None`` for one to skip."""


class Budget(Protocol):
    """The part of a configuration that ends a run."""

    @property
    def iterations(self) -> int:
        """Iterations at most."""

    @property
    def minutes(self) -> float | None:
        """Minutes of training at most."""


@dataclass
class Run:
    """What every gradient trainer's state holds.

    Attributes:
        params: what is trained, parameter name -> array.
        seed: key of all randomness.
        iteration: iterations done; also the data cursor.
        skipped: iterations whose batch held nothing to train on.
        non_finite: iterations whose gradients were not finite, which changed nothing.
        elapsed_s: seconds trained, over all sessions.
        loss: of the newest batch; NaN before the first.
    """

    params: Params
    seed: int
    iteration: int = 0
    skipped: int = 0
    non_finite: int = 0
    elapsed_s: float = 0.0
    loss: float = math.nan


AnyRun = TypeVar("AnyRun", bound=Run)


@dataclass(frozen=True)
class Outcome:
    """What one iteration did.

    Attributes:
        layers: those with new gradients; empty if the iteration changed nothing.
        tokens: read by the forward pass.
        cosine: of LCSB's gradient and the exact one, where it was measured.
    """

    layers: tuple[int, ...] = ()
    tokens: int = 0
    cosine: float | None = None


@dataclass(frozen=True)
class Progress:
    """What one iteration reports."""

    iteration: int
    iterations: int
    loss: float | None
    layers: tuple[int, ...]
    cosine: float | None
    skipped: int
    non_finite: int
    tokens_per_second: float
    elapsed_s: float
    eta_s: float


def share_done(budget: Budget, run: Run) -> float:
    """Share of the budget that is used up, of iterations or minutes, whichever is more."""
    done = run.iteration / budget.iterations
    if budget.minutes is not None:
        done = max(done, run.elapsed_s / (60 * budget.minutes))
    return min(1.0, done)


def drive(
    budget: Budget,
    run: AnyRun,
    advance: Callable[[], Outcome],
    on_iteration: Callable[[AnyRun, Progress], None],
    should_stop: ShouldStop,
) -> str:
    """Iterate until the budget is used up or ``should_stop`` names a reason; returns the reason.

    ``advance`` does one iteration and changes ``run`` only when its gradients are complete, so a
    stop between two layers leaves the state of the iteration before.  ``on_iteration`` is called
    after every iteration: a checkpoint taken there resumes bit for bit.
    """
    while (reason := _finished(budget, run) or should_stop()) is None:
        started = time.monotonic()
        try:
            outcome = advance()
        except Stopped as stopped:
            return stopped.reason
        seconds = time.monotonic() - started
        run.iteration += 1
        run.elapsed_s += seconds
        on_iteration(run, _report(budget, run, outcome, seconds))
    return reason


def _finished(budget: Budget, run: Run) -> str | None:
    if run.iteration >= budget.iterations:
        return "iterations"
    if budget.minutes is not None and run.elapsed_s >= 60 * budget.minutes:
        return "minutes"
    return None


def _report(budget: Budget, run: Run, outcome: Outcome, seconds: float) -> Progress:
    left = (budget.iterations - run.iteration) * run.elapsed_s / run.iteration
    if budget.minutes is not None:
        left = min(left, 60 * budget.minutes - run.elapsed_s)
    return Progress(
        iteration=run.iteration,
        iterations=budget.iterations,
        loss=run.loss if math.isfinite(run.loss) else None,
        layers=outcome.layers,
        cosine=outcome.cosine,
        skipped=run.skipped,
        non_finite=run.non_finite,
        tokens_per_second=outcome.tokens / seconds if seconds else 0.0,  # a coarse clock
        elapsed_s=run.elapsed_s,
        eta_s=max(0.0, left),
    )


def all_finite(arrays: Mapping[str, mx.array]) -> bool:
    """Whether no element is NaN or infinite."""
    finite = [mx.isfinite(value).all() for value in arrays.values()]
    return bool(mx.stack(finite).all().item()) if finite else True


def pack(groups: Mapping[str, Mapping[str, mx.array]], fields: Mapping[str, Any]) -> Arrays:
    """Arrays to store: the groups' under ``<group>/<name>``, fields and order as JSON."""
    names = list(next(iter(groups.values())))
    meta = json.dumps({"names": names, "fields": dict(fields)})
    arrays: Arrays = {"meta": np.frombuffer(meta.encode(), dtype=np.uint8)}
    for group, values in groups.items():
        arrays |= {f"{group}/{name}": _stored(value) for name, value in values.items()}
    return arrays


def _stored(value: mx.array) -> npt.NDArray[np.generic]:
    """fp32 as it is, bf16, which NumPy lacks, as its bits."""
    return np.array(mx.view(value, mx.uint16) if value.dtype == mx.bfloat16 else value)


def _restored(array: npt.NDArray[Any]) -> mx.array:
    if array.dtype not in (np.float32, np.uint16):  # MLX would make fp32 of float64
        raise ValueError(f"{array.dtype} is no type of a run's state")
    value = mx.array(array)
    return mx.view(value, mx.bfloat16) if value.dtype == mx.uint16 else value


def unpack(
    arrays: Mapping[str, npt.NDArray[Any]], groups: Sequence[str], fields: Mapping[str, Any]
) -> tuple[list[Params], dict[str, Any]]:
    """The inverse of ``pack``: each group's arrays, and the fields.

    ``fields``: an example, whose names and types those found must have.  Raises ``KeyError`` or
    ``ValueError`` if something is missing, of another type or shape, or not finite.
    """
    found: dict[str, Any]
    match json.loads(arrays["meta"].tobytes()):
        case {"names": [*names], "fields": dict(found)}:
            pass
        case _:
            raise ValueError("the state's description is not that of a run")
    if {k: type(v) for k, v in found.items()} != {k: type(v) for k, v in fields.items()}:
        raise ValueError("the state's fields are not those of a run")
    if set(arrays) != {"meta"} | {f"{group}/{name}" for group in groups for name in names}:
        raise ValueError("the state's arrays are not those of a run")
    restored = [{n: _restored(arrays[f"{group}/{n}"]) for n in names} for group in groups]
    for name, first in restored[0].items():
        values = [group[name] for group in restored]
        if any(v.dtype != first.dtype or v.shape != first.shape for v in values):
            raise ValueError(f"{name} must be arrays of one type and shape")
    if not all(all_finite(group) for group in restored):
        raise ValueError("the state holds NaN or infinity")
    return restored, found
