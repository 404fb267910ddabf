"""Sizes and bounds of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from app.engine.work import RolloutLimits


@dataclass(frozen=True)
class Manners:
    """When background work (training rollouts) may run beside users' rows.

    Attributes:
        when: ``always`` = whenever no user's row can run; ``idle`` = only once none has run for
            ``quiet_s``.
        quiet_s: how long.
        duty_cycle: share of the time that background steps may take, in (0, 1].
    """

    when: Literal["always", "idle"] = "always"
    quiet_s: float = 5.0
    duty_cycle: float = 1.0


@dataclass(frozen=True)
class Care:
    """When the engine thread counts as dead or wedged, and how it is replaced.

    Attributes:
        step_limit_s: a step that takes longer is taken for one that never ends.
        load_limit_s: the same for loading the model.
        probe_after_s: after so long without a step the watchdog generates a token.
        attempts: restarts that may fail in a row before the engine is given up.
        backoff_s: pause before the second attempt; doubled before each further one.
    """

    step_limit_s: float = 120.0
    load_limit_s: float = 600.0
    probe_after_s: float = 60.0
    attempts: int = 3
    backoff_s: float = 2.0


@dataclass(frozen=True)
class EngineConfig:
    """Sizes and bounds of the engine.

    Attributes:
        slots: experts held ready at once.
        queue: users' rows that may wait.
        prefill_rows: rows whose prompts are read together on one lane.
        batch_bytes: keys and values of all rows in flight; more rows wait.
        prefix_bytes: keys and values kept of earlier prompts.
        memory_bytes: what the engine may use, ``None`` = half of the machine's memory; decides
            whether weights are held as dense fp32 on CPU, and lowers the other sizes to shares of
            what the model leaves (``app.engine.budget``).
        limits: sizes of training rollouts.
        manners: when background work may run.
        care: when the engine thread is replaced.
    """

    slots: int = 16
    queue: int = 256
    prefill_rows: int = 8
    batch_bytes: int = 2 << 30
    prefix_bytes: int = 256 << 20
    memory_bytes: int | None = None
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    manners: Manners = field(default_factory=Manners)
    care: Care = field(default_factory=Care)
