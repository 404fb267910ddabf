"""Grading in processes of its own: nothing that is graded can stall, crash or bloat the service.

A `GraderPool` has the interface of graders themselves, one grade or many, and what they cannot
promise: a deadline and a bound on memory for each grade. What overruns the one is errored as
`timeout`, what breaks the other, or crashes, as `sandbox`; neither costs any other grade more than
the time to give it to another worker. `verifiers.supervisor` says how.

Grades are pure, so they are remembered, by grader, completion and item; timeouts and crashes, which
depend on the machine, are not.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from verifiers.base import (
    MAX_OUTPUT_CHARS,
    Grade,
    GraderConfigError,
    ItemError,
    Sample,
    checked_item,
    errored_grade,
)
from verifiers.frames import HASH_LENGTH, BrokenStream, Frame, Kind, Reader, encode
from verifiers.registry import grader_hash
from verifiers.values import json_problem

logger = logging.getLogger(__name__)

MAX_CALLS = 64
"""So many calls are served at once, which is more than the service has threads to ask; were there
more, they would wait for one of them to end."""

MAX_SENT_BYTES = 1 << 25
"""Of a longer call, this much is sent to be graded before its answers are waited for."""

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); " + (
    "from verifiers.supervisor import main; main()"
)
_SURE_S = 0.1
_END_S = 10.0


class PoolClosed(RuntimeError):
    """The pool was closed; nothing can be graded any more."""


class _SupervisorDied(Exception):
    """The supervisor has gone, or says what it cannot mean."""


@dataclass(frozen=True)
class _Question:
    """A frame to be answered, and the identity of its answer."""

    body: bytes
    key: bytes


class GraderPool:
    """Grades in `workers` processes, each grade within `deadline_s` seconds.

    `memory_bytes` is what a worker may use besides the code of the graders (Linux only), and
    `remembered` how many grades are kept. Safe to use from any thread. The processes are started at
    once, without waiting for them, and end with `close` or with this process.
    """

    def __init__(
        self,
        workers: int = 2,
        deadline_s: float = 2.0,
        memory_bytes: int = 512 << 20,
        remembered: int = 8192,
    ) -> None:
        self.deadline_s = deadline_s
        self._arguments = [str(workers), repr(deadline_s), str(memory_bytes)]
        self._memory = _Memory(remembered)
        self._lock = threading.Lock()
        self._closed = False
        self._supervisor = _Supervisor(self._arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes. Calls that are being served raise PoolClosed, as do all later ones."""
        with self._lock:
            self._closed = True
            self._supervisor.end()

    def grade(self, config: dict[str, Any], sample: Sample, item: dict[str, Any]) -> Grade:
        """Grade one completion. Raises PoolClosed; all else that goes wrong is an errored grade."""
        return self.grade_many(config, [(sample, item)])[0]

    def grade_many(
        self, config: dict[str, Any], pairs: Sequence[tuple[Sample, dict[str, Any]]]
    ) -> list[Grade]:
        """Grade completions with one grader, each as if it were alone; raises as `grade` does."""
        try:
            grader = _grader_body(config)
        except GraderConfigError as error:
            return [errored_grade("config", str(error), 0.0)] * len(pairs)
        asked = _questions(grader, pairs)
        found: dict[bytes, Grade] = {}
        missing: dict[bytes, bytes] = {}
        for one in asked:
            if isinstance(one, Grade) or one.key in found or one.key in missing:
                continue
            known = self._memory.get(one.key)
            if known is None:
                missing[one.key] = one.body
            else:
                found[one.key] = known
        answers = self._ask(grader, Kind.GRADE, list(missing.values()))
        for key, answer in zip(missing, answers, strict=True):
            found[key] = self._grade(answer)
            if _is_sure(found[key]):
                self._memory.put(key, found[key])
        return [one if isinstance(one, Grade) else found[one.key] for one in asked]

    def references(
        self, config: dict[str, Any], items: Sequence[dict[str, Any]]
    ) -> list[str | None]:
        """Return the grader's reference for each item, None where there is none in time.

        Raises GraderConfigError, PoolClosed.
        """
        grader = _grader_body(config)
        known = [(place, item) for place, item in enumerate(items) if json_problem(item) is None]
        answers = self._ask(
            grader, Kind.REFERENCE, [json.dumps(item).encode() for _, item in known]
        )
        result: list[str | None] = [None] * len(items)
        for (place, _), answer in zip(known, answers, strict=True):
            result[place] = self._reference(answer)
        return result

    def _grade(self, answer: Frame) -> Grade:
        if answer.kind is Kind.OVERRAN:
            message = f"grading took longer than {self.deadline_s:g} s"
            return errored_grade("timeout", message, self.deadline_s)
        if answer.kind is Kind.ANSWER:
            try:
                return Grade.model_validate(json.loads(answer.body))
            except (ValueError, RecursionError):
                logger.error("a grading worker answered what is no grade")
                return errored_grade("sandbox", "the grading process answered nonsense", 0.0)
        how = answer.body.decode(errors="replace")
        return errored_grade("sandbox", f"the grading process ended: {how}", 0.0)

    def _reference(self, answer: Frame) -> str | None:
        if answer.kind is not Kind.ANSWER:
            logger.warning("a reference could not be made: %s", answer.kind.name.lower())
            return None
        try:
            text = json.loads(answer.body)
        except (ValueError, RecursionError):
            logger.error("a grading worker answered what is no reference")
            return None
        return text if isinstance(text, str) else None

    def _ask(self, grader: bytes, kind: Kind, bodies: Sequence[bytes]) -> list[Frame]:
        """Have frames answered, in order; once more should the supervisor die."""
        answers: list[Frame | None] = [None] * len(bodies)
        for _ in range(2):
            supervisor = self._running()
            try:
                supervisor.ask(grader, kind, bodies, answers)
                break
            except _SupervisorDied:
                self._replace(supervisor)
        lost = Frame(Kind.DIED, 0, b"the supervisor died")
        return [lost if answer is None else answer for answer in answers]

    def _running(self) -> _Supervisor:
        with self._lock:
            if self._closed:
                raise PoolClosed("the grader pool is closed")
            return self._supervisor

    def _replace(self, dead: _Supervisor) -> None:
        with self._lock:
            if self._closed:
                raise PoolClosed("the grader pool is closed")
            if self._supervisor is dead:
                logger.error("the supervisor of the grading processes died and is started again")
                dead.end()
                self._supervisor = _Supervisor(self._arguments)


def _is_sure(grade: Grade) -> bool:
    """Whether the same question always has this answer, as far as one can tell.

    Not what failed slowly: it may have failed for being slow, as `unit_tests` can be told to.
    """
    if grade.error_kind is not None:
        return grade.error_kind in ("config", "item")
    return grade.passed or grade.seconds < _SURE_S


class _Memory:
    """The newest grades by their questions; the least used is forgotten first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._grades: OrderedDict[bytes, Grade] = OrderedDict()

    def get(self, key: bytes) -> Grade | None:
        with self._lock:
            grade = self._grades.get(key)
            if grade is not None:
                self._grades.move_to_end(key)
            return grade

    def put(self, key: bytes, grade: Grade) -> None:
        with self._lock:
            self._grades[key] = grade
            self._grades.move_to_end(key)
            if len(self._grades) > self._size:
                self._grades.popitem(last=False)


class _Supervisor:
    """A supervisor process and the free channels to it."""

    def __init__(self, arguments: list[str]) -> None:
        pairs = [socket.socketpair() for _ in range(MAX_CALLS)]
        self._channels = [ours for ours, _ in pairs]
        self._free: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        try:
            self._process = _started(arguments, [theirs.fileno() for _, theirs in pairs])
        except OSError:
            for channel in self._channels:
                channel.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        for channel in self._channels:
            self._free.put(channel)

    def end(self) -> None:
        """Have the process end, which it does when the channels close, and wait for it."""
        for channel in self._channels:
            _hang_up(channel)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(
        self, grader: bytes, kind: Kind, bodies: Sequence[bytes], answers: list[Frame | None]
    ) -> None:
        """Put the answers that are missing into `answers`; raises _SupervisorDied."""
        with self._channel() as channel:
            for numbers in _portions(bodies, answers):
                frames = [encode(kind, number, bodies[number]) for number in numbers]
                channel.sendall(encode(Kind.GRADER, 0, grader) + b"".join(frames))
                for frame in _received(channel, len(frames)):
                    answers[frame.number] = frame

    @contextmanager
    def _channel(self) -> Iterator[socket.socket]:
        channel = self._free.get()
        try:
            yield channel
        except BaseException as error:
            # Answers of an abandoned call must not reach the next: whoever gets the channel finds
            # it closed, and has the supervisor replaced.
            _hang_up(channel)
            if isinstance(error, OSError | BrokenStream):
                raise _SupervisorDied from error
            raise
        finally:
            self._free.put(channel)


def _started(arguments: list[str], descriptors: list[int]) -> subprocess.Popen[bytes]:
    numbers = [str(number) for number in descriptors]
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), *arguments, *numbers],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        # Not of the terminal's group: Ctrl-C is for the service, which then ends this.
        start_new_session=True,
        # One order of sets in every process of every run.
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )


def _hang_up(channel: socket.socket) -> None:
    """Close a socket so that a thread waiting for it wakes."""
    with suppress(OSError):  # the other end was first, or it is closed already
        channel.shutdown(socket.SHUT_RDWR)
    channel.close()


def _received(channel: socket.socket, count: int) -> Iterator[Frame]:
    """Yield so many frames; raises _SupervisorDied when no more come."""
    reader = Reader()
    while count:
        data = channel.recv(1 << 18)
        if not data:
            raise _SupervisorDied
        for frame in reader.feed(data):
            count -= 1
            yield frame


def _portions(bodies: Sequence[bytes], answers: Sequence[Frame | None]) -> Iterator[list[int]]:
    """Cut the numbers of what is not answered into lists of bounded size."""
    portion: list[int] = []
    size = 0
    for number, body in enumerate(bodies):
        if answers[number] is not None:
            continue
        if portion and size + len(body) > MAX_SENT_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(number)
        size += len(body) + 64
    if portion:
        yield portion


def _grader_body(config: dict[str, Any]) -> bytes:
    """The body of a GRADER frame; raises GraderConfigError."""
    problem = json_problem(config)
    if problem is not None:
        raise GraderConfigError("", f"the configuration {problem}")
    return _identified(json.dumps(config))


@functools.lru_cache(maxsize=256)
def _identified(config: str) -> bytes:
    return f"{grader_hash(json.loads(config))}{config}".encode("ascii")


def _questions(
    grader: bytes, pairs: Sequence[tuple[Sample, dict[str, Any]]]
) -> list[_Question | Grade]:
    """What is to be asked for each pair, or its grade where that is plain already."""
    items: dict[int, str | Grade] = {}  # many completions of one item are usual
    asked: list[_Question | Grade] = []
    for sample, item in pairs:
        text = items.get(id(item))
        if text is None:
            text = items[id(item)] = _item_text(item)
        asked.append(text if isinstance(text, Grade) else _question(grader, sample, text))
    return asked


def _item_text(item: dict[str, Any]) -> str | Grade:
    try:
        return json.dumps(checked_item(item), sort_keys=True)
    except ItemError as error:
        return errored_grade("item", str(error), 0.0)


def _question(grader: bytes, sample: Sample, item: str) -> _Question | Grade:
    # One letter above the bound fails as all that follow it would.
    text = json.dumps(sample.output_text[: MAX_OUTPUT_CHARS + 1])
    try:
        tools = json.dumps([[call.name, call.arguments] for call in sample.output_tools])
    except (TypeError, ValueError, RecursionError):
        return errored_grade("internal", "the tool calls of the sample are not JSON", 0.0)
    body = f"[{text},{tools},{item}]".encode("ascii")
    return _Question(body, hashlib.sha256(grader[:HASH_LENGTH] + body).digest())
