"""Frames survive any cutting of the stream; what is no frame is noticed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.frames import MAX_BODY, BrokenStream, Frame, Kind, Reader, encode

FRAMES = st.lists(
    st.builds(
        Frame,
        kind=st.sampled_from(list(Kind)),
        number=st.integers(0, 2**32 - 1),
        body=st.binary(max_size=40),
    ),
    max_size=8,
)


@given(FRAMES, st.data())
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    frames: list[Frame], data: st.DataObject
) -> None:
    stream = b"".join(encode(*frame) for frame in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = Reader()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames


@pytest.mark.parametrize(
    "header", [struct.pack("!IBI", 0, 99, 0), struct.pack("!IBI", MAX_BODY + 1, Kind.ANSWER, 0)]
)
def test_a_header_that_nobody_sends_breaks_the_stream(header: bytes) -> None:
    with pytest.raises(BrokenStream):
        list(Reader().feed(encode(Kind.GRADE) + header))
