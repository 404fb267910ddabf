"""Strict JSON from a completion."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON, OBJECTS
from verifiers.parsing import Malformed, closing, find_object, parse_json
from verifiers.values import MAX_DEPTH

SPACE = st.text(alphabet=" \n\t", max_size=3)


@given(OBJECTS, SPACE, SPACE, st.booleans())
def test_an_object_alone_is_read_as_json_reads_it(
    value: dict[str, Any], before: str, after: str, ascii_only: bool
) -> None:
    found = find_object(before + json.dumps(value, ensure_ascii=ascii_only) + after)
    assert found.alone
    assert json.dumps(found.value) == json.dumps(value)


@given(OBJECTS, st.text(alphabet="abc ,:", max_size=9), st.text(alphabet="abc }]", max_size=9))
def test_text_around_an_object_is_noticed(value: dict[str, Any], before: str, after: str) -> None:
    found = find_object(before + json.dumps(value) + after)
    assert found.alone == (not before.strip() and not after.strip())
    assert json.dumps(found.value) == json.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "none",
        "[1]",
        "{",
        '{"a": 1, "a": 1}',
        '{"a": {"b": 1, "b": 2}}',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": ' + "9" * 1001 + "}",
        '{"a": ٣}',
        '{"a": −1}',
        "{'a': 1}",
        '{"a": 01}',
        '{"a": 1,}',
        '{"a": "\n"}',
        '{"a": "x',
        '{"a": "\\x"}',
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        '{"a":' * 20_000,
        '{"a":' + "[" * 60_000,
    ],
)
def test_what_is_not_strict_json_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        find_object(text)


def test_the_depth_limit_itself_is_allowed_and_brackets_in_strings_do_not_count() -> None:
    deep = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert find_object(deep).alone
    assert find_object(json.dumps({"a": '[{"\\' * 500})).alone
    assert find_object('{"a": [' + ",".join(["[]"] * 500) + "]}").alone


@given(HOSTILE_TEXT)
def test_any_text_is_an_object_or_malformed(text: str) -> None:
    try:
        found = find_object(text)
    except Malformed:
        return
    assert isinstance(found.value, dict)


@given(st.text(alphabet='[{}]"\\a', max_size=300).map("[".__add__))
@example("[" * 65 + "]" * 65)
@example("[" * 64 + "]" + '"[\\"[' + '"' + "]" * 63)
@example("[" * 64 + "]" + '"[\\"[' + '"{{' + "]" * 65)
@example("[" * 64 + '"{{')
def test_a_bracket_is_closed_where_a_plain_scanner_says_so(text: str) -> None:
    depth = deepest = end = 0
    quoted = escaped = False
    for place, char in enumerate(text, start=1):
        if quoted:
            quoted = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        deepest = max(deepest, depth)
        if depth == 0:
            end = place
            break
    before = '"' + "]" * len(text)
    if deepest > MAX_DEPTH or not end:
        with pytest.raises(Malformed):
            closing(before + text, len(before))
    else:
        assert closing(before + text, len(before)) == len(before) + end


@pytest.mark.parametrize("before", ["", '"', 'say "', "[" * 99])
def test_a_stray_quote_or_bracket_before_an_object_changes_nothing_about_its_depth(
    before: str,
) -> None:
    assert find_object(before + '{"a": 1}').value == {"a": 1}
    with pytest.raises(Malformed):
        find_object(before + '{"a":' * 10_000 + "1" + "}" * 10_000)


@given(JSON, SPACE, SPACE)
def test_a_text_that_is_one_json_value_is_read_as_json_reads_it(
    value: Any, before: str, after: str
) -> None:
    assert json.dumps(parse_json(before + json.dumps(value) + after)) == json.dumps(value)


@pytest.mark.parametrize(
    "text", ["", " ", "1 2", "{} {}", "{}.", "yes", "NaN", "[" * 70 + "]" * 70]
)
def test_a_text_that_is_not_one_json_value_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        parse_json(text)
