"""Running Python code that nobody has looked at, in the interpreter `pydantic-monty`.

Covered: the code runs in a process of its own, in an interpreter that has no way to the outside.
It has no files, network, processes, environment or imports beyond the interpreter's own modules.
Its time is bounded (`timeout_s`), its memory (64 MiB), its recursion. The same code gives the same
result every time: the clock stands still, `random` has a fixed seed, sets have one order. Nothing
it raises, prints or does to names reaches the next session.

Not covered: the interpreter has not all of Python. It lacks generators, inheritance between
classes, `del`, many modules of the standard library (those it has include math, re, json, datetime,
collections, itertools, functools, bisect, decimal, dataclasses and typing) and all packages. Code
that needs these raises `NotCovered`, which says nothing about the code. Time is measured on the
clock of the machine, so code near its limit may pass on one run and overrun on another. A flaw of
the interpreter itself would give the code the rights of this user.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pydantic_monty as monty

MAX_MEMORY_BYTES = 64 << 20
GRACE_S = 0.05
"""So long after its limit the process is killed where the interpreter has not noticed by itself."""

_ATTEMPTS = 4
_POLICY: monty.OSPolicy = {
    "datetime": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
    "sleep": "zero",
    "random_start": {"seed": 0},
}
_NO_MODULE = re.compile(r"No module named '(\w+)")


class Raised(Exception):
    """The code raised, or is no Python; `line` is where in the first code of its session."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class OutOfMemory(Raised):
    """The code wanted more memory than there is for it."""


class NotCovered(Exception):
    """The code needs something of Python that the interpreter lacks; the text says what."""


class Overran(Exception):
    """The code took longer than it may."""


class Died(Exception):
    """The interpreter's process died."""


class Session:
    """One interpreter: what a code defines is there for the next."""

    def __init__(self, session: monty.MontySession, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._end = time.perf_counter() + timeout_s

    def run(self, code: str) -> None:
        """Run code. Raises Raised, NotCovered, and Overran or Died, which end the session."""
        self.value(f"{code}\nNone")  # so that no value of it has to be carried out

    def value(self, expression: str, **inputs: Any) -> Any:
        """Return an expression's value, with names bound to inputs; raises as `run` does.

        JSON values come out as they are, tuples, sets and bytes too, other things as something
        else.
        """
        started = time.perf_counter()
        if started > self._end:
            raise Overran
        try:
            return self._session.feed_run(expression, inputs=inputs, print_callback=_unheard)
        except monty.MontyCrashedError as error:
            raise (Overran if error.timed_out else Died) from error
        except monty.MontyError as error:
            inner = error.exception()
            late = time.perf_counter() - started >= self._timeout_s
            if isinstance(inner, TimeoutError) and late:
                raise Overran from error
            raise _failure(error, inner) from error


@contextmanager
def session(timeout_s: float) -> Iterator[Session]:
    """A fresh interpreter for at most `timeout_s` seconds, and for no single code more than that.

    So a session of several codes ends within twice the time. Safe to use from any thread. Raises
    Died when no interpreter can be had.
    """
    with ExitStack() as stack:
        yield Session(_checked_out(stack, timeout_s), timeout_s)


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


def _failure(error: monty.MontyError, inner: BaseException) -> Exception:
    frames = []
    if isinstance(error, monty.MontySyntaxError | monty.MontyRuntimeError):
        frames = error.traceback()
    first = [frame.line for frame in frames if frame.filename == "<python-input-0>"]
    # A frame without a function: the parser's, not one that the code was in when it raised.
    if isinstance(inner, NotImplementedError) and frames and frames[-1].function_name is None:
        return NotCovered(str(inner).rpartition("does not yet support ")[2])
    missing = _NO_MODULE.match(str(inner)) if isinstance(inner, ModuleNotFoundError) else None
    if missing and missing.group(1) in sys.stdlib_module_names:
        return NotCovered(f"the module {missing.group(1)}")
    line = first[-1] if first else None
    if isinstance(inner, MemoryError):
        return OutOfMemory(str(error), line)
    return Raised(str(error), line)
