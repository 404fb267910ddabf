"""One engine thread: it owns MLX, serves users and trains in the gaps.

MLX streams belong to a thread: a lazy array made in one cannot be evaluated in another.  So one
thread loads the model, generates, writes expert slots and frees.  Everything it has to do comes
through its inbox; a thread that is cut off has a closed inbox and nothing that another one uses.

Users' rows go first.  Reading their prompts and generating take turns, a step each.  Background
work (training rollouts) is a generator that gives the thread back after every engine step; it
advances only while no user's row is waiting or running, and when its pace allows.

A step that fails ends the rows that took part in it, not the thread.  A thread that fails twice in
a row ends, and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from app.engine import platform
from app.engine.admission import Admission
from app.engine.basis import load_basis
from app.engine.batch import Runtime
from app.engine.budget import buffer_bytes, divided
from app.engine.config import EngineConfig
from app.engine.errors import EngineError, EngineRestarting
from app.engine.folder import context_length
from app.engine.inbox import Inbox
from app.engine.lanes import Lane
from app.engine.models import LoadedModel, ModelInfo, Tokenizer, load, show
from app.engine.pace import Pace
from app.engine.prefixes import PrefixCache
from app.engine.rollout import Population
from app.engine.slots import ExpertSlots
from trainers.spectral import Coordinates

log = logging.getLogger("nightowl.engine")
# So often a busy engine's heap is trimmed, which otherwise keeps free pages in ever smaller pieces.
_TIDY_S = 300.0
ExpertSource = Callable[[str], Mapping[str, npt.NDArray[np.floating[Any]]]]


@dataclass(frozen=True)
class Base:
    """What any thread may know of the base model: no weights."""

    info: ModelInfo
    tokenizer: Tokenizer
    eos: frozenset[int]
    max_context: int
    coordinates: Coordinates
    basis_hash: str
    basis_kind: str


@dataclass(frozen=True)
class Pulse:
    """How far a thread has got: loading the model is its first step.

    Attributes:
        steps: steps begun.
        since: when the present one began, or the last one ended, as ``time.monotonic`` counts.
        running: whether a step is under way.
    """

    steps: int
    since: float
    running: bool


class Worker:
    """An engine thread from its start to its end; it is started once.

    Args:
        model_path: MLX model folder.
        source: version id -> its validated tensors; called on the engine thread.
        config: sizes and bounds.
        ended: called at the end of the thread, from it.

    Attributes:
        inbox: what it has to do; closing it ends the thread.
        loaded: the base once it can serve; ``ModelError`` and others if it cannot.
        pulse: how far it has got.
        failure: what ended the thread, if anything did; nothing of what it was working on.
        over: whether it serves no more and only has to end.
    """

    def __init__(
        self,
        model_path: Path,
        source: ExpertSource,
        config: EngineConfig,
        ended: Callable[[], None],
    ) -> None:
        self._path = model_path
        self._source = source
        self._config = config
        self._ended = ended
        self.inbox = Inbox(config.queue)
        self.loaded: Future[Base] = Future()
        self.pulse = Pulse(0, time.monotonic(), running=False)
        self.failure: str | None = None
        self.over = False
        self._pace = Pace(config.manners)
        self._tokens = 0
        self._last_step_s = 0.0
        self._active = 0
        self._prompts_turn = True
        self._failures = 0
        self._cut_off = False
        self._tidied = time.monotonic()
        self._thread = threading.Thread(target=self._main, name="nightowl-engine", daemon=True)

    # -- called from any thread ---------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, which loads the model; ``loaded`` tells when it can serve."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def cut_off(self, reason: EngineError) -> None:
        """Give the thread up: tell its rows now; should it ever come back, it ends."""
        self._cut_off = True
        self.inbox.close(reason)
        self.inbox.fail()

    @property
    def population(self) -> Population:
        """What makes background work; its generators run on the engine thread only."""
        return self._population

    def counts(self) -> dict[str, Any]:
        """What the thread is doing, for ``/healthz``."""
        return {
            "active_rows": self._active,
            "waiting_rows": len(self.inbox.waiting),
            "background": len(self.inbox.background),
            "tokens_generated": self._tokens,
            "last_step_s": round(self._last_step_s, 4),
            "last_read_ms": self._slots.last_read_ms,
            "last_swap_ms": self._slots.last_swap_ms,
        }

    # -- the engine thread --------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._begin()
            base = self._load()
            self._end()
            self.loaded.set_result(base)
            while self.inbox.wait(self._busy, lambda: self._pace.rest_s(time.monotonic())):
                self._begin()
                self._step()
                self._end()
        except BaseException as error:
            self._fail(error)
        finally:
            self.inbox.fail()
            self.over = True
            # This thread made them: left alone they abort the process when it ends.
            mx.clear_streams()
            self._ended()

    def _fail(self, error: BaseException) -> None:
        """Note what ends the thread, for whoever is to be told."""
        loading = not self.loaded.done()
        what = "the model could not be loaded" if loading else "the engine thread failed"
        self.failure = f"{what}: {type(error).__name__}"
        self.inbox.close(
            EngineRestarting("the engine has failed and is being restarted: try again", 1)
        )
        if loading:
            self.loaded.set_exception(error)
        else:
            log.error("the engine thread failed", exc_info=error)

    def _begin(self) -> None:
        self.pulse = Pulse(self.pulse.steps + 1, time.monotonic(), running=True)

    def _end(self) -> None:
        now = time.monotonic()
        self._last_step_s = now - self.pulse.since
        self.pulse = Pulse(self.pulse.steps, now, running=False)

    def _load(self) -> Base:
        if platform.STATUS.system == "linux":
            mx.set_default_device(mx.cpu)
        platform.set_blas_threads(1)  # a thread that was cut off may have left another number
        parameters = show(self._path).parameters
        dense = platform.dense_fits(parameters, self._config.memory_bytes)
        self._model: LoadedModel = load(self._path, dense_fp32=dense)
        basis = load_basis(self._model)
        tokenizer = self._model.tokenizer
        self._runtime = Runtime(self._model, basis)
        streams = platform.streams()
        sizes = self._sizes(len(streams))

        def decode(tokens: Sequence[int]) -> str:
            return text_of(tokenizer, tokens)

        self._population = Population(self._runtime, streams, decode, sizes.limits)
        self._prefixes = PrefixCache(sizes.prefix_bytes)
        self._slots = ExpertSlots(self._runtime, self._config.slots, self._source)
        self._lanes = [
            Lane(self._runtime, stream, self._prefixes, self._slots.edits) for stream in streams
        ]
        self._admission = Admission(
            self._lanes,
            self._slots,
            self._config.prefill_rows,
            sizes.batch_bytes,
            self._runtime.token_bytes,
        )
        return Base(
            info=self._model.info,
            tokenizer=tokenizer,
            eos=self._runtime.eos,
            max_context=context_length(self._path),
            coordinates=basis.coordinates,
            basis_hash=basis.sha256,
            basis_kind=basis.kind,
        )

    def _sizes(self, lanes: int) -> EngineConfig:
        """What the memory budget leaves of the configured sizes."""
        weights = dict(tree_flatten(self._model.module.parameters()))
        table = 4 * (self._config.slots + 1) * self._runtime.coordinates.total
        held = table + sum(array.nbytes for array in weights.values())
        if platform.STATUS.system != "linux":  # on Linux MLX keeps next to nothing
            mx.set_cache_limit(buffer_bytes(self._config, held))
        return divided(self._config, held, self._runtime.token_bytes, lanes)

    def _busy(self) -> bool:
        """Whether users' rows are under way."""
        return bool(self._admission.rows) or any(lane.rows for lane in self._lanes)

    def _step(self) -> None:
        """One engine step: read users' prompts or decode for them in turns, else the background."""
        self._run_errands()
        self._admission.start(self.inbox.waiting)
        running = any(lane.rows for lane in self._lanes)
        if self._admission.rows and (self._prompts_turn or not running):
            self._prompts_turn = False
            with self._all_cores(self._admission.lanes):
                done = self._admission.step()
            self._tokens += sum(len(row.text.tokens) for row in done)
            self._settle(done)
        elif running:
            self._prompts_turn = True
            self._decode()
        elif self._pace.rest_s(time.monotonic()) <= 0:
            self._advance()

    def _run_errands(self) -> None:
        errands = self.inbox.errands()
        for expert in errands.forget:
            self._prefixes.forget(expert)
            self._slots.forget(expert)
        for work in errands.dropped:
            work.steps.close()
        if errands.tidy:
            self._population.release()
        now = time.monotonic()
        if errands.tidy or now - self._tidied > _TIDY_S:
            self._tidied = now
            platform.return_memory()

    def _decode(self) -> None:
        running = [stream for lane in self._lanes for stream in lane.rows]
        try:
            with self._all_cores(sum(bool(lane.rows) for lane in self._lanes)):
                pending = [array for lane in self._lanes for array in lane.step()]
                mx.eval(pending)
            self._tokens += sum(lane.collect() for lane in self._lanes)
            self._failures = 0
        except Exception as error:
            self._give_up(error)
        self._settle(running)

    def _give_up(self, error: Exception) -> None:
        """End the rows in flight with an error; a second failure in a row is final."""
        self._failures += 1
        if self._failures > 1:
            raise error
        log.error("a decode step failed", exc_info=error)
        for lane in self._lanes:
            lane.fail(f"the answer could not be generated: {error}")

    @contextmanager
    def _all_cores(self, busy: int) -> Iterator[None]:
        """A lone lane gets all cores for its matmuls, of ``busy`` ones each its share."""
        platform.set_blas_threads(max(1, len(self._lanes) // max(1, busy)))
        try:
            yield
        finally:  # of the whole process: rollouts are bit for bit the same on one thread per lane
            if not self._cut_off:  # else another engine thread may be in the middle of a step
                platform.set_blas_threads(1)

    def _settle(self, streams: Sequence[Any]) -> None:
        """Give back the slots of rows that are over."""
        live = {id(row) for lane in self._lanes for row in lane.rows}
        for stream in streams:
            if id(stream) not in live:
                self._slots.release(stream.expert)
        self._active = len(live) + len(self._admission.rows)
        self._pace.served(time.monotonic())

    def _advance(self) -> None:
        """One step of the background work at the head of the queue."""
        work = self.inbox.head()
        if work is None:
            return
        started = time.monotonic()
        try:
            next(work.steps)
        except StopIteration as stop:
            self.inbox.settle(work, stop.value)
        except Exception as error:
            self.inbox.settle(work, None, error)
        ended = time.monotonic()
        self._pace.worked(ended - started, ended)


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Text of tokens, special ones skipped."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True)
    return text
