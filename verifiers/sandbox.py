"""Running Python code that nobody has looked at, in the interpreter `pydantic-monty`.

Covered: the code runs in a process of its own, in an interpreter that has no way to the outside.
It has no files, network, processes, environment or imports beyond the interpreter's own modules.
Its time is bounded (`timeout_s`, and what `ending` leaves), its memory (64 MiB), its recursion. The
same code gives the same result every time: the clock stands still, `random` has a fixed seed, sets
have one order. Nothing it raises, prints or does to names reaches the next session.

Not covered: the interpreter has not all of Python. It lacks generators, inheritance between
classes, `del`, many modules of the standard library (those it has include math, re, json, datetime,
collections, itertools, functools, bisect, decimal, dataclasses and typing) and all packages. Code
that needs these raises `NotCovered`, which says nothing about the code; code that only claims to,
by raising what the interpreter would, raises `Raised`. Time is measured on the
clock of the machine, so code near its limit may pass on one run and overrun on another. A flaw of
the interpreter itself would give the code the rights of this user.
"""

from __future__ import annotations

import atexit
import builtins
import datetime
import functools
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import pydantic_monty as monty

MAX_MEMORY_BYTES = 64 << 20
GRACE_S = 0.05
"""So long after its limit the process is killed where the interpreter has not noticed by itself."""

MAX_TIMEOUT_S = 1.5
"""More time than this no configuration can ask for: the pool ends every grade after 2 s, and what a
grader is told to make of code that overruns is lost then."""

MAX_SHOWN_CHARS = 160
"""So much of what code says when it raises is shown: it may hold the completion or the item."""

_ATTEMPTS = 4
_LOOK_S = 10.0
_LOOK = """
found = []
for name in names:
    try:
        found.append((name, eval(name)))
    except Exception:
        pass
found
"""
_LATE_SHARE = 0.1
_LEAST_S = 0.02
_POLICY: monty.OSPolicy = {
    "datetime": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    "sleep": "zero",
    "random_start": {"seed": 0},
}
_NO_MODULE = re.compile(r"No module named '(\w+)")
_NO_NAME = re.compile(r"name '(\w+)' is not defined")
_FEED = re.compile(r"<python-input-(\d+)>")
_IMPORT = re.compile(r"(?:import|from)\b")
_ends_at: ContextVar[float | None] = ContextVar("_ends_at", default=None)


class Raised(Exception):
    """The code raised, or is no Python; `line` is where in the first code of its session.

    `place` is the number of the code of the session in which it was raised, from 0. `missing` is
    the name that was looked up there and is not defined, or the module that was imported there and
    does not exist: not what code says of itself by raising such an error.
    """

    def __init__(
        self,
        message: str,
        line: int | None = None,
        place: int | None = None,
        missing: str | None = None,
    ) -> None:
        super().__init__(message)
        self.line = line
        self.place = place
        self.missing = missing


class OutOfMemory(Raised):
    """The code wanted more memory than there is for it."""


class NoModule(Raised):
    """An import statement found nothing; `missing` is the module."""


class NoPython(Raised):
    """The code is no Python."""


class NotCovered(Exception):
    """The code needs something of Python that the interpreter lacks; the text says what.

    `place` is the number of the code of the session that needs it.
    """

    def __init__(self, what: str, place: int | None = None) -> None:
        super().__init__(what)
        self.place = place


class Overran(Exception):
    """The code took longer than it may."""


class Died(Exception):
    """The interpreter's process died."""


class Session:
    """One interpreter: what a code defines is there for the next. `codes` were run in it."""

    def __init__(self, session: monty.MontySession, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._end = time.perf_counter() + timeout_s
        self.codes: list[str] = []

    def run(self, code: str) -> None:
        """Run code. Raises Raised, NotCovered, and Overran or Died, which end the session."""
        self.value(f"{code}\nNone")  # so that no value of it has to be carried out

    def value(self, expression: str, **inputs: Any) -> Any:
        """Return an expression's value, with names bound to inputs; raises as `run` does.

        JSON values come out as they are, tuples, sets and bytes too, other things as something
        else. What is in two places of a value is one object there, so small code can give a value
        that nobody could walk through.
        """
        if time.perf_counter() > self._end:
            raise Overran
        self.codes.append(expression)
        try:
            with self._ended_in_time():
                return self._session.feed_run(expression, inputs=inputs, print_callback=_unheard)
        except monty.MontyCrashedError as error:
            late = error.timed_out or time.perf_counter() >= self._end
            raise (Overran if late else Died) from error
        except monty.MontyError as error:
            inner = error.exception()
            if isinstance(inner, TimeoutError) and time.perf_counter() >= self._end:
                raise Overran from error
            raise _failure(error, inner, self.codes) from error

    @contextmanager
    def _ended_in_time(self) -> Iterator[None]:
        """Kill the interpreter at the session's end, where its own limit would come much later.

        That limit is one for each code and cannot be changed; the first codes of a session usually
        take next to nothing of it.
        """
        left = max(0.0, self._end - time.perf_counter())
        soon = left < (1 - _LATE_SHARE) * self._timeout_s
        pid = self._session.worker_pid if soon else None
        if pid is None:
            yield
            return
        lock, over = threading.Lock(), False

        def end() -> None:
            with lock:
                if not over:
                    os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(left + GRACE_S, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with lock:  # from here on the process may be another session's
                over = True


@contextmanager
def session(timeout_s: float) -> Iterator[Session]:
    """A fresh interpreter for `timeout_s` seconds, or what `ending` leaves of them.

    It ends at most a tenth and a grace later. Safe to use from any thread. Raises Died when no
    interpreter can be had, Overran when no time is left.
    """
    ends_at = _ends_at.get()
    if ends_at is not None:
        timeout_s = min(timeout_s, (ends_at - time.perf_counter()) / (1 + _LATE_SHARE) - GRACE_S)
        if timeout_s < _LEAST_S:
            raise Overran
    with ExitStack() as stack:
        yield Session(_checked_out(stack, timeout_s), timeout_s)


@contextmanager
def ending(seconds: float) -> Iterator[None]:
    """Have all sessions of the block end by themselves within so many seconds from now."""
    token = _ends_at.set(time.perf_counter() + seconds)
    try:
        yield
    finally:
        _ends_at.reset(token)


@functools.cache
def known_builtins() -> dict[str, Any]:
    """The builtins of Python that the interpreter has, as they look outside of it; raises Died."""
    with ExitStack() as stack:
        inside = Session(_checked_out(stack, _LOOK_S), _LOOK_S)
        return dict(inside.value(_LOOK, names=dir(builtins)))


def shown(text: str) -> str:
    """What is shown of a text from inside: its beginning, on one line, nothing unprintable."""
    cut = text[: MAX_SHOWN_CHARS + 1]
    plain = "".join(one if one.isprintable() else " " for one in cut[:MAX_SHOWN_CHARS])
    return plain + "..." if len(cut) > MAX_SHOWN_CHARS else plain


def _checked_out(stack: ExitStack, timeout_s: float) -> monty.MontySession:
    limits: monty.ResourceLimits = {
        "max_feed_duration_secs": timeout_s,
        "max_memory": MAX_MEMORY_BYTES,
    }
    for _ in range(_ATTEMPTS):
        with suppress(monty.MontyCrashedError):  # it died while nobody used it
            checkout = _interpreters().checkout(limits=limits, os_policy=_POLICY)
            return stack.enter_context(checkout)
    raise Died


@functools.cache
def _interpreters() -> monty.Monty:
    """The interpreters of this process, each a process of its own, started when needed."""
    pool = monty.Monty(min_processes=1, feed_duration_limit_grace=GRACE_S)
    pool.__enter__()
    atexit.register(pool.__exit__, None, None, None)
    return pool


def _unheard(_stream: str, _text: str) -> None:
    """Take what is printed."""


def _failure(error: monty.MontyError, inner: BaseException, codes: list[str]) -> Exception:
    frames: list[monty.Frame] = []
    if isinstance(error, monty.MontySyntaxError | monty.MontyRuntimeError):
        frames = error.traceback()
    first = [frame.line for frame in frames if frame.filename == "<python-input-0>"]
    line = first[-1] if first else None
    feeds = [one for frame in frames if (one := _FEED.fullmatch(frame.filename))]
    place = int(feeds[-1].group(1)) if feeds else len(codes) - 1
    # A frame without a function: the parser's, not one that the code was in when it raised.
    if isinstance(inner, NotImplementedError) and frames and frames[-1].function_name is None:
        return NotCovered(shown(str(inner).rpartition("does not yet support ")[2]), place)
    if isinstance(inner, MemoryError):
        return OutOfMemory(shown(str(error)), line, place)
    if isinstance(error, monty.MontySyntaxError) and (
        not frames or frames[-1].function_name is None
    ):
        return NoPython(shown(str(error)), line, place)
    at = _text_at(frames[-1], codes) if frames else ""
    if isinstance(inner, ModuleNotFoundError) and _IMPORT.match(at):
        module = _NO_MODULE.match(str(inner))
        name = module.group(1) if module else ""
        if name in sys.stdlib_module_names:
            return NotCovered(f"the module {name}", place)
        return NoModule(shown(str(error)), line, place, shown(name))
    unknown = _NO_NAME.fullmatch(str(inner)) if isinstance(inner, NameError) else None
    missing = unknown.group(1) if unknown and re.match(rf"{unknown.group(1)}\b", at) else None
    return Raised(shown(str(error)), line, place, missing)


def _text_at(frame: monty.Frame, codes: list[str]) -> str:
    """The text on a frame's first line that was being executed: an import, a name or its call."""
    feed = _FEED.fullmatch(frame.filename)
    if feed is None:
        return ""  # code in a text of the code
    lines = codes[int(feed.group(1))].split("\n")
    line = lines[frame.line - 1] if frame.line <= len(lines) else ""
    return line[frame.column - 1 :]
