"""The pool grades as graders do, and remembers."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers import misbehaving
from tests.verifiers.misbehaving import LONG, MISBEHAVE, many, says, timeless
from tests.verifiers.strategies import HOSTILE_TEXT, OBJECTS
from verifiers import Grade, GraderPool, Sample, ToolCall, build
from verifiers.base import MAX_OUTPUT_CHARS
from verifiers.pool import MAX_CALLS

CHECK: dict[str, Any] = {"type": "string_check"}


@settings(max_examples=25)
@given(st.lists(st.tuples(HOSTILE_TEXT, OBJECTS), max_size=8))
def test_grades_are_those_of_the_grader_itself_in_the_same_order(
    pool: GraderPool, pairs: list[tuple[str, dict[str, Any]]]
) -> None:
    config = {"type": "json_match", "surrounding": "ignore"}
    asked = [(says(text), {"answer": item}) for text, item in pairs]
    grader = build(config)
    direct = [timeless(grader.grade(sample, item)) for sample, item in asked]
    assert [timeless(grade) for grade in pool.grade_many(config, asked)] == direct


def test_nothing_to_grade_gives_no_grades(pool: GraderPool) -> None:
    assert pool.grade_many(CHECK, []) == []
    assert pool.references(CHECK, []) == []


def test_a_wrong_configuration_makes_every_grade_errored(pool: GraderPool) -> None:
    for config in ({"type": "unknown"}, {"type": "string_check", "x": 1}, {1: 2}, {"a": {1}}):
        grades = pool.grade_many(config, [(says("a"), {}), (says("b"), {})])
        assert [grade.error_kind for grade in grades] == ["config", "config"]


@pytest.mark.parametrize("item", [None, [], "x", {"a": float("nan")}, {1: 2}, {"a": {1, 2}}])
def test_an_item_that_is_not_json_is_errored_and_the_others_are_graded(
    pool: GraderPool, item: Any
) -> None:
    good = (says("yes"), {"answer": "yes"})
    first, broken, last = pool.grade_many(CHECK, [good, (says("yes"), item), good])
    assert first.passed and last.passed
    assert timeless(broken) == timeless(build(CHECK).grade(says("yes"), item))


def test_a_completion_beyond_the_bound_fails(pool: GraderPool) -> None:
    for length in (MAX_OUTPUT_CHARS, MAX_OUTPUT_CHARS + 1, 2_000_000):
        text = "x" * length
        grade = pool.grade({"type": "string_check", "operation": "ne"}, says(text), {"answer": ""})
        assert grade.passed == (length <= MAX_OUTPUT_CHARS)


def test_tool_calls_are_graded_and_told_apart(pool: GraderPool) -> None:
    config = {"type": "function_call", "syntax": "tools"}
    item = {"call": {"name": "f", "arguments": {"a": [1]}}}

    def call(value: Any) -> Sample:
        return Sample(output_text="", output_tools=(ToolCall(name="f", arguments={"a": value}),))

    grades = pool.grade_many(config, [(call(1), item), (call(2), item), (call({1}), item)])
    assert [grade.passed for grade in grades] == [True, False, False]
    assert grades[2].error_kind == "internal"


def test_references_are_those_of_the_grader_itself(pool: GraderPool) -> None:
    items: list[Any] = [{"answer": "a"}, {}, {"answer": None}, {"answer": {1}}, {"answer": "b"}]
    assert pool.references(CHECK, items) == [build(CHECK).reference(item) for item in items]
    assert pool.references(CHECK, items) == ["a", None, None, None, "b"]


def test_the_same_question_is_asked_once(tough: GraderPool) -> None:
    first = many(tough, ["pid"] * 50)
    assert len({grade.score for grade in first}) == 1
    assert many(tough, ["pid", "other"])[0] == first[0]
    other = tough.grade(MISBEHAVE, says("pid"), {"another": "item"})
    assert other.seconds != first[0].seconds


def test_the_order_of_an_items_keys_makes_no_other_question(tough: GraderPool) -> None:
    first = tough.grade(MISBEHAVE, says("pid key"), {"a": 1, "b": 2})
    assert tough.grade(MISBEHAVE, says("pid key"), {"b": 2, "a": 1}) is first


def test_only_so_many_grades_are_remembered() -> None:
    with misbehaving.pool(workers=1, remembered=2) as pool:
        a, b = many(pool, ["pid a", "pid b"])
        assert many(pool, ["pid a"])[0] is a
        many(pool, ["pid c"])  # forgets b, which was used longest ago
        assert many(pool, ["pid a"])[0] is a
        assert many(pool, ["pid b"])[0] is not b


def test_sets_have_the_same_order_in_every_worker_of_every_pool(tough: GraderPool) -> None:
    with misbehaving.pool(workers=1) as other:
        assert many(other, ["set"])[0].score == many(tough, ["set again"])[0].score


def test_more_calls_than_channels_are_all_served(tough: GraderPool) -> None:
    count = MAX_CALLS + 16
    with ThreadPoolExecutor(count) as threads:
        calls = [
            threads.submit(many, tough, [f"echo {(10 * call + n) / 1000}" for n in range(10)])
            for call in range(count)
        ]
        for call, one in enumerate(calls):
            scores = [grade.score for grade in one.result()]
            assert scores == [(10 * call + n) / 1000 for n in range(10)]


def test_a_call_that_is_abandoned_leaves_the_pool_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with misbehaving.pool(deadline_s=LONG) as pool:

        def interrupted(*_: Any) -> Iterator[Any]:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("verifiers.pool._received", interrupted)
            with pytest.raises(KeyboardInterrupt):
                many(pool, ["echo 0.25"])
        for call in range(MAX_CALLS + 16):
            assert many(pool, [f"echo {call / 100}"])[0].score == call / 100


def test_the_first_grades_may_be_asked_for_while_the_processes_start() -> None:
    started = threading.Barrier(4)

    def call(number: int) -> Grade:
        started.wait()
        return many(pool, [f"echo {number / 10}"])[0]

    with misbehaving.pool() as pool, ThreadPoolExecutor(4) as threads:
        assert [one.score for one in threads.map(call, range(4))] == [0.0, 0.1, 0.2, 0.3]
