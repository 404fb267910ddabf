"""What a grading process answers, and what it may use."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.verifiers.misbehaving import LONG
from verifiers import Grade, Sample, Status, ToolCall, build, grader_hash
from verifiers.frames import Frame, Kind, Reader, encode
from verifiers.worker import MAX_BUILT, Desk, serve

CHECK: dict[str, Any] = {"type": "string_check"}


def grader_body(config: dict[str, Any]) -> bytes:
    return f"{grader_hash(config)}{json.dumps(config)}".encode()


def grade_frame(text: str, item: Any, tools: Any = (), number: int = 0) -> Frame:
    return Frame(Kind.GRADE, number, json.dumps([text, tools, item]).encode())


def answered(body: bytes) -> Grade:
    return Grade.model_validate_json(body)


@contextmanager
def served(deadline_s: float = LONG) -> Iterator[socket.socket]:
    """A socket whose other end is served."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, deadline_s))
    thread.start()
    try:
        yield ours
    finally:
        ours.close()
        thread.join()
        theirs.close()


def test_every_frame_is_answered_in_order_and_as_the_grader_answers_itself() -> None:
    grader = build(CHECK)
    asked = [("yes", {"answer": "yes"}), ("no", {"answer": "yes"}), ("no", {})]
    with served() as link:
        link.sendall(encode(Kind.GRADER, 0, grader_body(CHECK)))
        for number, (text, item) in enumerate(asked):
            link.sendall(encode(*grade_frame(text, item, number=number)))
        link.sendall(encode(Kind.REFERENCE, 3, b'{"answer": "yes"}'))
        reader, frames = Reader(), []
        while len(frames) < 4:
            frames += reader.feed(link.recv(4096))
    assert [(frame.kind, frame.number) for frame in frames] == [(Kind.ANSWER, n) for n in range(4)]
    for frame, (text, item) in zip(frames, asked, strict=False):
        direct = grader.grade(Sample(output_text=text), item)
        assert answered(frame.body) == direct.model_copy(
            update={"seconds": answered(frame.body).seconds}
        )
    assert json.loads(frames[3].body) == "yes"


@pytest.mark.usefixtures("patient")
def test_code_is_ended_from_inside_before_the_deadline_so_the_grader_has_the_last_word() -> None:
    config = {"type": "unit_tests", "unjudged": "failed", "timeout_s": LONG, "tests": ["pass"]}
    both = {"type": "multi", "graders": {"a": config, "b": config}}
    with served(deadline_s=1.0) as link:
        link.sendall(encode(Kind.GRADER, 0, grader_body(both)))
        link.sendall(encode(*grade_frame("while True: pass", {})))
        reader, frames = Reader(), []
        while not frames:
            frames += reader.feed(link.recv(4096))
    grade = answered(frames[0].body)
    assert grade.status is Status.FAILED
    assert grade.seconds < LONG


def test_tool_calls_reach_the_grader() -> None:
    config = {"type": "function_call", "syntax": "tools"}
    desk = Desk()
    desk.use(grader_body(config))
    item = {"call": {"name": "f", "arguments": {"a": [1]}}}
    assert answered(desk.answer(grade_frame("", item, [["f", {"a": 1}]]))).passed
    sample = Sample(output_text="", output_tools=(ToolCall(name="f", arguments={"a": 1}),))
    assert build(config).grade(sample, item).passed


def test_a_configuration_that_does_not_build_is_an_errored_grade() -> None:
    desk = Desk()
    desk.use(b"0" * 64 + b'{"type": "string_check", "surprise": 1}')
    grade = answered(desk.answer(grade_frame("", {})))
    assert (grade.error_kind, grade.error is not None and "surprise" in grade.error) == (
        "config",
        True,
    )


def test_graders_are_told_apart_and_only_so_many_are_kept() -> None:
    desk = Desk()
    for count in range(2 * MAX_BUILT):
        desk.use(grader_body({"type": "string_check", "reference": str(count)}))
        assert answered(desk.answer(grade_frame(str(count), {}))).passed
        assert not answered(desk.answer(grade_frame("no", {}))).passed
    assert len(desk._built) == MAX_BUILT


LIMITED = """
import resource
from verifiers import worker
worker.limit(64 << 20)
assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
bytearray(8 << 20)
try:
    bytearray(256 << 20)
except MemoryError:
    worker.limit(1 << 40)  # the bound cannot be loosened
    print("bounded")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not keep the bound")
def test_memory_is_bounded_beyond_what_the_process_has_already() -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True, cwd="."
    )
    assert run.stdout == "bounded\n"
