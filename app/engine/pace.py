"""When the next background step may begin: behind users' rows, and not all of the time."""

from __future__ import annotations

from app.engine.config import Manners


class Pace:
    """Times of the engine thread's steps, as ``time.monotonic`` counts."""

    def __init__(self, manners: Manners) -> None:
        self._quiet_s = manners.quiet_s if manners.when == "idle" else 0.0
        self._pause = 1 / manners.duty_cycle - 1  # for each second of work
        self._free_at = float("-inf")

    def served(self, now: float) -> None:
        """A step for users has ended."""
        self._free_at = max(self._free_at, now + self._quiet_s)

    def worked(self, seconds: float, now: float) -> None:
        """A background step that took so long has ended."""
        self._free_at = max(self._free_at, now + seconds * self._pause)

    def rest_s(self, now: float) -> float:
        """How long the next background step has to wait; 0 or less: it may begin."""
        return self._free_at - now
