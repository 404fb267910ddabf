"""The process between a grader pool and its workers: deals out grades, kills what overruns.

It is a process of its own so that a deadline holds however busy the service is, and so that workers
can be forked in milliseconds: it imports the graders once, has one thread, and grades nothing. When
the service ends, in whatever way, its channels close; the supervisor kills all workers and goes.
Should it be killed itself, its guard (`verifiers.guard`) does that.

Every channel carries the grades of one call at a time. Workers get grades from the channels in
turn, a few ahead of the one they are busy with. One that is busy with the same grade for longer
than is usual is *stuck*: what it was given ahead goes to others, and another worker takes its
place, up to `SPARES` of them. At the deadline it is killed, with all processes it has started.

No call without a stuck grade waits for the end of one. When all workers are stuck, the grade that
was begun last makes room: its worker is killed, and it waits, with others like it, until fewer are
stuck; then it is begun again and settled. While one worker is all that is not stuck, channels come
first that have no such grade, and of these the ones whose grader has none elsewhere. Without any,
that worker tries the others and what had to make room in turn, each time for four times as long: it
may be no bomb, on a busy machine least of all.

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

from verifiers import worker
from verifiers.base import place_of
from verifiers.frames import Frame, Kind, encode
from verifiers.guard import Guard
from verifiers.peers import Channel, Job, Peer, Worker
from verifiers.registry import FAMILIES

logger = logging.getLogger(__name__)

SPARES = 4
"""So many workers may be stuck before those that are not become fewer."""

SLOW_S = 0.1
"""Nor, while quick grades wait, is it left alone for longer than this because that is usual."""

MAX_GRADES = 20_000
"""After so many a worker is replaced, so that nothing grows without end."""

_TICKETS = 1 << 32  # as many as a frame can number
_OWN = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Supervisor:
    """Deals out what comes on `channels` to workers, of which `size` are not stuck."""

    def __init__(
        self, channels: Iterable[socket.socket], size: int, deadline_s: float, memory_bytes: int
    ) -> None:
        self._channels = [Channel(link) for link in channels]
        self._guard = Guard(channel.link for channel in self._channels)
        self._open: deque[Channel] = deque()  # those with grades that wait, in turn
        self._slow: deque[Job] = deque()
        self._others_turn = False  # rather than that of the slow ones
        self._size = size
        self._most = size + SPARES
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
            self._guard.end()

    def _step(self) -> None:
        for key, events in self._selector.select(self._pause()):
            if events & selectors.EVENT_READ:
                self._hear(key.data)
        self._judge()
        self._deal()
        for peer in (*self._channels, *self._workers):
            if peer.unsent:
                peer.flush()
            if bool(peer.unsent) != peer.writing:
                peer.writing = not peer.writing
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.writing else 0)
                self._selector.modify(peer.link, wanted, peer)

    def _pause(self) -> float | None:
        """Seconds until a worker becomes stuck or overruns, None while all are idle."""
        ends = [
            one.since + (self._deadline_s if one.stuck else self._patience_s(one))
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
            self._open = deque(one for one in self._open if one is not channel)
            self._slow = deque(job for job in self._slow if job.channel is not channel)
            channel.link.close()
            return
        for frame in frames:
            if frame.kind is Kind.GRADER:
                channel.grader, channel.usual_s = frame.body, None
            else:
                ticket = next(self._tickets) % _TICKETS
                channel.waiting.append(Job(channel, channel.grader, frame, ticket))
        self._open_up(channel)

    def _open_up(self, channel: Channel) -> None:
        if channel.waiting and channel not in self._open and channel in self._channels:
            self._open.append(channel)

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
            one.since, one.stuck, one.settled = now, False, False

    # who works

    def _judge(self) -> None:
        """Find who is stuck, end who overruns or has served its time."""
        now = time.monotonic()
        for one in list(self._workers):
            if not one.held:
                spare = self._free_hands() > self._size and not self._slow
                if one.given >= MAX_GRADES or spare:
                    self._dismiss(one)
                continue
            if now - one.since >= self._deadline_s:
                self._collect_last(one)
            elif not one.stuck and now - one.since >= self._patience_s(one):
                one.stuck = True
                self._give_back(list(one.held)[1:])

    def _patience_s(self, one: Worker) -> float:
        """How long the worker's grade may take before it is called stuck."""
        job = one.held[0]
        patience_s = job.channel.patience_s
        if patience_s > SLOW_S:
            others = (peer for peer in self._open if peer is not job.channel)
            if any((peer.usual_s or 0.0) < SLOW_S for peer in others):
                patience_s = SLOW_S
        if job.tries and all(self._burden(peer) == _OWN for peer in self._open):
            patience_s *= 4**job.tries
        return min(patience_s, self._deadline_s)

    def _collect_last(self, one: Worker) -> None:
        """End a worker that seems to overrun, unless its answer has come meanwhile."""
        before = one.held[0]
        self._collect(one, one.receive())
        if one in self._workers and one.held and one.held[0] is before:
            self._replace(one, Kind.OVERRAN)

    def _deal(self) -> None:
        """Give waiting jobs to the workers that hold least, channel after channel."""
        while self._slow and self._stuck() < self._most - 1:
            idle = self._idle()
            if idle is None:
                break
            slow = self._slow.popleft()
            if not slow.answered:
                idle.take(slow)
                idle.stuck = idle.settled = True
        while (job := self._next()) is not None:
            one = self._freest()
            if one is None:
                job.channel.waiting.appendleft(job)
                self._open_up(job.channel)
                if self._burden(job.channel) == _OWN:
                    self._others_turn = not self._others_turn or not self._slow
                    if not self._others_turn:
                        break
                if not self._make_room():
                    break
            else:
                one.take(job)
        self._retry()

    def _retry(self) -> None:
        """Have the last worker try what had to make room, in turn."""
        self._slow = deque(job for job in self._slow if not job.answered)
        if not self._slow or (self._stuck() == self._most and not self._make_room()):
            return
        idle = self._idle()
        if idle is not None:
            idle.take(self._slow.popleft())

    def _next(self) -> Job | None:
        """Take the next job, from the channels in turn, or first from those without a burden."""
        while self._open:
            channel = self._open[0]
            if self._stuck() >= self._most - 1:
                channel = min(self._open, key=self._burden)
            self._open.remove(channel)
            while channel.waiting:
                job = channel.waiting.popleft()
                if not job.answered:
                    self._open_up(channel)
                    return job
        return None

    def _burden(self, channel: Channel) -> int:
        """Whether the channel has slow grades itself, or another has some of the same grader."""
        slow = [*self._slow, *(one.held[0] for one in self._workers if one.stuck)]
        if any(job.channel is channel for job in slow):
            return _OWN
        return int(any(job.grader == channel.grader for job in slow))

    def _make_room(self) -> bool:
        """If all are stuck, have the job wait that was begun last; True if there is one to.

        At most all workers but one are settled, so there is one when all are stuck.
        """
        stuck = [one for one in self._workers if one.stuck and not one.settled]
        if self._stuck() < self._most or not stuck:
            return False
        last = max(stuck, key=lambda one: one.since)
        job = last.held[0]
        self._dismiss(last)
        job.tries += 1
        self._slow.append(job)
        return True

    def _freest(self) -> Worker | None:
        """An idle worker, else a new one, else one that is not full; None if all are."""
        able = [one for one in self._workers if not one.stuck]
        least = min(able, key=lambda one: len(one.held), default=None)
        if least is not None and not least.held:
            return least
        if len(able) < self._size and len(self._workers) < self._most:
            return self._hire()
        return None if least is None or least.full else least

    def _idle(self) -> Worker | None:
        """An idle worker, else a new one, None if there are enough."""
        for one in self._workers:
            if not one.held:
                return one
        return self._hire() if len(self._workers) < self._most else None

    def _stuck(self) -> int:
        return sum(one.stuck for one in self._workers)

    def _give_back(self, jobs: list[Job]) -> None:
        for job in reversed(jobs):
            job.channel.waiting.appendleft(job)
        for job in jobs:
            self._open_up(job.channel)

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
        self._guard.watch(pid)
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
            self._guard.leave()
            worker.silence()
            worker.limit(self._memory_bytes)
            worker.serve(link, self._deadline_s)
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
            self._give_back(list(one.held)[1:])

    def _dismiss(self, one: Worker) -> str:
        """Kill a worker and all it started, and forget it; says how it ended."""
        self._workers.remove(one)
        self._selector.unregister(one.link)
        one.link.close()
        # Where it has ended by itself, macOS refuses to signal a group of the dead.
        with suppress(PermissionError, ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        self._guard.forget(one.pid)  # before its number can be another's
        code = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
        with suppress(ChildProcessError):
            while True:  # what it started is now a child of this process (on Linux)
                os.waitpid(-one.pid, 0)
        return f"killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _fit(frames: list[Frame], held: deque[Job]) -> bool:
    """Whether the frames answer the first jobs, in order, and nothing else."""
    if len(frames) > len(held) or any(frame.kind is not Kind.ANSWER for frame in frames):
        return False
    return all(frame.number == job.ticket for frame, job in zip(frames, held, strict=False))


def _answer(job: Job, kind: Kind, body: bytes) -> None:
    if not job.answered:
        job.answered = True
        job.channel.unsent += encode(kind, job.frame.number, body)


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
