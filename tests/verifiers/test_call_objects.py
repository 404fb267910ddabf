"""Calls as JSON objects, in the documented form and hidden in others."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON, KEYS
from verifiers import Sample
from verifiers.calls import read_call, read_calls, read_everything
from verifiers.readings import Reading, Shape

CALL = '{"name": "off", "arguments": {"area": "den"}}'
TURNED = '{"arguments": {"area": "den"}, "name": "off"}'
TEXT_ARGUMENTS = json.dumps({"name": "off", "arguments": json.dumps({"area": "den"})})

PARSEABLE = [
    *("{x} " + CALL, "{x} " + TURNED, 'I write "{" first. ' + CALL, '{"a": {x} ' + CALL),
    *(f'{{"tool_calls": [{CALL}]}}', f'{{"type": "function", "function": {CALL}}}'),
    f'{{"tool_calls": [{{"id": "1", "type": "function", "function": {TEXT_ARGUMENTS}}}]}}',
    *(f'{{"a": {CALL}}}', f'{{"a": {TURNED}, "b": 1}}', f'[{{"a": [[{CALL}]]}}]', "{" * 99 + CALL),
    *('{"name": "assistant", "tool_calls": [' + CALL + "]}", '5" pipe: ' + CALL, f"```{CALL}```"),
]
BROKEN = [
    *("{'name': 'off', 'arguments': {'area': 'den'}}", '{name: "off", arguments: {area: "den"}}'),
    *("{'arguments': {'area': 'den'}, 'name': 'off'}", "{x, " + TURNED[1:-1], CALL[:-2]),
    *(json.dumps(CALL), "{“name”: “off”, “arguments”: {}}", "{\u200b" + CALL[1:], CALL[:18]),
    '{"arguments": {"a": 1, "a": 1}, "name": "off"}',
    "{" + TURNED[1:-1] + ", }",
]


def everything(text: str) -> tuple[Reading, ...]:
    """Read what is in a text in any form."""
    return read_everything(Sample(output_text=text), "json", False)


@pytest.mark.parametrize("text", PARSEABLE)
def test_a_call_that_can_be_parsed_is_found_with_its_arguments_wherever_it_is(text: str) -> None:
    found = [one for one in everything(text) if one.name == "off"]
    assert found == [Reading("off", (("area", "den"),), Shape.SURROUNDED)]


@pytest.mark.parametrize("text", BROKEN)
def test_a_call_that_cannot_be_parsed_is_found_by_its_name(text: str) -> None:
    assert everything(text) == (Reading("off", (), Shape.BROKEN),)


@given(st.sampled_from([*PARSEABLE, *BROKEN]), HOSTILE_TEXT, HOSTILE_TEXT)
def test_no_text_around_a_call_hides_it(call: str, before: str, after: str) -> None:
    assert everything(before + call + after)


@given(JSON, st.lists(KEYS | st.integers(0, 2), max_size=6))
def test_a_call_is_found_wherever_it_is_in_a_value(value: Any, path: list[str | int]) -> None:
    inner: Any = json.loads(CALL)
    for step in path:
        inner = {step: inner, "_": value} if isinstance(step, str) else [value] * step + [inner]
    assert (
        Reading("off", (("area", "den"),), Shape.SURROUNDED)
        in everything(json.dumps([{"_": value}, inner]))
        or not path
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"answer": {"name": 5, "arguments": {}}}',
        '{"rooms": [{"name": "den", "lamps": 2}, {"name": "hall"}]}',
        "My name is Ann, and I want no arguments: none.",
        "The {area} is {state}; use {x: 1}.",
        '{"note": "say \\"name\\": \\"x\\" and \\"arguments\\": {}"}',
        "{'name': 'Ann'}",
    ],
)
def test_what_only_looks_a_little_like_a_call_is_none(text: str) -> None:
    assert everything(text) == ()


@pytest.mark.parametrize("text", PARSEABLE[4:11])
@pytest.mark.parametrize("ignore", [False, True])
def test_a_hidden_call_is_not_in_the_documented_form(text: str, ignore: bool) -> None:
    sample = Sample(output_text=text)
    assert read_call(sample, "json", ignore) is None
    assert read_calls(sample, "json", ignore) == ()


def test_text_with_braces_before_a_call_is_text_like_any_other() -> None:
    for before in ("Use {x}: ", "{{area}} ", "{x: [1, 2]}", "}"):
        sample = Sample(output_text=before + CALL)
        ignored, refused = (read_call(sample, "json", ignore) for ignore in (True, False))
        assert ignored == Reading("off", (("area", "den"),), Shape.WHOLE)
        assert refused == Reading("off", (("area", "den"),), Shape.SURROUNDED)


@pytest.mark.parametrize("hidden", [*PARSEABLE, *BROKEN])
def test_a_hidden_call_before_or_after_is_never_ignored(hidden: str) -> None:
    for text in (f"{CALL} {hidden}", f"{hidden} {CALL}"):
        reading = read_call(Sample(output_text=text), "json", True)
        assert reading is None or reading.shape is not Shape.WHOLE


@pytest.mark.parametrize(
    "piece",
    [
        *("{", '{"', '{"a":', '{"a', "{'", '{"name":', '{"name":"', "{}", '{"a":{}', '{"a" ', "{ "),
        *('{"name":"x"', '"name":"x"', "name:'", "arguments:", '{"a":[', "}{", '{"a":1,', "{\\"),
    ],
)
def test_a_long_row_of_beginnings_of_objects_is_read_in_linear_time(piece: str) -> None:
    for tail in ("", "}" * 60):
        everything(piece * (20_000 // len(piece)) + tail)
