"""The engine: one thread that owns MLX, serves users and trains in the gaps.

MLX streams belong to a thread: a lazy array made in one cannot be evaluated in another.  So one
thread loads the model, generates, writes expert slots and frees.  Everything else talks to it
through ``Engine``, whose methods may be called from any thread.

Users' rows go first.  Reading their prompts and generating take turns, a step each.  Background
work (training rollouts) is a generator that gives the thread back after every engine step; it
advances only while no user's row is waiting or running.

A step that fails ends the rows that took part in it, not the engine.  An engine that fails twice
in a row ends, and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from app.engine import platform
from app.engine.admission import Admission
from app.engine.basis import load_basis
from app.engine.batch import Runtime
from app.engine.cache import PrefixCache
from app.engine.errors import ContextOverflow, EngineBusy, EngineStopped
from app.engine.folder import context_length
from app.engine.lanes import Lane
from app.engine.models import LoadedModel, ModelInfo, load, show
from app.engine.rollout import Population
from app.engine.sampling import Sampling
from app.engine.slots import ExpertSlots
from app.engine.stream import Stream
from app.engine.text import Completion, RowText
from app.engine.work import RolloutLimits
from trainers.spectral import Coordinates

log = logging.getLogger("nightowl.engine")
FloatArray = npt.NDArray[np.float32]
ExpertSource = Callable[[str], Mapping[str, npt.NDArray[np.floating[Any]]]]


@dataclass(frozen=True)
class EngineConfig:
    """Sizes of the engine.

    Attributes:
        slots: experts held ready at once.
        queue: users' rows that may wait.
        prefill_rows: rows whose prompts are read together on one lane.
        batch_bytes: keys and values of all rows in flight; more rows wait.
        prefix_bytes: keys and values kept of earlier prompts.
        memory_bytes: what the engine may use; decides whether the INT4 weights are also held
            as dense fp32 on CPU. ``None`` = half of the machine's memory.
        limits: sizes of training rollouts.
    """

    slots: int = 16
    queue: int = 256
    prefill_rows: int = 8
    batch_bytes: int = 2 << 30
    prefix_bytes: int = 256 << 20
    memory_bytes: int | None = None
    limits: RolloutLimits = field(default_factory=RolloutLimits)


@dataclass
class _Background:
    steps: Generator[None, None, Any]
    future: Future[Any]


class Engine:
    """Serves rows and rollouts of one base model.

    Args:
        model_path: MLX model folder.
        expert_source: version id -> its validated tensors; called on the engine thread.
        config: sizes.
    """

    def __init__(
        self,
        model_path: Path,
        expert_source: ExpertSource,
        config: EngineConfig | None = None,
    ) -> None:
        self._path = model_path
        self._source = expert_source
        self._config = config or EngineConfig()
        self._lock = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._background: deque[_Background] = deque()
        self._forget: set[str] = set()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._tokens = 0
        self._last_step_s = 0.0
        self._active = 0
        self._prompts_turn = True
        self._failures = 0
        self.info: ModelInfo
        self.coordinates: Coordinates
        self.basis_hash = ""
        self.basis_kind = ""
        self.max_context = 0

    # -- called from any thread ---------------------------------------------------------------

    def start(self) -> None:
        """Load the model and start serving; raises ``ModelError`` if it cannot be loaded."""
        loaded: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(loaded,), name="nightowl-engine", daemon=True
        )
        self._thread.start()
        loaded.result()

    def close(self) -> None:
        """Finish the step under way, fail what waits, and join the thread."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()

    def encode(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
    ) -> tuple[int, ...]:
        """Tokens of a chat up to where the answer begins; ``ValueError`` if the template
        objects."""
        try:
            ids = self._model.tokenizer.apply_chat_template(
                list(messages), tools=list(tools) if tools else None, add_generation_prompt=True
            )
        except Exception as error:  # templates raise whatever Jinja raises
            raise ValueError(
                f"the model's chat template refuses these messages: {error}"
            ) from error
        return tuple(int(i) for i in ids)

    def encode_text(self, text: str, end: bool = False) -> tuple[int, ...]:
        """Tokens of plain text, with the end-of-text token if ``end``."""
        tokenizer = self._model.tokenizer
        ids = [int(i) for i in tokenizer.encode(text, add_special_tokens=False)]
        return (*ids, int(tokenizer.eos_token_id)) if end else tuple(ids)

    def submit(
        self, prompt: Sequence[int], sampling: Sampling, expert: str | None = None
    ) -> Stream:
        """Queue a user's row. Raises ``EngineBusy``, ``EngineStopped`` or ``ContextOverflow``."""
        if len(prompt) == 0:
            raise ValueError("the prompt has no tokens")
        if len(prompt) + sampling.max_tokens > self.max_context:
            raise ContextOverflow(len(prompt), sampling.max_tokens, self.max_context)
        text = RowText(self.decode, sampling, self._runtime.eos)
        stream = Stream(np.asarray(prompt, dtype=np.int32), sampling, expert, text)
        with self._lock:
            if self._closing:
                raise EngineStopped("the engine is shutting down")
            if len(self._waiting) >= self._config.queue:
                raise EngineBusy(f"{self._config.queue} requests are waiting already: try again")
            self._waiting.append(stream)
            self._lock.notify_all()
        return stream

    def generate(
        self, flat: FloatArray | None, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """Completions [candidate][prompt] at background priority; ``flat`` (P, total) or base."""
        tokens = [np.asarray(p, dtype=np.int32) for p in prompts]
        result: list[list[Completion]] = self._run(
            lambda: self._population.generate(flat, tokens, sampling)
        )
        return result

    def likelihood(
        self,
        flat: FloatArray,
        prompts: Sequence[Sequence[int]],
        references: Sequence[Sequence[int]],
        centre: FloatArray,
        first: int = 0,
    ) -> FloatArray:
        """Mean log-likelihood per reference token, (P, N) fp32, at background priority.

        ``centre``: (total,) what the candidates are drawn around; it reads the prompts.
        ``first``: the lowest layer in which they differ; those below run once.
        """
        tokens = [np.asarray(p, dtype=np.int32) for p in prompts]
        targets = [np.asarray(r, dtype=np.int32) for r in references]
        result: FloatArray = self._run(
            lambda: self._population.likelihood(flat, tokens, targets, centre, first)
        )
        return result

    def energies(self, flat: FloatArray | None, texts: Sequence[Sequence[int]]) -> FloatArray:
        """Relative energy of each coordinate on these texts, (total,), at background priority.

        ``flat``: the one expert (1, total) to measure under, or the base.
        """
        tokens = [np.asarray(t, dtype=np.int32) for t in texts]
        result: FloatArray = self._run(lambda: self._population.energies(flat, tokens))
        return result

    def forget(self, expert: str) -> None:
        """Free what is held of an expert that was deleted; rows in flight keep it."""
        with self._lock:
            self._forget.add(expert)
            self._lock.notify_all()

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones skipped."""
        text: str = self._model.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def health(self) -> dict[str, Any]:
        """What the engine is doing, for ``/healthz``."""
        alive = self._thread is not None and self._thread.is_alive()
        with self._lock:
            return {
                "status": "ok" if alive and not self._closing else "stopped",
                "model": self.info.name,
                "active_rows": self._active,
                "waiting_rows": len(self._waiting),
                "background": len(self._background),
                "tokens_generated": self._tokens,
                "last_step_s": round(self._last_step_s, 4),
                "last_read_ms": self._slots.last_read_ms,
                "last_swap_ms": self._slots.last_swap_ms,
            }

    def _run(self, start: Callable[[], Generator[None, None, Any]]) -> Any:
        work = _Background(start(), Future())
        with self._lock:
            if self._closing:
                raise EngineStopped("the engine is shutting down")
            self._background.append(work)
            self._lock.notify_all()
        return work.future.result()

    # -- the engine thread --------------------------------------------------------------------

    def _main(self, loaded: Future[None]) -> None:
        try:
            self._load()
        except BaseException as error:
            loaded.set_exception(error)
            return
        loaded.set_result(None)
        failure = "the engine is shutting down"
        try:
            while self._await_work():
                started = time.monotonic()
                self._step()
                self._last_step_s = time.monotonic() - started
        except Exception as error:
            log.exception("the engine thread failed")
            failure = f"the engine failed: {error}"
        self._fail_all(failure)
        # This thread made them: left alone they abort the process when it ends.
        mx.clear_streams()

    def _load(self) -> None:
        if platform.STATUS.system == "linux":
            mx.set_default_device(mx.cpu)
        parameters = show(self._path).parameters
        dense = platform.dense_fits(parameters, self._config.memory_bytes)
        self._model: LoadedModel = load(self._path, dense_fp32=dense)
        basis = load_basis(self._model)
        self.info = self._model.info
        self.max_context = context_length(self._path)
        self.coordinates, self.basis_hash = basis.coordinates, basis.sha256
        self.basis_kind = basis.kind
        self._runtime = Runtime(self._model, basis)
        streams = platform.streams()
        limits = self._config.limits
        self._population = Population(self._runtime, streams, self.decode, limits)
        self._prefixes = PrefixCache(self._config.prefix_bytes)
        self._slots = ExpertSlots(self._runtime, self._config.slots, self._source)
        self._lanes = [
            Lane(self._runtime, stream, self._prefixes, self._slots.edits) for stream in streams
        ]
        self._admission = Admission(
            self._lanes,
            self._slots,
            self._config.prefill_rows,
            self._config.batch_bytes // len(streams),
            self._runtime.token_bytes,
        )

    def _await_work(self) -> bool:
        """Sleep until there is something to do; False when closing."""
        with self._lock:
            while not self._closing:
                if self._waiting or self._background or self._forget:
                    return True
                if self._admission.rows or any(lane.rows for lane in self._lanes):
                    return True
                self._lock.wait()
            return False

    def _step(self) -> None:
        """One engine step: read users' prompts or decode for them in turns, else the background."""
        with self._lock:
            gone, self._forget = self._forget, set()
        for expert in gone:
            self._prefixes.forget(expert)
            self._slots.forget(expert)
        self._admission.start(self._waiting)
        running = any(lane.rows for lane in self._lanes)
        if self._admission.rows and (self._prompts_turn or not running):
            self._prompts_turn = False
            done = self._admission.step()
            self._tokens += sum(len(row.text.tokens) for row in done)
            self._settle(done)
            return
        if running:
            self._prompts_turn = True
            self._decode()
            return
        self._advance()

    def _decode(self) -> None:
        running = [stream for lane in self._lanes for stream in lane.rows]
        platform.set_blas_threads(self._threads_per_lane())
        try:
            pending = [array for lane in self._lanes for array in lane.step()]
            mx.eval(pending)
            self._tokens += sum(lane.collect() for lane in self._lanes)
            self._failures = 0
        except Exception as error:
            self._give_up(error)
        finally:  # of the whole process: rollouts are bit for bit the same on one thread per lane
            platform.set_blas_threads(1)
        self._settle(running)

    def _give_up(self, error: Exception) -> None:
        """End the rows in flight with an error; a second failure in a row is final."""
        self._failures += 1
        if self._failures > 1:
            raise error
        log.error("a decode step failed", exc_info=error)
        for lane in self._lanes:
            lane.fail(f"the answer could not be generated: {error}")

    def _threads_per_lane(self) -> int:
        """A lone lane gets all cores for its matmuls."""
        busy = sum(bool(lane.rows) for lane in self._lanes)
        return max(1, len(self._lanes) // max(1, busy))

    def _settle(self, streams: Sequence[Any]) -> None:
        """Give back the slots of rows that are over."""
        live = {id(row) for lane in self._lanes for row in lane.rows}
        for stream in streams:
            if id(stream) not in live:
                self._slots.release(stream.expert)
        self._active = len(live) + len(self._admission.rows)

    def _advance(self) -> None:
        """One step of the background work at the head of the queue."""
        with self._lock:
            if not self._background:
                return
            work = self._background[0]
        try:
            next(work.steps)
            return
        except StopIteration as stop:
            work.future.set_result(stop.value)
        except Exception as error:
            work.future.set_exception(error)
        with self._lock:
            self._background.popleft()

    def _fail_all(self, message: str) -> None:
        with self._lock:
            self._closing = True
            waiting, self._waiting = list(self._waiting), deque()
            background, self._background = list(self._background), deque()
        self._admission.fail(message)
        for lane in self._lanes:
            lane.fail(message)
        for stream in waiting:
            stream.finish(message)
        for work in background:
            work.future.set_exception(EngineStopped(message))
