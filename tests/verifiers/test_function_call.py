"""`function_call` against a naive count of pairs."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.verifiers.grading import called as grade
from tests.verifiers.strategies import CALLS, KEYS, SCALARS
from verifiers import Sample, Status, ToolCall, build
from verifiers.calls import write_call
from verifiers.values import Normalise, canonical

SYNTAXES = st.sampled_from(["json", "call", "tools"])
WEIGHT = st.floats(0, 100)


def same(one: Any, other: Any) -> bool:
    """Compare under the default normalisation, which has its own tests."""
    return canonical(one, Normalise()) == canonical(other, Normalise())


def as_sample(name: str, arguments: dict[str, Any], syntax: Any) -> Sample:
    """Make the completion that makes this call."""
    tools = (ToolCall(name=name, arguments=arguments),)
    text = write_call(name, arguments, syntax)
    return Sample(output_text=text or "", output_tools=tools)


def first_choice(call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an item's call, each with its first allowed value."""
    return {key: allowed[0] for key, allowed in call["arguments"].items()}


@given(CALLS, SYNTAXES, st.data())
def test_every_combination_of_allowed_values_passes(
    call: dict[str, Any], syntax: str, data: st.DataObject
) -> None:
    arguments = {
        key: data.draw(st.sampled_from(allowed)) for key, allowed in call["arguments"].items()
    }
    shuffled = dict(data.draw(st.permutations(list(arguments.items()))))
    grader = build({"type": "function_call", "syntax": syntax})
    result = grader.grade(as_sample(call["name"], shuffled, syntax), {"call": call})
    assert result.passed and result.score == 1.0
    assert set(result.subscores.values()) == {1.0}


@given(st.one_of(st.none(), CALLS), st.sampled_from(["json", "call"]))
def test_the_reference_passes(call: dict[str, Any] | None, syntax: str) -> None:
    grader = build({"type": "function_call", "syntax": syntax})
    text = grader.reference({"call": call})
    assert text is not None
    assert grader.grade(Sample(output_text=text), {"call": call}).passed


@given(CALLS, SYNTAXES, st.data())
def test_a_mutated_call_fails(call: dict[str, Any], syntax: str, data: st.DataObject) -> None:
    name, arguments = call["name"], first_choice(call)
    mutants = [(name + "x", arguments), (name, {**arguments, "unwanted_key": 1})]
    if arguments:
        key = data.draw(st.sampled_from(sorted(arguments)))
        wrong = data.draw(SCALARS)
        assume(not any(same(wrong, right) for right in call["arguments"][key]))
        mutants.append((name, {**arguments, key: wrong}))
        if "" not in call["arguments"][key]:
            mutants.append((name, {other: arguments[other] for other in arguments if other != key}))
    grader = build({"type": "function_call", "syntax": syntax})
    for sample in (as_sample(*mutant, syntax) for mutant in mutants):
        result = grader.grade(sample, {"call": call})
        assert result.status is Status.FAILED
        assert result.score is not None and 0.1 <= result.score < 1


def naive_f1(given_pairs: list[tuple[str, Any]], wanted: dict[str, list[Any]]) -> float:
    """Count pairs by looking each wanted one up in a list that is used up."""
    left = list(given_pairs)
    matched = 0.0
    needed = 0
    for key, allowed in wanted.items():
        mine = [pair for pair in left if pair[0] == key]
        if not mine and "" in allowed:
            continue
        needed += 1
        full = [pair for pair in mine if any(same(pair[1], value) for value in allowed)]
        if full:
            matched += 1
            left.remove(full[0])
        elif mine:
            matched += 0.5
            left.remove(mine[0])
    if not given_pairs and not needed:
        return 1.0
    precision = matched / len(given_pairs) if given_pairs else 0.0
    recall = matched / needed if needed else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


FEW_KEYS = st.sampled_from(["a", "b", "c", "d"])
FEW_VALUES = st.sampled_from([0, 1, "x", "y", ""])


@given(
    st.lists(st.tuples(FEW_KEYS, FEW_VALUES), max_size=6),
    st.dictionaries(FEW_KEYS, st.lists(FEW_VALUES, min_size=1, max_size=3)),
    st.booleans(),
    st.fixed_dictionaries({"parseable": WEIGHT, "name": WEIGHT, "arguments": WEIGHT}),
)
def test_the_score_is_the_weighted_mean_and_arguments_are_the_naive_f1(
    pairs: list[tuple[str, Any]],
    wanted: dict[str, list[Any]],
    right_name: bool,
    weights: dict[str, float],
) -> None:
    assume(sum(weights.values()) > 0.01)
    inside = ", ".join(f"{key}={json.dumps(value)}" for key, value in pairs)
    result = grade(
        f"{'f' if right_name else 'g'}({inside})",
        {"name": "f", "arguments": wanted},
        syntax="call",
        weights=weights,
    )
    f1 = naive_f1(pairs, wanted)
    unique = len({key for key, _ in pairs}) == len(pairs)
    expected = {"parseable": float(unique), "name": float(right_name), "arguments": f1}
    assert result.subscores == pytest.approx(expected)
    mean = sum(weights[key] * expected[key] for key in weights) / sum(weights.values())
    assert result.score == pytest.approx(mean, abs=2e-6)
    assert result.passed == (unique and right_name and f1 == 1)


@given(KEYS)
def test_a_call_without_arguments_has_full_f1_only_if_it_gives_none(name: str) -> None:
    call = {"name": name, "arguments": {}}
    assert grade(f"{name}()", call, syntax="call").passed
    assert grade(f"{name}(a=1)", call, syntax="call").subscores["arguments"] == 0.0
    assert grade(f"{name}(", call, syntax="call").subscores["arguments"] == 0.0
    assert grade("no", call, syntax="call").score == 0.0


def test_shaped_scores_rise_with_each_step_towards_the_right_call() -> None:
    call = {"name": "turn_on", "arguments": {"area": ["kitchen", "the kitchen"], "level": 50}}
    steps = [
        "I will turn on the light",
        "switch_on(room=kitchen)",
        "turn_on(",
        "turn_on(room=kitchen)",
        "turn_on(area=bedroom)",
        "turn_on(area=kitchen)",
        "turn_on(area=kitchen, level=40)",
        "turn_on(area=kitchen, level=50)\nDone!",
        "turn_on(area=kitchen, level=50)",
    ]
    scores = [grade(text, call, syntax="call").score for text in steps]
    assert scores == sorted(set(scores), key=float)  # type: ignore[arg-type]
    assert scores[0] == 0.0 and scores[-1] == 1.0


def test_scalars_lists_and_wrapped_lists_of_allowed_values() -> None:
    call = {"name": "f", "arguments": {"a": 1, "b": ["x", "y"], "c": [[1, 2]], "d": ["", "z"]}}
    assert grade("f(a=1, b=y, c=[1, 2])", call, syntax="call").passed
    assert grade("f(a='1', b=Y, c=['1'])", call, syntax="call").passed is False
    assert grade("f(a=1, b=x, c=[1, 2], d=z)", call, syntax="call").passed
    assert not grade("f(a=1, b=x, c=[1, 2], d=q)", call, syntax="call").passed
    assert build({"type": "function_call", "syntax": "call"}).reference({"call": call}) == (
        "f(a=1, b=x, c=[1, 2])"
    )


def test_names_and_keys_are_compared_exactly_whatever_is_normalised() -> None:
    call = {"name": "turn_on", "arguments": {"area": ["Kitchen"]}}
    assert grade("turn_on(area=KITCHEN)", call, syntax="call").passed
    assert grade("Turn_on(area=kitchen)", call, syntax="call").subscores["name"] == 0.0
    assert grade("turn_on(Area=kitchen)", call, syntax="call").subscores["arguments"] == 0.0


def test_an_empty_text_that_is_not_in_a_list_is_a_needed_value() -> None:
    call = {"name": "f", "arguments": {"a": ""}}
    assert grade('{"name": "f", "arguments": {"a": ""}}', call).passed
    assert not grade('{"name": "f", "arguments": {}}', call).passed


def test_texts_of_arguments_are_compared_as_they_look() -> None:
    call = {"name": "f", "arguments": {"a": "café"}}
    for text in ("café", "cafe\u0301", "ca\u200bfé"):
        assert grade(f"f(a={text})", call, syntax="call").passed
        assert grade(json.dumps({"name": "f", "arguments": {"a": text}}), call).passed


def test_tool_calls_have_no_reference_text() -> None:
    grader = build({"type": "function_call", "syntax": "tools"})
    assert grader.reference({"call": {"name": "f", "arguments": {}}}) is None


def test_names_that_a_syntax_cannot_write_have_no_reference() -> None:
    grader = build({"type": "function_call", "syntax": "call"})
    assert grader.reference({"call": {"name": "not a name", "arguments": {}}}) is None


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"call": "f()"},
        {"call": {}},
        {"call": {"name": "f"}},
        {"call": {"name": "", "arguments": {}}},
        {"call": {"name": 1, "arguments": {}}},
        {"call": {"name": "f", "arguments": []}},
        {"call": {"name": "f", "arguments": {"a": []}}},
        {"call": {"name": "f", "arguments": {}, "id": 1}},
        {"call": {"f": []}},
        {"call": {"": {}}},
        {"call": {"arguments": {}}},
        {"call": {"f": {}, "g": {}}},
        {"call": [{"f": {}}, {"g": {}}]},
        {"call": [None]},
        {"call": {"name": "f", "arguments": {"a": float("nan")}}},
    ],
)
def test_a_broken_item_is_errored_and_has_no_reference(item: dict[str, Any]) -> None:
    grader = build({"type": "function_call"})
    result = grader.grade(Sample(output_text='{"name": "f", "arguments": {}}'), item)
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    assert grader.reference(item) is None


def test_a_call_can_be_spelled_as_bfcl_does_and_alone_in_a_list() -> None:
    arguments = {"a": ["x", "y"], "b": [{"c": [1, ""]}]}
    for call in ({"f": arguments}, [{"f": arguments}], {"name": "f", "arguments": arguments}):
        assert grade("f(a=y, b={})", call, syntax="call").passed
        assert not grade('f(a=y, b={"c": 2})', call, syntax="call").passed
    assert grade("none", [], syntax="call").passed
    assert not grade("f()", [], syntax="call").passed
