"""Templates over the item and the completion."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON, KEYS, OBJECTS
from verifiers import Sample, ToolCall
from verifiers.base import ItemError, OutputError
from verifiers.templates import item_value, parse_path, parse_template

PLAIN = st.text(alphabet=st.characters(exclude_characters="{}", codec="utf-8"), max_size=9)


@given(PLAIN, PLAIN, PLAIN, st.text(max_size=9), st.text(max_size=9))
def test_filling_in_replaces_each_expression_once(
    before: str, between: str, after: str, answer: str, output: str
) -> None:
    template = parse_template(f"{before}{{{{ item.a }}}}{between}{{{{sample.output_text}}}}{after}")
    bound = template.bind({"a": answer})
    assert template.uses_output and template.constant is None and bound.text is None
    assert bound.render(Sample(output_text=output)) == before + answer + between + output + after


@given(PLAIN)
def test_a_text_without_expressions_is_constant(text: str) -> None:
    assert parse_template(text).constant == text
    assert parse_template(text).bind({}).text == text


def test_expressions_inside_values_are_plain_text() -> None:
    bound = parse_template("{{item.a}}{{sample.output_text}}").bind({"a": "{{item.b}}"})
    assert bound.render(Sample(output_text="{{item.a}}")) == "{{item.b}}{{item.a}}"


@given(OBJECTS.filter(bool))
def test_values_that_are_not_text_appear_as_json(value: dict[str, Any]) -> None:
    text = parse_template("{{ item.list.0 }}").bind({"list": [value]}).text
    assert text is not None and json.loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "{{item}}",
        "{{ item. }}",
        "{{other.a}}",
        "{{}}",
        "{{item.a",
        "item.a}}",
        "{{item.a b}}",
        "{{sample.choices}}",
        "{{sample.output_text.a}}",
        "{{sample.output_json.}}",
        "{{sample.output_json[a]}}",
        "{{sample.output_json[01]}}",
        "{{sample.output_tools[-1]}}",
        "{{sample.output_text | output_yaml}}",
        "{{sample.output_json | output_text}}",
        "{{item..a}}",
        "{{{item.a}}}",
        "{{ {{item.a}} }}",
        "{{item.é}}",
    ],
)
def test_a_wrong_expression_is_refused_when_parsed(text: str) -> None:
    with pytest.raises(ValueError, match=r"balanced|neither"):
        parse_template(text)


@pytest.mark.parametrize("item", [{}, {"a": {}}, {"a": {"b": None}}, {"a": "text"}, {"a": [1]}])
def test_a_missing_or_null_field_is_an_item_error(item: dict[str, Any]) -> None:
    with pytest.raises(ItemError, match=r"a\.b"):
        parse_template("{{ item.a.b }}").bind(item)


def test_list_positions_are_written_in_brackets_or_after_a_dot() -> None:
    for text in ("{{ item.a[1].b }}", "{{ item.a.1.b }}"):
        assert parse_template(text).bind({"a": [0, {"b": "x"}]}).text == "x"
    assert parse_path("{{item.a[1].b}}") == parse_path("a.1.b") == ("a", "1", "b")


def rendered(template: str, sample: Sample) -> str:
    """Fill a template that needs no item."""
    return parse_template(template).bind({}).render(sample)


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """List every value inside a JSON value, with its path as a template spells it."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        inner = [(f"{path}.{key}", one) for key, one in value.items()]
    elif isinstance(value, list):
        inner = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
    return [(path, value), *(leaf for place, one in inner for leaf in leaves(one, place))]


@given(JSON, st.sampled_from(["sample.output_json", "sample.output_text | output_json"]))
def test_every_value_of_a_json_completion_is_reached_by_its_path(value: Any, root: str) -> None:
    sample = Sample(output_text=f" {json.dumps(value)}\n")
    for path, leaf in leaves(value):
        template = f"<{{{{ {root}{path} }}}}>"
        if leaf is None:
            with pytest.raises(OutputError):
                rendered(template, sample)
        else:
            shown = rendered(template, sample)[1:-1]
            assert shown == leaf if isinstance(leaf, str) else json.loads(shown) == leaf


@pytest.mark.parametrize(
    "text",
    ["", "no json", '{"a": 1} {"a": 1}', '{"a": 1, "a": 1}', '{"b": 1}', '{"a": null}', "[1]",
     '{"a": NaN}', '{"a": "\\ud800"}', '{"a": ' + "[" * 500 + "]" * 500 + "}"],
)  # fmt: skip
def test_what_the_completion_lacks_is_an_output_error(text: str) -> None:
    with pytest.raises(OutputError):
        rendered("{{sample.output_json.a}}", Sample(output_text=text))


NAME = "{{ sample.output_tools[0].function.name }}"
ARGUMENTS = "{{ sample.output_tools[0].function.arguments }}"


@given(KEYS, OBJECTS, st.sampled_from(["{}", "[{}]", "<tool_call>\n{}\n</tool_call>", "Ok: {}!"]))
def test_tool_calls_read_the_same_whether_parsed_or_spelled_in_the_text(
    name: str, arguments: dict[str, Any], around: str
) -> None:
    spelled = json.dumps({"name": name, "arguments": arguments})
    parsed = (ToolCall(name=name, arguments=arguments),)
    for sample in (
        Sample(output_text=around.replace("{}", spelled)),
        Sample(output_text='{"name": "other", "arguments": {}}', output_tools=parsed),
    ):
        assert rendered(NAME, sample) == name
        assert json.loads(rendered(ARGUMENTS, sample)) == arguments
        with pytest.raises(OutputError):
            rendered("{{ sample.output_tools[1].function.name }}", sample)


def test_tool_calls_of_a_text_are_numbered_in_order_and_broken_ones_are_none() -> None:
    text = '{"name": "f", "arguments": {}} {"name": "g", "arguments": {}} {"name": "h", "argu'
    names = "{{sample.output_text|output_tools[1].function.name}}"
    assert rendered(names, Sample(output_text=text)) == "g"
    with pytest.raises(OutputError):
        rendered(names.replace("1", "2"), Sample(output_text=text))


@given(HOSTILE_TEXT, st.sampled_from(["output_json", "output_json.a", "output_tools[0]"]))
def test_any_completion_renders_or_is_an_output_error(text: str, variable: str) -> None:
    with suppress(OutputError):
        rendered(f"{{{{sample.{variable}}}}}", Sample(output_text=text)).encode()


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_a_path_reads_the_same_bare_and_as_an_expression(steps: list[str]) -> None:
    path = ".".join(steps)
    for text in (path, f"{{{{item.{path}}}}}", f"{{{{ item.{path}  }}}}"):
        assert parse_path(text) == tuple(steps)


@pytest.mark.parametrize("text", ["", "a..b", ".", "a b", "{{a}}", "{{sample.output_text}}", "é"])
def test_what_is_not_a_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        parse_path(text)


def test_a_null_field_is_a_value_and_a_missing_one_is_an_item_error() -> None:
    assert item_value({"a": None}, ("a",)) is None
    with pytest.raises(ItemError, match="no field 'b'"):
        item_value({"a": None}, ("b",))
