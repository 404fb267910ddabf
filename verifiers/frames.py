"""Messages between a grader pool, its supervisor and the workers: frames on stream sockets.

A frame is a header (length of the body, kind, number of the grade it belongs to) and a body. Bodies
are JSON: a worker has read hostile text, so nothing it says is unpickled.

From the pool, through the supervisor, to a worker:

    GRADER     the grader of all that follows on this socket: its hash, 64 letters, and its config
    GRADE      [output_text, [[name, arguments], ...], item] to be graded
    REFERENCE  an item, of which a right answer is wanted

and back, one for each GRADE and REFERENCE:

    ANSWER     a grade, or a reference: text or null
    OVERRAN    from the supervisor: it took longer than the deadline
    DIED       from the supervisor: the worker died of it; the body says how
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

HASH_LENGTH = 64
MAX_BODY = 1 << 28  # a worker whose memory is broken must not have the supervisor wait for 4 GiB

_HEADER = struct.Struct("!IBI")


class Kind(IntEnum):
    """What a frame is."""

    GRADER = 1
    GRADE = 2
    REFERENCE = 3
    ANSWER = 4
    OVERRAN = 5
    DIED = 6


class Frame(NamedTuple):
    """One message; `number` counts the grades of one call from 0."""

    kind: Kind
    number: int
    body: bytes


class BrokenStream(Exception):
    """The bytes are no frames: whoever sent them is not what it was."""


def encode(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(len(body), kind, number) + body


class Reader:
    """Cuts a stream of bytes, given in any pieces, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with these bytes; raises BrokenStream."""
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            length, kind, number = _HEADER.unpack_from(self._buffer, start)
            if length > MAX_BODY or kind not in Kind._value2member_map_:
                raise BrokenStream
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            yield Frame(Kind(kind), number, bytes(self._buffer[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
