"""Building, identity and schemas of every grader type."""

import hashlib
import json
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON
from verifiers import Grade, GraderConfigError, Sample, Status, build, grader_hash, schemas
from verifiers.registry import FAMILIES

CALL = {"name": "f", "arguments": {"a": ["x", "y"], "b": [1]}}
ITEM = {
    "answer": "yes",
    "object": {"a": 1, "b": {"c": ["x"]}},
    "call": CALL,
    "lamps": {"lamps": {"x": {"on": True}}},
    "constraints": {"polite": {"kind": "starts_with", "texts": ["yes"]}},
    "code": "def f(x):\n    return x + 1",
}
SOURCE = """
def grade(sample, item):
    return float(sample["output_text"] == str(item.get("answer")))

def reference(item):
    return item.get("answer")
"""
LAMPS = {"lamps": {"x": {"on": False}, "y": {"on": True}}}
ACTIONS = {
    "f": {
        "parameters": {"a": {}},
        "effects": [{"op": "toggle", "path": "lamps.{a}.on"}],
    }
}
TESTS = ["assert f(1) == 2", {"call": "f(2)", "equals": 3}]
CONFIGS: list[dict[str, Any]] = [
    {"type": "string_check"},
    {"type": "string_check", "operation": "ilike"},
    {"type": "string_check", "input": "{{item.answer}}", "reference": "{{sample.output_text}}"},
    {"type": "regex", "pattern": "^{{item.answer}}$", "example": "{{item.answer}}"},
    {"type": "text_similarity", "evaluation_metric": "rouge_l", "pass_threshold": 1},
    {"type": "json_schema", "schema": {"required": ["a", "b"]}, "example": "object"},
    {"type": "numeric", "reference": "object.a", "unit": "km", "find": "whole"},
    {"type": "math"},
    {"type": "math", "find": "boxed", "worked_out": False},
    {"type": "arithmetic", "target": "object.a", "use": "any"},
    {"type": "json_match", "reference": "object"},
    {"type": "json_match", "reference": "object", "fields": {"b.c": 2, "a": 1}},
    {"type": "function_call"},
    {"type": "function_call", "syntax": "call", "surrounding": "ignore"},
    {"type": "function_call", "syntax": "call", "calls": "in_order"},
    {"type": "function_call", "calls": "any_order", "surrounding": "ignore"},
    {"type": "python", "source": SOURCE},
    {"type": "unit_tests", "tests": TESTS, "reference": "code"},
    {
        "type": "instruction",
        "constraints": {"short": {"kind": "length", "unit": "words", "maximum": 3}},
        "reference": "constraints",
        "example": "{{item.answer}}",
    },
    {"type": "state", "start": LAMPS, "actions": ACTIONS, "reference": "lamps"},
    {"type": "multi", "graders": {"only": {"type": "function_call"}}, "weights": {"only": 2}},
    {
        "type": "multi",
        "graders": {"call": {"type": "function_call"}, "text": {"type": "function_call"}},
        "calculate_output": "(call + text) / 2",
    },
]


def test_every_type_is_tried_here_and_has_a_schema() -> None:
    assert {config["type"] for config in CONFIGS} == set(FAMILIES) == set(schemas())
    for name, schema in schemas().items():
        assert schema["additionalProperties"] is False
        assert schema["properties"]["type"]["const"] == name
        json.dumps(schema)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_reference_passes(config: dict[str, Any]) -> None:
    grader = build(config)
    text = grader.reference(ITEM)
    assert text is not None
    assert grader.grade(Sample(output_text=text), ITEM).passed


@pytest.mark.parametrize("config", CONFIGS)
@given(text=HOSTILE_TEXT)
def test_a_hostile_completion_passes_or_fails_but_never_errs(
    config: dict[str, Any], text: str
) -> None:
    grade = build(config).grade(Sample(output_text=text), ITEM)
    assert grade.status in (Status.PASSED, Status.FAILED)
    assert grade.score is not None and 0 <= grade.score <= 1
    assert grade.passed == (grade.score == 1)


BOMBS = {
    "brackets": "[" * 65_536,
    "objects": '{"name":' * 8_000,
    "calls with lists": "f(" + "a=[[[]]]," * 7_000,
    "quotes": '"' * 65_536,
    "escaped quotes": '{"' + '\\"' * 32_000,
    "single quotes": "f(a='" + "\\'" * 32_000,
    "digits": '{"a": ' + "9" * 65_000 + "}",
    "exponent": "f(a=1e" + "9" * 65_000 + ")",
    "white space": "{" + " " * 65_000 + '"name"',
    "call white space": "f(a" + " " * 65_000 + "b",
    "letters": "f" * 65_536,
    "arguments": "f(" + "a=1," * 16_000,
    "names": '{"name":"' * 7_000,
    "one megabyte": "f(a=" + "x" * 1_000_000 + ")",
    "one megabyte of json": '{"a": "' + "x" * 1_000_000 + '"}',
    "accents": "a" + "\u0301\u0316" * 32_000,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
@pytest.mark.parametrize("config", CONFIGS)
def test_a_bomb_fails(config: dict[str, Any], bomb: str) -> None:
    assert build(config).grade(Sample(output_text=bomb), ITEM).status is Status.FAILED


@pytest.mark.parametrize("config", CONFIGS)
@given(item=st.dictionaries(st.sampled_from(["answer", "object", "call", "x"]), JSON))
def test_any_item_is_graded_or_errored_as_item(
    config: dict[str, Any], item: dict[str, Any]
) -> None:
    grader = build(config)
    grade = grader.grade(Sample(output_text="x"), item)
    assert grade.error_kind in (None, "item")
    reference = grader.reference(item)
    if grade.status is Status.ERRORED:
        assert reference is None
    elif reference is not None:
        assert grader.grade(Sample(output_text=reference), item).passed


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_fields_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({**config, "surprise": 1})
    assert caught.value.path == "surprise"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "type"),
        ({"type": None}, "type"),
        ({"type": ["string_check"]}, "type"),
        ({"type": "String_check"}, "type"),
        ([], ""),
        ("string_check", ""),
        ({"type": "string_check", "strip": "yes"}, "strip"),
        ({"type": "string_check", "operation": "regex"}, "operation"),
        ({"type": "string_check", "reference": "{{answer}}"}, "reference"),
        ({"type": "string_check", "name": 1}, "name"),
        ({"type": "json_match", "reference": "a b"}, "reference"),
        ({"type": "json_match", "fields": {}}, "fields"),
        ({"type": "json_match", "fields": {"a..b": 1}}, "fields"),
        ({"type": "json_match", "fields": {"a": 0}}, "fields.a"),
        ({"type": "json_match", "fields": {"a": True}}, "fields.a"),
        ({"type": "json_match", "parseable_weight": 1}, "parseable_weight"),
        ({"type": "json_match", "normalise": {"case": True}}, "normalise.case"),
        ({"type": "function_call", "weights": {"name": -1}}, "weights.name"),
        (
            {"type": "function_call", "weights": {"parseable": 0, "name": 0, "arguments": 0}},
            "weights",
        ),
        ({"type": "function_call", "reference": "{{sample.output_text}}"}, "reference"),
        ({"type": "function_call", "syntax": "xml"}, "syntax"),
        ({"type": "json_match", "parseable_weight": float("nan")}, ""),
        ({"type": "string_check", "name": "\ud800"}, ""),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: Any, path: str) -> None:
    for refuse in (build, grader_hash):
        with pytest.raises(GraderConfigError) as caught:
            refuse(config)
        assert caught.value.path == path
        assert str(caught.value) == (
            f"{path}: {caught.value.message}" if path else caught.value.message
        )


def test_a_configuration_nested_without_end_is_refused() -> None:
    config: dict[str, Any] = {"type": "string_check"}
    for _ in range(10_000):
        config = {"type": "multi", "graders": {"a": config}}
    with pytest.raises(GraderConfigError, match="nested"):
        build(config)


@given(JSON, st.sampled_from(sorted(FAMILIES)))
def test_any_json_builds_or_is_a_config_error(value: Any, name: str) -> None:
    for config in (value, {"type": name, "reference": value, "graders": value, "fields": value}):
        try:
            build(config)
        except GraderConfigError as error:
            assert error.message


@pytest.mark.parametrize("config", CONFIGS)
def test_the_hash_is_that_of_the_canonical_full_configuration(config: dict[str, Any]) -> None:
    full = build(config).describe()
    text = json.dumps(full, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert grader_hash(config) == hashlib.sha256(text.encode()).hexdigest()
    assert grader_hash(full) == grader_hash(config)
    assert build(full).describe() == full


@pytest.mark.parametrize("config", CONFIGS)
def test_the_hash_ignores_the_order_of_keys(config: dict[str, Any]) -> None:
    items = list(config.items())
    random.Random(0).shuffle(items)
    assert grader_hash(dict(items)) == grader_hash(config)


def test_different_graders_have_different_hashes() -> None:
    assert len({grader_hash(config) for config in CONFIGS}) == len(CONFIGS)
    written_out = {"type": "function_call", "weights": {"name": 0.4}, "reference": "{{item.call}}"}
    assert grader_hash(written_out) == grader_hash({"type": "function_call"})


@pytest.mark.parametrize("config", CONFIGS)
def test_grading_is_pure_and_safe_between_threads(config: dict[str, Any]) -> None:
    grader = build(config)
    texts = [grader.reference(ITEM) or "", "", "f(a=x", '{"name": "f"}'] * 25
    before = json.dumps(ITEM)

    def timeless(text: str) -> Grade:
        return grader.grade(Sample(output_text=text), ITEM).model_copy(update={"seconds": 0.0})

    alone = [timeless(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(timeless, texts)) == alone
    assert json.dumps(ITEM) == before


@pytest.mark.parametrize("config", CONFIGS)
def test_graders_and_grades_can_be_sent_to_another_process(config: dict[str, Any]) -> None:
    grader = build(config)
    sent = pickle.loads(pickle.dumps(grader))
    assert sent == grader
    assert sent.reference(ITEM) == grader.reference(ITEM)
    grade = sent.grade(Sample(output_text="x"), ITEM)
    assert pickle.loads(pickle.dumps(grade)) == grade
    assert Grade.model_validate_json(grade.model_dump_json()) == grade
