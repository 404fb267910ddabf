"""`json_match` against a field-by-field count."""

import copy
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.verifiers.strategies import JSON, KEYS, OBJECTS
from verifiers import Grade, GraderConfigError, Sample, Status, build
from verifiers.values import Normalise, canonical

WEIGHTS = st.floats(0.01, 100)


def grade(output: Any, answer: Any, **config: Any) -> Grade:
    """Grade an output (as JSON unless it is text) against an answer."""
    text = output if isinstance(output, str) else json.dumps(output)
    grader = build({"type": "json_match", **config})
    return grader.grade(Sample(output_text=text), {"answer": answer})


@given(OBJECTS)
def test_the_reference_passes_with_every_subscore_full(answer: dict[str, Any]) -> None:
    text = build({"type": "json_match"}).reference({"answer": answer})
    assert text is not None
    result = grade(text, answer)
    assert result.passed and result.score == 1.0
    assert result.subscores == {"parseable": 1.0, "fields": 1.0}


@given(OBJECTS, OBJECTS, st.booleans(), st.floats(0, 0.9))
def test_the_score_is_the_share_of_right_fields(
    output: dict[str, Any], answer: dict[str, Any], ignore: bool, parseable: float
) -> None:
    shared = {**output, **{key: answer[key] for key in list(answer)[::2]}}
    right = sum(
        key in shared and canonical(shared[key], Normalise()) == canonical(value, Normalise())
        for key, value in answer.items()
    )
    extra = 0 if ignore else sum(key not in answer for key in shared)
    total = len(answer) + extra
    share = right / total if total else 1.0
    result = grade(
        shared,
        answer,
        unexpected="ignore" if ignore else "refuse",
        parseable_weight=parseable,
    )
    assert result.subscores["fields"] == pytest.approx(share)
    assert result.passed == (right == total)
    assert result.score == pytest.approx(parseable + (1 - parseable) * share, abs=2e-6)


@given(st.dictionaries(KEYS, st.tuples(JSON, WEIGHTS, st.booleans()), min_size=1, max_size=5))
def test_fields_weigh_what_the_configuration_says(fields: dict[str, Any]) -> None:
    answer: dict[str, Any] = {
        "in": {key: value for key, (value, _, _) in fields.items()},
        "other": 1,
    }
    output = copy.deepcopy(answer)
    for key, (_, _, keep) in fields.items():
        if not keep:
            output["in"][key] = "certainly wrong"
    weights = {f"in.{key}": weight for key, (_, weight, _) in fields.items()}
    kept = sum(weight for _, weight, keep in fields.values() if keep)
    result = grade(output, answer, fields=weights)
    assert result.subscores["fields"] == pytest.approx(kept / sum(weights.values()))
    assert result.passed == all(keep for _, _, keep in fields.values())


@given(OBJECTS.filter(bool), st.data())
def test_a_mutated_answer_fails(answer: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(answer)))
    changed = data.draw(JSON)
    assume(canonical(changed, Normalise()) != canonical(answer[key], Normalise()))
    removed = {other: value for other, value in answer.items() if other != key}
    for output in ({**answer, key: changed}, removed, {**answer, "unexpected_key": 1}):
        result = grade(output, answer)
        assert result.status is Status.FAILED
        assert result.score is not None and 0.1 <= result.score < 1


def test_a_tiny_weight_cannot_hide_a_wrong_field() -> None:
    result = grade({"a": 1, "b": 2}, {"a": 1, "b": 3}, fields={"a": 1e6, "b": 1e-300})
    assert result.status is Status.FAILED
    assert result.score is not None and result.score < 1


def test_fields_not_listed_do_not_count_but_unknown_ones_do_at_any_depth() -> None:
    answer = {"a": {"x": 1, "y": {"z": 1}}, "b": 2}
    fields = {"a.x": 1}
    assert grade({"a": {"x": 1, "y": 9}}, answer, fields=fields).passed
    assert grade({"a": {"x": 1}, "b": 9}, answer, fields=fields).passed
    for output in (
        {"a": {"x": 1}, "c": 1},
        {"a": {"x": 1, "c": 1}},
        {"a": {"x": 1, "y": {"c": 1}}},
    ):
        result = grade(output, answer, fields=fields)
        assert result.subscores == {"parseable": 1.0, "fields": 0.5}
        assert not result.passed
        assert grade(output, answer, fields=fields, unexpected="ignore").passed


def test_surrounding_text_costs_half_of_parseable_unless_it_is_ignored() -> None:
    text = 'Sure:\n```json\n{"a": 1}\n```'
    refused = grade(text, {"a": 1})
    assert not refused.passed and refused.score == pytest.approx(0.95)
    assert grade(text, {"a": 1}, surrounding="ignore").passed


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1, "a": 1}', '{"a": NaN}', "1" * 70_000])
def test_malformed_output_fails_with_zero(text: str) -> None:
    result = grade(text, {"a": 1})
    assert (result.status, result.score) == (Status.FAILED, 0.0)


@pytest.mark.parametrize(
    ("item", "config"),
    [
        ({}, {}),
        ({"answer": None}, {}),
        ({"answer": "text"}, {}),
        ({"answer": {"a": 1}}, {"fields": {"b": 1}}),
        ({"answer": {"a": 1}}, {"fields": {"a.b": 1}}),
        ({"answer": {"a": float("inf")}}, {}),
        ({"answer": {"a": 1}}, {"reference": "answer.a"}),
    ],
)
def test_a_broken_item_is_errored_and_has_no_reference(
    item: dict[str, Any], config: dict[str, Any]
) -> None:
    grader = build({"type": "json_match", **config})
    result = grader.grade(Sample(output_text="not json"), item)
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    assert grader.reference(item) is None


def test_an_empty_object_can_be_wanted() -> None:
    assert grade({}, {}).passed
    assert grade({"a": 1}, {}).subscores == {"parseable": 1.0, "fields": 0.0}


def test_the_expected_object_is_found_by_path_in_either_form() -> None:
    for reference in ("wanted.0", "{{ item.wanted.0 }}"):
        grader = build({"type": "json_match", "reference": reference})
        assert grader.grade(Sample(output_text='{"a": 1}'), {"wanted": [{"a": "1"}]}).passed


def test_normalisation_can_be_switched_off() -> None:
    assert grade({"a": "X"}, {"a": "x"}).passed
    assert not grade({"a": "X"}, {"a": "x"}, normalise={"casefold": False}).passed
    assert not grade({"a": "1"}, {"a": 1}, normalise={"numbers": False}).passed
    assert not grade({"a": "x "}, {"a": "x"}, normalise={"strip": False}).passed


def test_elements_beyond_the_end_of_an_expected_list_are_unexpected() -> None:
    answer = {"a": [1, {"x": 2}], "b": [3]}
    fields = {"a.0": 1, "a.1.x": 1}
    assert grade({"a": [1, {"x": 2}]}, answer, fields=fields).passed
    for output in (
        {"a": [1, {"x": 2}, 3]},
        {"a": [1, {"x": 2, "y": 3}]},
        {"a": [1, {"x": 2}], "b": [3, 4]},
    ):
        result = grade(output, answer, fields=fields)
        assert not result.passed
        assert result.subscores["fields"] == pytest.approx(2 / 3)
        assert grade(output, answer, fields=fields, unexpected="ignore").passed


@pytest.mark.parametrize("unexpected", ["refuse", "ignore"])
def test_a_key_is_not_a_position_in_a_list(unexpected: str) -> None:
    options: dict[str, Any] = {"fields": {"a.0": 1}, "unexpected": unexpected}
    assert grade({"a": [1]}, {"a": [1]}, **options).passed
    assert grade({"a": {"0": 1}}, {"a": {"0": 1}}, **options).passed
    assert grade({"a": {"0": 1}}, {"a": [1]}, **options).status is Status.FAILED
    assert grade({"a": [1]}, {"a": {"0": 1}}, **options).status is Status.FAILED


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.lists(st.integers(0, 3), max_size=6))
def test_a_list_whose_every_element_is_listed_must_be_equal(
    wanted: list[int], found: list[int]
) -> None:
    fields = {f"a.{position}": 1 for position in range(len(wanted))}
    assert grade({"a": found}, {"a": wanted}, fields=fields).passed == (found == wanted)


@pytest.mark.parametrize("escaped", [True, False])
def test_keys_that_look_the_same_are_the_same(escaped: bool) -> None:
    composed, split = "caf\u00e9", "cafe\u0301"
    for one, other in ((composed, split), (split, composed), ("a\u200bb", "ab")):
        output = json.dumps({one: {"in": [{one: 1}]}}, ensure_ascii=escaped)
        answer = {other: {"in": [{other: 1}]}}
        assert grade(output, answer).passed
        assert grade(output, answer, fields={f"{one}.in.0.{one}": 1}).passed
        reference = build({"type": "json_match"}).reference({"answer": answer})
        assert reference == json.dumps(answer, ensure_ascii=False)


def test_two_keys_that_look_the_same_are_malformed() -> None:
    both = {"caf\u00e9": 1, "cafe\u0301": 1}
    for output in (both, {"a": [both]}):
        result = grade(output, {"caf\u00e9": 1}, unexpected="ignore")
        assert (result.status, result.score) == (Status.FAILED, 0.0)
    assert grade({}, {"a": both}).error_kind == "item"
    with pytest.raises(GraderConfigError, match="looks the same"):
        build({"type": "json_match", "fields": both})
