"""The process between a grader pool and its workers: deals out grades, kills what overruns.

It is a process of its own so that a deadline holds however busy the service is, and so that workers
can be forked in milliseconds: it imports the graders once, has one thread, and grades nothing. When
the service ends, in whatever way, its channels close; the supervisor kills all workers and goes.

Every channel carries the grades of one call at a time. Workers get grades from the channels in
turn, a few ahead of the one they are busy with. One that is busy with the same grade for longer
than is usual is *stuck*: what it was given ahead goes to others, and another worker takes its
place, up to `SPARES` of them. At the deadline it is killed, with all processes it has started.

A worker on Linux has a bound on its memory. One that outgrows it fails to allocate, or dies; both
are told apart from a wrong answer.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from verifiers import worker
from verifiers.base import place_of
from verifiers.frames import BrokenStream, Frame, Kind, Reader, encode
from verifiers.registry import FAMILIES

logger = logging.getLogger(__name__)

SPARES = 4
"""So many workers may be stuck before those that are not become fewer."""

PATIENCE_S = 0.05
"""A grade is not called stuck before it took this long, or four times what is usual."""

AHEAD_S = 0.02
"""A worker is given grades ahead until they usually take this long, at most `MAX_AHEAD`."""

MAX_AHEAD = 32
MAX_GRADES = 20_000
"""After so many a worker is replaced, so that nothing grows without end."""

_TICKETS = 1 << 32  # as many as a frame can number
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(eq=False)
class Job:
    """One grade to be made. A job that was given to two workers is answered by the first.

    `ticket` is its number among all jobs, so that no answer is taken for that of another job.
    """

    channel: Channel
    grader: bytes
    frame: Frame
    ticket: int
    answered: bool = False


@dataclass(eq=False)
class Peer:
    """The other end of a socket, with what was not sent to it yet."""

    link: socket.socket
    reader: Reader = field(default_factory=Reader)
    unsent: bytearray = field(default_factory=bytearray)

    def flush(self) -> None:
        """Send as much as the socket takes now."""
        try:
            del self.unsent[: self.link.send(self.unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.unsent.clear()  # it has gone: reading from it will say so

    def receive(self) -> list[Frame] | None:
        """Return what has come, None when the other end has gone or is broken."""
        try:
            data = self.link.recv(1 << 18)
            return list(self.reader.feed(data)) if data else None
        except BlockingIOError:
            return []
        except (OSError, BrokenStream):
            return None


@dataclass(eq=False)
class Channel(Peer):
    """A caller. `usual_s` is how long its grades take, None before the first is known."""

    grader: bytes = b""
    waiting: deque[Job] = field(default_factory=deque)
    usual_s: float | None = None

    @property
    def patience_s(self) -> float:
        """How long one of its grades may take before its worker is called stuck."""
        return max(PATIENCE_S, 4 * (self.usual_s or 0.0))

    def took(self, seconds: float) -> None:
        """Learn from the time that one grade took."""
        usual = seconds if self.usual_s is None else self.usual_s
        self.usual_s = usual + (seconds - usual) / 8


@dataclass(eq=False)
class Worker(Peer):
    """A worker. `held` are its jobs, the first of them begun at `since`."""

    pid: int = 0
    held: deque[Job] = field(default_factory=deque)
    since: float = 0.0
    grader: bytes = b""
    given: int = 0
    stuck: bool = False

    @property
    def full(self) -> bool:
        """True when no more should wait behind what it holds."""
        if len(self.held) >= MAX_AHEAD:
            return True
        unknown = AHEAD_S
        usual = (job.channel.usual_s for job in self.held)
        return sum(unknown if one is None else one for one in usual) >= AHEAD_S

    def take(self, job: Job) -> None:
        """Have the worker do a job after those it holds."""
        if job.grader is not self.grader:
            self.grader = job.grader
            self.unsent += encode(Kind.GRADER, 0, job.grader)
        if not self.held:
            self.since = time.monotonic()
        self.unsent += encode(job.frame.kind, job.ticket, job.frame.body)
        self.held.append(job)
        self.given += 1


class Supervisor:
    """Deals out what comes on `channels` to workers, of which `size` are not stuck."""

    def __init__(
        self, channels: Iterable[socket.socket], size: int, deadline_s: float, memory_bytes: int
    ) -> None:
        self._channels = deque(Channel(link) for link in channels)
        self._size = size
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._tickets = itertools.count()

    def run(self) -> None:
        """Work until the last channel is closed, then kill the workers."""
        for channel in self._channels:
            channel.link.setblocking(False)
            self._selector.register(channel.link, selectors.EVENT_READ, channel)
        while len(self._workers) < self._size:
            self._hire()
        try:
            while self._channels:
                self._step()
        finally:
            for one in list(self._workers):
                self._dismiss(one)

    def _step(self) -> None:
        for key, events in self._selector.select(self._pause()):
            if events & selectors.EVENT_READ:
                self._hear(key.data)
        self._judge()
        self._deal()
        for peer in (*self._channels, *self._workers):
            if peer.unsent:
                peer.flush()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
            if self._selector.get_key(peer.link).events != wanted:
                self._selector.modify(peer.link, wanted, peer)

    def _pause(self) -> float | None:
        """Seconds until a worker becomes stuck or overruns, None while all are idle."""
        ends = [
            one.since + (self._deadline_s if one.stuck else min(_patience(one), self._deadline_s))
            for one in self._workers
            if one.held
        ]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    # what comes

    def _hear(self, peer: Peer) -> None:
        if peer.link.fileno() < 0:
            return  # closed earlier in this step
        frames = peer.receive()
        match peer:
            case Channel():
                self._accept(peer, frames)
            case Worker():
                self._collect(peer, frames)

    def _accept(self, channel: Channel, frames: list[Frame] | None) -> None:
        if frames is None:
            self._selector.unregister(channel.link)
            self._channels.remove(channel)
            channel.link.close()
            return
        for frame in frames:
            if frame.kind is Kind.GRADER:
                channel.grader, channel.usual_s = frame.body, None
            else:
                ticket = next(self._tickets) % _TICKETS
                channel.waiting.append(Job(channel, channel.grader, frame, ticket))

    def _collect(self, one: Worker, frames: list[Frame] | None) -> None:
        if frames is None:
            self._replace(one, Kind.DIED)
            return
        if not _fit(frames, one.held):
            self._replace(one, Kind.DIED, "killed for answers to what was not asked")
            return
        now = time.monotonic()
        for frame in frames:
            job = one.held.popleft()
            job.channel.took((now - one.since) / len(frames))
            _answer(job, Kind.ANSWER, frame.body)
        if frames:
            one.since, one.stuck = now, False

    # who works

    def _judge(self) -> None:
        """Find who is stuck, end who overruns or has served its time."""
        now = time.monotonic()
        for one in list(self._workers):
            if not one.held:
                if one.given >= MAX_GRADES or self._free_hands() > self._size:
                    self._dismiss(one)
                continue
            if now - one.since >= self._deadline_s:
                self._collect_last(one)
            elif not one.stuck and now - one.since >= _patience(one):
                one.stuck = True
                _give_back(list(one.held)[1:])

    def _collect_last(self, one: Worker) -> None:
        """End a worker that seems to overrun, unless its answer has come meanwhile."""
        before = one.held[0]
        self._collect(one, one.receive())
        if one in self._workers and one.held and one.held[0] is before:
            self._replace(one, Kind.OVERRAN)

    def _deal(self) -> None:
        """Give waiting jobs to the workers that hold least, channel after channel."""
        while (job := self._next()) is not None:
            one = self._freest()
            if one is None:
                job.channel.waiting.appendleft(job)
                return
            one.take(job)

    def _next(self) -> Job | None:
        """Take the next job from the channels in turn."""
        for _ in range(len(self._channels)):
            channel = self._channels[0]
            self._channels.rotate(-1)
            while channel.waiting:
                job = channel.waiting.popleft()
                if not job.answered:
                    return job
        return None

    def _freest(self) -> Worker | None:
        """An idle worker, else a new one, else one that is not full; None if all are."""
        able = [one for one in self._workers if not one.stuck]
        least = min(able, key=lambda one: len(one.held), default=None)
        if least is not None and not least.held:
            return least
        if len(able) < self._size and len(self._workers) < self._size + SPARES:
            return self._hire()
        return None if least is None or least.full else least

    def _free_hands(self) -> int:
        return sum(not one.stuck for one in self._workers)

    def _hire(self) -> Worker:
        """Fork a worker."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()  # or this worker would never see that the supervisor has gone
            self._become_worker(theirs)
        with suppress(OSError):  # also done by the child, whoever comes first; it may have ended
            os.setpgid(pid, pid)
        theirs.close()
        ours.setblocking(False)
        one = Worker(ours, pid=pid)
        self._workers.append(one)
        self._selector.register(ours, selectors.EVENT_READ, one)
        return one

    def _become_worker(self, link: socket.socket) -> None:
        """What the forked child does; never returns."""
        status = 1
        try:
            os.setpgid(0, 0)
            _control(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for peer in (*self._channels, *self._workers):
                peer.link.close()
            worker.limit(self._memory_bytes)
            worker.serve(link)
            status = 0
        except BaseException as error:
            logger.error("a grading worker broke: %s", place_of(error))
        finally:
            os._exit(status)

    def _replace(self, one: Worker, kind: Kind, why: str = "") -> None:
        """End a worker because of the job that it is busy with; the rest goes to others."""
        how = self._dismiss(one)
        if one.held:
            _answer(one.held[0], kind, (why or how).encode())
            _give_back(list(one.held)[1:])

    def _dismiss(self, one: Worker) -> str:
        """Kill a worker and all it started, and forget it; says how it ended."""
        self._workers.remove(one)
        self._selector.unregister(one.link)
        one.link.close()
        # Where it has ended by itself, macOS refuses to signal a group of the dead.
        with suppress(PermissionError, ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
        with suppress(ChildProcessError):
            while True:  # what it started is now a child of this process (on Linux)
                os.waitpid(-one.pid, 0)
        return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _patience(one: Worker) -> float:
    return one.held[0].channel.patience_s


def _fit(frames: list[Frame], held: deque[Job]) -> bool:
    """Whether the frames answer the first jobs, in order, and nothing else."""
    if len(frames) > len(held) or any(frame.kind is not Kind.ANSWER for frame in frames):
        return False
    return all(frame.number == job.ticket for frame, job in zip(frames, held, strict=False))


def _answer(job: Job, kind: Kind, body: bytes) -> None:
    if not job.answered:
        job.answered = True
        job.channel.unsent += encode(kind, job.frame.number, body)


def _give_back(jobs: list[Job]) -> None:
    for job in reversed(jobs):
        job.channel.waiting.appendleft(job)


def _control(option: int, value: int) -> None:
    """Set an attribute of this process, where the system has them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Run a supervisor: `size deadline_s memory_bytes descriptor...` are the arguments."""
    size, deadline_s, memory_bytes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    channels = [socket.socket(fileno=int(number)) for number in sys.argv[4:]]
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    for family in FAMILIES.values():
        for name in family.imports:
            importlib.import_module(name)
    gc.freeze()  # what is there now is shared with the workers and is no rubbish
    Supervisor(channels, size, deadline_s, memory_bytes).run()
