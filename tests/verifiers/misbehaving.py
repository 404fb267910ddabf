"""A grader that does what no grader should, as its completion says; for tests of the pool.

It is in the registry of the test's process and of those of `pool(...)`, nowhere else.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import psutil

import verifiers.pool
from verifiers import Grade, GraderPool, Sample, sandbox
from verifiers.base import Family, GraderConfig, Outcome, checked_item, grade_with
from verifiers.registry import FAMILIES

MISBEHAVE = {"type": "misbehave"}
FOREVER = 1000.0
LONG = 60.0


class MisbehaveConfig(GraderConfig):
    """Configuration of `misbehave`."""

    type: Literal["misbehave"]


@dataclass(frozen=True)
class Misbehave:
    """Passes with "fine", "echo X" scores X; all else is told by its name."""

    config: MisbehaveConfig

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        return grade_with(checked_item, lambda sample, _: act(sample.output_text), sample, item)

    def reference(self, item: dict[str, Any]) -> str | None:
        act(str(item.get("act")))
        return "fine"

    def describe(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json")


def act(text: str) -> Outcome:  # noqa: C901, PLR0912
    """Do as one is told."""
    name, _, rest = text.partition(" ")
    match name:
        case "hang":
            while True:
                pass
        case "sleep":
            time.sleep(float(rest.split()[0]))
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "eat":
            return Outcome(bytearray(int(rest)) == b"", 0.0)
        case "orphan":
            os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
            while True:
                pass
        case "compute":
            with sandbox.session(FOREVER) as session:
                session.run("while True: pass")
        case "write":
            os.write(2, rest.encode())
        case "pid":
            return Outcome(False, os.getpid() / 2**32)
        case "babble":
            for descriptor in range(3, 64):  # one of them leads to the supervisor
                with suppress(OSError):
                    os.write(descriptor, rest.encode("latin-1"))
        case "echo":
            return Outcome(False, float(rest))
        case "set":
            return Outcome(False, hash("a text") % 1000 / 1000)
    return Outcome(True, 1.0)


def register() -> None:
    """Put the grader into the registry of this process, in which nothing is imported late."""
    for name, family in FAMILIES.items():
        FAMILIES[name] = replace(family, imports=())
    FAMILIES["misbehave"] = Family(MisbehaveConfig, lambda config, _: Misbehave(config))


@contextmanager
def pool(**arguments: Any) -> Iterator[GraderPool]:
    """A pool that knows the grader."""
    boot, known = verifiers.pool._BOOT, dict(FAMILIES)
    register()
    verifiers.pool._identified.cache_clear()
    verifiers.pool._BOOT = boot.replace(
        "from verifiers.supervisor",
        "from tests.verifiers import misbehaving; misbehaving.register();"
        " from verifiers.supervisor",
    )
    try:
        with GraderPool(**arguments) as made:
            yield made
    finally:
        verifiers.pool._BOOT = boot
        FAMILIES.clear()
        FAMILIES.update(known)


def says(text: str) -> Sample:
    return Sample(output_text=text)


def many(pool: GraderPool, texts: list[str]) -> list[Grade]:
    return pool.grade_many(MISBEHAVE, [(says(text), {}) for text in texts])


def timeless(grade: Grade) -> Grade:
    return grade.model_copy(update={"seconds": 0.0})


def processes(pool: GraderPool) -> list[psutil.Process]:
    """The supervisor, and everything below it."""
    supervisor = psutil.Process(pool._supervisor._process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def gone(ended: list[psutil.Process]) -> bool:
    """Wait until the processes have ended; those that nobody collected yet have, too."""
    _, alive = psutil.wait_procs(ended, timeout=LONG)
    return all(one.status() == psutil.STATUS_ZOMBIE for one in alive)
