"""A process that ends workers, and all they started, when their supervisor was killed.

Linux can tie a worker's life to its supervisor's, but not what the worker has started: the
interpreter of a sandbox would compute on until its time is over. macOS ties neither, so there a
worker would be left that never looks at its socket. The guard does nothing but wait at a socket
that the supervisor holds. When that closes, it kills the process groups that it was told of.

Should the guard be killed, the supervisor ends when it next tells it of a worker, and the pool
starts both anew. Killed both at once, they leave what is running until its own limits.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

_NUMBER = struct.Struct("!i")


class Guard:
    """Started by a supervisor, which tells it of its workers.

    `foreign` are sockets of the supervisor that the guard must not keep open.
    """

    def __init__(self, foreign: Iterable[socket.socket]) -> None:
        self._link, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)  # not killed with the supervisor's group
                for one in (self._link, *foreign):
                    one.close()
                _stand_by(theirs)
            finally:
                os._exit(0)
        theirs.close()

    def watch(self, group: int) -> None:
        """Have a process group killed should this process end; raises OSError without a guard."""
        self._link.sendall(_NUMBER.pack(group))

    def forget(self, group: int) -> None:
        """Have a group killed no more; without a guard none is."""
        with suppress(OSError):
            self._link.sendall(_NUMBER.pack(-group))

    def leave(self) -> None:
        """Have no part in this in a child process."""
        self._link.close()

    def end(self) -> None:
        """End the guard, which kills what it was told of and not to forget."""
        self._link.close()
        os.waitpid(self._pid, 0)


def _stand_by(link: socket.socket) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with link.makefile("rb") as stream:
        while len(data := stream.read(_NUMBER.size)) == _NUMBER.size:
            number = _NUMBER.unpack(data)[0]
            if number > 0:
                groups.add(number)
            else:
                groups.discard(-number)
    for group in groups:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
