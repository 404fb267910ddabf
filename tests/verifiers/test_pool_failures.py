"""The pool outlives whatever graders do, and says what it was."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import MISBEHAVE, many, says
from verifiers import GraderPool, Status
from verifiers.frames import Frame, Kind, encode

CHECK: dict[str, Any] = {"type": "string_check"}


def babble(data: bytes) -> str:
    """What has a worker send this to its supervisor."""
    return f"babble {data.decode('latin-1')}"


@pytest.mark.parametrize(
    ("text", "kind", "error"),
    [
        ("crash", "sandbox", "killed by signal 11"),
        ("exit", "sandbox", "exited with status 3"),
        (babble(b"\xff" * 64), "sandbox", "the grading process ended"),
        (
            babble(struct.pack("!IBI", 2**31, Kind.ANSWER, 0)),
            "sandbox",
            "the grading process ended",
        ),
        (babble(encode(Kind.ANSWER, 2**32 - 1, b"{}")), "sandbox", "not asked"),
        (babble(encode(Kind.DIED, 0, b"")), "sandbox", "not asked"),
        (babble(9 * encode(Kind.ANSWER, 0, b"{}")), "sandbox", "not asked"),
    ],
)
def test_what_a_grader_does_to_its_process_is_an_errored_grade(
    tough: GraderPool, text: str, kind: str, error: str
) -> None:
    grade = many(tough, [text])[0]
    assert (grade.score, grade.error_kind) == (None, kind)
    assert grade.error is not None and error in grade.error
    assert many(tough, ["fine"])[0].passed


@pytest.mark.parametrize("answer", [b"{}", b"\xff", b"[" * 100_000, b"null"])
def test_an_answer_that_is_no_grade_is_errored(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def forged(*_: Any) -> Iterator[Frame]:
        yield Frame(Kind.ANSWER, 0, answer)

    monkeypatch.setattr("verifiers.pool._received", forged)
    with GraderPool(workers=1) as pool:
        grade = pool.grade(CHECK, says("a"), {"answer": "a"})
        assert pool.references(CHECK, [{"answer": "a"}]) == [None]
    assert grade.error_kind == "sandbox"
    assert grade.error == "the grading process answered nonsense"


@pytest.mark.parametrize("text", ["hang", "sleep 1000"])
def test_what_takes_longer_than_the_deadline_is_a_timeout(hasty: GraderPool, text: str) -> None:
    grade = many(hasty, [text])[0]
    assert (grade.score, grade.error_kind) == (None, "timeout")
    assert (grade.error, grade.seconds) == ("grading took longer than 0.3 s", 0.3)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not keep the bound")
def test_a_grader_that_takes_too_much_memory_is_errored(tough: GraderPool) -> None:
    below, above = many(tough, [f"eat {64 << 20}", f"eat {1 << 30}"])
    assert below.score == 0.0
    assert (above.error_kind, above.error) == ("sandbox", "grading ran out of memory")


def test_one_bad_grade_never_costs_the_others() -> None:
    bad = {10: "hang a", 11: "crash a", 200: "hang b", 201: "exit a", 202: "crash b", 399: "crash"}
    texts = [bad.get(number, f"echo {number / 400}") for number in range(400)]
    with misbehaving.pool(deadline_s=5.0) as pool:
        grades = many(pool, texts)
    assert {number for number, grade in enumerate(grades) if grade.score is None} == set(bad)
    for number, grade in enumerate(grades):
        if number in bad:
            assert grade.error_kind == ("timeout" if "hang" in bad[number] else "sandbox")
        else:
            assert grade.score == number / 400


def test_timeouts_are_not_remembered(hasty: GraderPool) -> None:
    first, second = (many(hasty, ["hang"])[0] for _ in range(2))
    assert first is not second
    assert first == second


def test_crashes_are_not_remembered(tough: GraderPool) -> None:
    first, second = (many(tough, ["exit"])[0] for _ in range(2))
    assert first is not second
    assert first == second


def test_a_failure_for_being_slow_is_not_remembered(pool: GraderPool) -> None:
    config = {"type": "unit_tests", "unjudged": "failed", "timeout_s": 0.1, "tests": ["pass"]}
    first, second = (pool.grade(config, says("while True: pass"), {}) for _ in range(2))
    assert first.status is second.status is Status.FAILED
    assert first is not second


def test_references_that_hang_or_crash_are_none() -> None:
    items = [{"act": act} for act in ("fine", "hang", "crash", "exit", "fine again")]
    with misbehaving.pool(deadline_s=5.0) as pool:
        assert pool.references(MISBEHAVE, items) == ["fine", None, None, None, "fine"]


NOISY = """
import sys
sys.path[:0] = sys.argv[1:]
from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import many
with misbehaving.pool(deadline_s=60.0) as pool:
    many(pool, ["write loud", "echo no number"])
"""


def test_only_pythons_own_errors_are_heard_of_a_worker() -> None:
    run = subprocess.run(
        [sys.executable, "-c", NOISY, *sys.path], capture_output=True, text=True, check=True
    )
    assert "loud" not in run.stderr
    assert "the grader broke: ValueError at misbehaving.py" in run.stderr
