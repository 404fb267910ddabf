"""What a grading process does: read frames, grade, answer, until it is killed.

It grades one thing at a time and answers each before it looks at the next, so that its supervisor
always knows which one it is busy with.
"""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

from verifiers import sandbox
from verifiers.base import Grader, GraderConfigError, Sample, ToolCall, errored_grade
from verifiers.frames import HASH_LENGTH, Frame, Kind, Reader, encode
from verifiers.registry import build

MAX_BUILT = 32
"""So many graders are kept built."""

OWN_SHARE = 0.9
"""After this share of its deadline, code in a sandbox is ended from inside: the grader can then do
as it was configured to, and a grader of several that run code, too."""


def serve(link: socket.socket, deadline_s: float = math.inf) -> None:
    """Answer what comes until the other end closes; each within `deadline_s`, or be killed."""
    reader = Reader()
    desk = Desk()
    with suppress(ConnectionError):  # the other end has gone
        while data := link.recv(1 << 16):
            for frame in reader.feed(data):
                if frame.kind is Kind.GRADER:
                    desk.use(frame.body)
                else:
                    with sandbox.ending(OWN_SHARE * deadline_s):
                        answer = desk.answer(frame)
                    link.sendall(encode(Kind.ANSWER, frame.number, answer))


class Desk:
    """The grader in use, and those used before it, built."""

    def __init__(self) -> None:
        self._built: OrderedDict[bytes, Grader] = OrderedDict()
        self._hash = b""
        self._config = b""

    def use(self, body: bytes) -> None:
        """Take the grader of a GRADER frame; it is built when something is to be graded."""
        self._hash, self._config = body[:HASH_LENGTH], body[HASH_LENGTH:]

    def answer(self, frame: Frame) -> bytes:
        """The body of the answer to a GRADE or REFERENCE frame."""
        if frame.kind is Kind.REFERENCE:
            return _encoded(self._grader().reference(json.loads(frame.body)))
        text, tools, item = json.loads(frame.body)
        calls = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in tools)
        sample = Sample(output_text=text, output_tools=calls)
        try:
            grade = self._grader().grade(sample, item)
        except GraderConfigError as error:
            grade = errored_grade("config", str(error), 0.0)
        return _encoded(grade.model_dump())

    def _grader(self) -> Grader:
        grader = self._built.get(self._hash)
        if grader is None:
            grader = build(json.loads(self._config))
            self._built[self._hash] = grader
            if len(self._built) > MAX_BUILT:
                self._built.popitem(last=False)
        return grader


def silence() -> None:
    """Have nothing but Python's own errors reach the terminal of the service.

    The interpreters of sandboxes report on standard error, once for each code that takes too much
    memory, and so may libraries; models can write a great many of such.
    """
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def limit(memory_bytes: int) -> None:
    """Bound this process: so much memory on top of what it has now, and no core dumps.

    Linux only: macOS knows the limit on address space but does not keep it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform != "linux":
        return
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    bound = pages * resource.getpagesize() + memory_bytes
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most == resource.RLIM_INFINITY or bound < most:
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
