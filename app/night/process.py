"""A gradient trainer's process as the service sees it: started, listened to, ended.

Gradients need memory of their own: what takes too much of it is then that process, not the service.
It says one JSON object per line: `{"progress": ...}`, and last `{"ended": reason}` or
`{"failed": {"type": ..., "message": ...}}`. It ends by itself when its standard input is closed,
which is what the end of the service does, however sudden.
"""

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.night.context import NightError
from storage.errors import NoSpace

logger = logging.getLogger("nightowl")

CHECK_S = 0.25
"""How often at least it is asked whether to go on."""
END_S = 5.0
"""How long the process has to end once it was told to."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from app.night.child import main; main()"
)


def run(
    folder: Path, on_progress: Callable[[dict[str, Any]], None], check: Callable[[], None]
) -> str:
    """Trains what `folder` orders to its end, and returns why it ended.

    `check` is called at least every CHECK_S seconds; what it or `on_progress` raises ends the
    process. Raises NoSpace, and NightError for a process that fails, crashes or is killed.
    """
    with _started(folder) as process:
        for line in _lines(process, check):
            match json.loads(line):
                case {"progress": dict(data)}:
                    on_progress(data)
                case {"ended": str(reason)}:
                    return reason
                case {"failed": {"type": "NoSpace", "message": str(message)}}:
                    raise NoSpace(message)
                case {"failed": {"message": str(message)}}:
                    raise NightError(message)
                case other:
                    raise NightError(f"the trainer's process said {str(other)[:80]!r}")
        code = process.wait(END_S)
    logger.error("the trainer's process ended with code %d", code)
    raise NightError(_why(code))


def _why(code: int) -> str:
    """What the end of a process that did not finish means."""
    if code == -signal.SIGKILL:
        return "the trainer's process was killed: probably out of memory"
    if code < 0:
        return f"the trainer's process crashed ({signal.Signals(-code).name})"
    return "the trainer's process failed; the service's log has the details"


@contextmanager
def _started(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, which has ended when the block is left."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, json.dumps(sys.path), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Not of the terminal's group: Ctrl-C is for the service, which then ends this.
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process where it is: what it has stored is whole at any moment."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _lines(process: subprocess.Popen[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    """The lines that the process writes, until it closes its output."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            check()
            if not selector.select(CHECK_S):
                continue
            read = os.read(output, 1 << 16)
            if not read:
                return
            *whole, rest = (rest + read).split(b"\n")
            for line in whole:
                yield line
                check()
