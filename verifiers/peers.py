"""What a supervisor knows of those it talks to: the callers' channels, the workers, their jobs."""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass, field

from verifiers.frames import BrokenStream, Frame, Kind, Reader, encode

PATIENCE_S = 0.05
"""A grade is not called stuck before it took this long, or four times what is usual."""

AHEAD_S = 0.02
"""A worker is given grades ahead until they usually take this long, at most `MAX_AHEAD`."""

MAX_AHEAD = 32


@dataclass(eq=False)
class Job:
    """One grade to be made. A job that was given to two workers is answered by the first.

    `ticket` is its number among all jobs, so that no answer is taken for that of another job. It
    was begun `tries` times, took too long, and had to make room for others.
    """

    channel: Channel
    grader: bytes
    frame: Frame
    ticket: int
    answered: bool = False
    tries: int = 0


@dataclass(eq=False)
class Peer:
    """The other end of a socket, with what was not sent to it yet.

    `writing`: whoever waits for the socket waits until it takes more, too.
    """

    link: socket.socket
    reader: Reader = field(default_factory=Reader)
    unsent: bytearray = field(default_factory=bytearray)
    writing: bool = False

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
    """A worker. `held` are its jobs, the first of them begun at `since`.

    One that is `settled` does not have to make room any more.
    """

    pid: int = 0
    held: deque[Job] = field(default_factory=deque)
    since: float = 0.0
    grader: bytes = b""
    given: int = 0
    stuck: bool = False
    settled: bool = False

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
