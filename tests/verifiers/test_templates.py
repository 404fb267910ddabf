"""Templates over the item and the completion."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import KEYS, OBJECTS
from verifiers.base import ItemError
from verifiers.templates import item_value, parse_path, parse_template

PLAIN = st.text(alphabet=st.characters(exclude_characters="{}", codec="utf-8"), max_size=9)


@given(PLAIN, PLAIN, PLAIN, st.text(max_size=9), st.text(max_size=9))
def test_filling_in_replaces_each_expression_once(
    before: str, between: str, after: str, answer: str, output: str
) -> None:
    template = parse_template(f"{before}{{{{ item.a }}}}{between}{{{{sample.output_text}}}}{after}")
    bound = template.bind({"a": answer})
    assert template.uses_output and template.constant is None and bound.text is None
    assert bound.render(output) == before + answer + between + output + after


@given(PLAIN)
def test_a_text_without_expressions_is_constant(text: str) -> None:
    assert parse_template(text).constant == text
    assert parse_template(text).bind({}).text == text


def test_expressions_inside_values_are_plain_text() -> None:
    bound = parse_template("{{item.a}}{{sample.output_text}}").bind({"a": "{{item.b}}"})
    assert bound.render("{{item.a}}") == "{{item.b}}{{item.a}}"


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
        "{{sample.output_json}}",
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
