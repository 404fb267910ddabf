"""Keeps one engine thread serving: notices one that died or does not get on, and replaces it.

A thread has died when it ended without being told to; it is wedged when a step, or the answer to a
token that the watchdog asks for while nobody else does, takes longer than its bound.  Its rows and
its background work are told at once.  A Python thread cannot be ended from outside, so a wedged one
is cut off instead (``app.engine.inbox``); until it comes back, its memory stays in use.

The new thread loads the same base and has to generate a token before anybody meets it.
"""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from app.engine.config import Care
from app.engine.errors import EngineError, EngineFailed, EngineRestarting, EngineStopped
from app.engine.sampling import Sampling
from app.engine.stream import Stream
from app.engine.text import RowText
from app.engine.worker import Base, Worker, text_of

log = logging.getLogger("nightowl.engine")
State = Literal["ok", "restarting", "failed", "stopped"]
_NOTHING = {"active_rows": 0, "waiting_rows": 0, "background": 0}
_CHECKS = 8  # per bound: a wedge is found at most an eighth of its bound late


@dataclass(frozen=True)
class _Probe:
    stream: Stream
    asked_at: float


class Watchdog:
    """Owns the engine thread that serves at present.

    Args:
        make: a new worker, not started, that calls the function it is given when it ends.
        care: when a thread is replaced.

    Attributes:
        base: what is served; the same after every restart.
        restarts: how often the thread was replaced.
        last_restart: when and why the last time, ``None`` before.
    """

    def __init__(self, make: Callable[[Callable[[], None]], Worker], care: Care) -> None:
        self._make = make
        self._care = care
        self._lock = threading.Condition()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._state: State = "stopped"
        self._worker: Worker | None = None
        self._cut_off: list[Worker] = []
        self._probe: _Probe | None = None
        self._load_s = 0.0
        self._left: dict[str, Any] = {}  # counts of the last thread, while there is none
        self._clock = time.monotonic
        self._thread = threading.Thread(target=self._watch, name="nightowl-watchdog", daemon=True)
        self.base: Base
        self.restarts = 0
        self.last_restart: dict[str, str] | None = None

    # -- called from any thread ---------------------------------------------------------------

    def start(self) -> None:
        """Have the first thread load the model; raises what keeps it from that."""
        worker = self._make(self._wake.set)
        worker.start()
        self.base = worker.loaded.result()
        self._load_s = worker.counts()["last_step_s"]
        with self._lock:
            self._worker, self._state = worker, "ok"
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its step, or cut it off if that does not end; and stop watching."""
        self._closing.set()
        self._wake.set()
        stopped = EngineStopped("the engine is shutting down")
        with self._lock:
            worker, self._state = self._worker, "stopped"
            if worker is not None:
                worker.inbox.close(stopped)
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if worker is None:
            return
        while worker.alive and not self._overdue(worker, self._clock()):
            worker.join(self._period)
        if worker.alive:
            worker.cut_off(stopped)
            self._cut_off.append(worker)

    @property
    def state(self) -> State:
        """Whether requests are answered at present, and if not, why."""
        with self._lock:
            worker, state = self._worker, self._state
        if state == "ok" and (worker is None or worker.inbox.closed):
            return "restarting"  # in a moment: the thread has just died
        return state

    @property
    def lingering(self) -> int:
        """Threads that were cut off and have not come back."""
        return sum(worker.alive for worker in self._cut_off)

    def worker(self) -> Worker:
        """The thread that serves; raises ``EngineRestarting`` or ``EngineStopped``."""
        with self._lock:
            worker, state = self._worker, self._state
        if worker is not None and state == "ok":
            return worker
        raise self._reason(state)

    def stand_down(self) -> None:
        """Drop the thread's background work and free what it held."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.inbox.stand_down()

    def dismiss(self) -> None:
        """End the thread's rows with the error that the engine is shutting down."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.inbox.dismiss(EngineStopped("the service is shutting down"))

    def forget(self, expert: str) -> None:
        """Free what the thread holds of an expert; a thread that starts anew holds nothing."""
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.inbox.forget(expert)

    def await_restart(self, timeout_s: float) -> bool:
        """Wait while the thread is being replaced; whether that is over, well or not."""
        with self._lock:
            return self._lock.wait_for(lambda: self.state != "restarting", timeout_s)

    def health(self) -> dict[str, Any]:
        """State, restarts, and what the thread is doing."""
        with self._lock:
            worker, state = self._worker, self.state
        pulse = None if worker is None else worker.pulse
        running = pulse is not None and pulse.running
        return {
            "status": state,
            "restarts": self.restarts,
            "last_restart": self.last_restart,
            "step_age_s": round(self._clock() - pulse.since, 3) if pulse and running else None,
            **(self._left if worker is None else worker.counts()),
        }

    # -- the watchdog's thread ------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Look after the thread as of ``now``: replace it, or ask it for a token."""
        trouble = self._look(now)
        if trouble is not None and self._retire(trouble):
            gc.collect()  # the model of a thread that has died, before it is loaded again
            self._restart()

    def _watch(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._period)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self.check(self._clock())
            except EngineError:  # it ends at this very moment: found dead at the next look
                log.warning("the engine thread took no token", exc_info=True)

    @property
    def _period(self) -> float:
        return min(self._care.step_limit_s, self._care.probe_after_s) / _CHECKS

    def _trouble(self, worker: Worker, now: float) -> str | None:
        """What is wrong with the thread, ``None`` if nothing is."""
        if worker.over:
            return worker.failure or "the engine thread has ended"
        if self._overdue(worker, now):
            return f"a step has taken more than {self._care.step_limit_s:g} s"
        if self._probe is None:
            return None
        if not self._probe.stream.over:
            quiet = now - max(self._probe.asked_at, worker.pulse.since)
            late = quiet > self._care.step_limit_s
            return "the engine does not answer" if late else None
        error = self._probe.stream.result().error
        self._probe = None
        if error is None:
            return None
        log.error("the token that an idle engine was asked for: %s", error)
        return "the engine generates no token"

    def _overdue(self, worker: Worker, now: float) -> bool:
        pulse = worker.pulse
        return pulse.running and now - pulse.since > self._care.step_limit_s

    def _idle_s(self, worker: Worker, now: float) -> float:
        return 0.0 if worker.pulse.running else now - worker.pulse.since

    def _ask(self, worker: Worker, now: float) -> None:
        """Have a token generated, and what is not in use given back: nobody needs the engine."""
        self._probe = _Probe(self._asked(worker), now)
        worker.inbox.tidy()

    def _asked(self, worker: Worker) -> Stream:
        base, sampling = self.base, Sampling(max_tokens=1)
        text = RowText(lambda tokens: text_of(base.tokenizer, tokens), sampling, base.eos)
        stream = Stream(np.array([min(base.eos, default=0)], np.int32), sampling, None, text)
        worker.inbox.put(stream)
        return stream

    def _look(self, now: float) -> str | None:
        """What is wrong with the thread; one that only has nothing to do is asked for a token."""
        worker = self._worker
        if worker is None or self._state != "ok":
            return None
        trouble = self._trouble(worker, now)
        idle = trouble is None and self._probe is None
        if idle and self._idle_s(worker, now) >= self._care.probe_after_s:
            self._ask(worker, now)
        return trouble

    def _retire(self, trouble: str) -> bool:
        """Cut the thread off; False if it is being stopped anyway."""
        with self._lock:
            worker = self._worker
            if worker is None or self._state != "ok":
                return False
            self._state, self._worker, self._probe = "restarting", None, None
            self._left = worker.counts() | _NOTHING
        log.error("the engine is restarted: %s", trouble)
        self.last_restart = {"at": datetime.now(UTC).isoformat(), "reason": trouble}
        self._abandon(worker, self._reason("restarting"))
        return True

    def _restart(self) -> None:
        """Start another thread, or give up after some attempts."""
        for attempt in range(self._care.attempts):
            pause = self._care.backoff_s * 2 ** (attempt - 1) if attempt else 0
            if self._closing.wait(pause):
                return
            fresh = self._attempt()
            if fresh is not None:
                self._serve(fresh)
                return
        with self._lock:
            if self._state == "restarting":
                self._state = "failed"
            self._lock.notify_all()
        log.error("the engine could not be restarted: it is given up")

    def _serve(self, worker: Worker) -> None:
        """Let a new thread meet users, unless the engine is being stopped."""
        with self._lock:
            serving = self._state == "restarting"
            if serving:
                self._worker, self._state = worker, "ok"
                self.restarts += 1
            self._lock.notify_all()
        if not serving:
            self._abandon(worker, EngineStopped("the engine is shutting down"))
            return
        log.warning("the engine was restarted within %.1f s", self._load_s)

    def _attempt(self) -> Worker | None:
        """A new thread that has generated a token; ``None``, logged, if it cannot."""
        began = self._clock()
        worker = self._make(self._wake.set)
        worker.start()
        try:
            base = worker.loaded.result(self._care.load_limit_s)
            if (base.info.base_hash, base.basis_hash) != (
                self.base.info.base_hash,
                self.base.basis_hash,
            ):
                raise EngineError("the model folder holds another model than before")
            error = self._asked(worker).result(self._care.step_limit_s).error
            if error is not None:
                raise EngineError(error)
        except Exception:  # whatever a model that is loaded again may raise
            log.exception("the engine could not be restarted")
            self._abandon(worker, self._reason("restarting"))
            return None
        self._load_s = self._clock() - began
        return worker

    def _abandon(self, worker: Worker, reason: EngineError) -> None:
        worker.cut_off(reason)
        if worker.over:
            worker.join()
        self._cut_off = [old for old in (*self._cut_off, worker) if old.alive]

    def _reason(self, state: State) -> EngineError:
        if state == "restarting":
            retry_after_s = max(1, math.ceil(self._load_s))
            return EngineRestarting("the engine is being restarted: try again", retry_after_s)
        if state == "failed":
            return EngineFailed("the engine has failed and could not be restarted")
        return EngineStopped("the engine is shutting down")
