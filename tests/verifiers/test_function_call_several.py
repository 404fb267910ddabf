"""`function_call` with several calls, in order or in any, against every pairing."""

from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.grading import called as grade
from verifiers import Grade, Sample, Status, ToolCall, build
from verifiers.calls import MAX_CALLS, write_call, write_calls

FEW_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["f", "g"]),
        st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, 2]), max_size=2),
    ),
    min_size=1,
    max_size=4,
)
ORDERS = st.sampled_from(["in_order", "any_order"])


def as_item(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Make the item's list of calls."""
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


def every_pairing(rows: int, columns: int, in_order: bool) -> list[list[tuple[int, int]]]:
    """List every way to pair wanted with given calls."""
    found: list[list[tuple[int, int]]] = []
    for size in range(min(rows, columns) + 1):
        for some in combinations(range(rows), size):
            pick = combinations if in_order else permutations
            found += [list(zip(some, others, strict=True)) for others in pick(range(columns), size)]
    return found


@given(FEW_CALLS, FEW_CALLS, ORDERS, st.sampled_from(["json", "call"]))
def test_several_calls_score_as_the_best_of_every_pairing(
    wanted: list[tuple[str, dict[str, Any]]],
    given_calls: list[tuple[str, dict[str, Any]]],
    order: str,
    syntax: Any,
) -> None:
    text = write_calls(given_calls, syntax)
    assert text is not None
    result = grade(text, as_item(wanted), syntax=syntax, calls=order)

    def pair_score(i: int, j: int) -> float:
        one = write_call(*given_calls[j], syntax)
        assert one is not None
        score = grade(one, as_item(wanted)[i], syntax=syntax).score
        assert score is not None
        return score

    best = max(
        sum(pair_score(i, j) for i, j in pairs)
        for pairs in every_pairing(len(wanted), len(given_calls), order == "in_order")
    )
    mean = 2 * best / (len(wanted) + len(given_calls))
    assert result.score == pytest.approx(mean, abs=2e-6)
    exact = given_calls == wanted
    if order == "any_order":
        exact = any(list(one) == wanted for one in permutations(given_calls))
    assert result.passed == exact
    assert (result.subscores["calls"] == 1.0) == exact


@given(FEW_CALLS, ORDERS, st.sampled_from(["json", "call", "tools"]), st.data())
def test_several_right_calls_pass_and_one_fewer_or_more_fails(
    wanted: list[tuple[str, dict[str, Any]]], order: str, syntax: Any, data: st.DataObject
) -> None:
    item = {"call": as_item(wanted)}
    grader = build({"type": "function_call", "syntax": syntax, "calls": order})
    shuffled = list(data.draw(st.permutations(wanted))) if order == "any_order" else wanted

    def graded(calls: list[tuple[str, dict[str, Any]]]) -> Grade:
        tools = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in calls)
        return grader.grade(
            Sample(output_text=write_calls(calls, syntax) or "", output_tools=tools), item
        )

    assert graded(shuffled).passed
    assert graded([*shuffled, ("h", {})]).status is Status.FAILED
    assert graded(shuffled[1:]).status is Status.FAILED
    if syntax != "tools":
        text = grader.reference(item)
        assert text is not None
        assert grader.grade(Sample(output_text=text), item).score == 1.0


def test_greed_would_miss_the_only_right_pairing() -> None:
    item = [{"f": {"a": [1, 2]}}, {"f": {"a": [1]}}]
    assert grade("f(a=1)\nf(a=2)", item, syntax="call", calls="any_order").passed
    assert not grade("f(a=1)\nf(a=2)", item, syntax="call", calls="in_order").passed
    assert grade("f(a=2)\nf(a=1)", item, syntax="call", calls="in_order").passed


def test_a_right_call_is_paired_even_where_the_weights_do_not_tell_it_apart() -> None:
    item = [{"f": {"a": 1}}, {"f": {"a": 2}}]
    names = {"parseable": 0, "name": 1, "arguments": 0}
    for order, text in (("any_order", "f(a=2)\nf(a=1)"), ("in_order", "f(a=1)\nf(a=2)")):
        assert grade(text, item, syntax="call", calls=order, weights=names).passed
    wrong = grade("f(a=3)\nf(a=4)", item, syntax="call", calls="any_order", weights=names)
    assert wrong.status is Status.FAILED and wrong.score is not None and wrong.score < 1


def test_several_calls_with_text_around_them_pass_only_where_it_is_ignored() -> None:
    item: list[Any] = [{"f": {}}, {"g": {}}]
    text = "Sure:\nf()\ng()"
    refused = grade(text, item, syntax="call", calls="in_order")
    assert not refused.passed and refused.subscores["parseable"] == 0.5
    assert grade(text, item, syntax="call", calls="in_order", surrounding="ignore").passed


def test_more_calls_than_the_bound_fail_and_so_many_cannot_be_wanted() -> None:
    most: dict[str, Any] = {"call": [{"f": {}}] * MAX_CALLS}
    grader = build({"type": "function_call", "syntax": "call", "calls": "any_order"})
    assert grader.grade(Sample(output_text="f()\n" * MAX_CALLS), most).passed
    over = grader.grade(Sample(output_text="f()\n" * (MAX_CALLS + 1)), most)
    assert (over.status, over.score) == (Status.FAILED, 0.0)
    more: dict[str, Any] = {"call": [{"f": {}}] * (MAX_CALLS + 1)}
    assert grader.grade(Sample(output_text="f()"), more).error_kind == "item"


@pytest.mark.parametrize("order", ["in_order", "any_order"])
def test_one_call_is_graded_the_same_as_one_of_several(order: str) -> None:
    call = {"name": "f", "arguments": {"a": 1}}
    for text in ("f(a=1)", "f(a=2)", "g(a=1)", "f(a=1", "f(a=1) now", "no"):
        alone = grade(text, call, syntax="call")
        several = grade(text, [call], syntax="call", calls=order)
        assert (alone.status, alone.score) == (several.status, several.score)
