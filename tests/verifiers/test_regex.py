"""`regex` against Python's `re`, and its templates."""

import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from verifiers import Grade, Grader, GraderConfigError, Sample, Status, build
from verifiers.texts import normal

TEXT = st.text(alphabet="aAb .é\n", max_size=6)


def regex(pattern: str, **more: Any) -> Grader:
    """Build a regex grader."""
    return build({"type": "regex", "pattern": pattern, **more})


def grade(grader: Grader, text: str, item: dict[str, Any] | None = None) -> Grade:
    """Grade a text."""
    return grader.grade(Sample(output_text=text), item or {})


@pytest.mark.parametrize("pattern", ["a+b", "^a.?$", "(a|b)(é)?", "[^a]", r"\.", "a *b"])
@given(text=TEXT, ignore_case=st.booleans(), strip=st.booleans())
def test_each_mode_is_the_search_it_names(
    pattern: str, text: str, ignore_case: bool, strip: bool
) -> None:
    # RE2's "$" is the end of the text; Python's also stands before a last line break.
    python = re.compile(pattern.replace("$", r"\Z"), re.IGNORECASE if ignore_case else 0)
    searched = text.strip() if strip else text
    for match, function in (("search", python.search), ("whole", python.fullmatch)):
        for expect in ("match", "no_match"):
            grader = regex(
                pattern, match=match, expect=expect, ignore_case=ignore_case, strip=strip
            )
            result = grade(grader, text)
            assert result.passed == ((function(searched) is not None) == (expect == "match"))
            assert result.score == float(result.passed)


@given(st.text(max_size=8).filter(str.strip), st.text(max_size=8))
def test_a_field_of_the_item_is_found_literally(answer: str, text: str) -> None:
    # What other texts count as is the normal form's business (`test_texts`).
    assume(all(normal(one) == one for one in (answer, text, text + answer)))
    grader = regex("{{item.answer}}", strip=False)
    assert grade(grader, text, {"answer": answer}).passed == (answer in text)
    assert grade(grader, text + answer, {"answer": answer}).passed


def test_a_field_of_the_item_can_be_part_of_the_expression() -> None:
    grader = regex("^{{item.answer}}$", item_text="pattern")
    assert grade(grader, "aaa", {"answer": "a+"}).passed
    assert not grade(grader, "a+", {"answer": "a+"}).passed
    assert grade(regex("^{{item.answer}}$"), "a+", {"answer": "a+"}).passed
    assert grade(regex("{{item.n}} km"), "about 42 km", {"n": 42}).passed


@pytest.mark.parametrize(
    "answer", ["(", "(?=a)", "a{1001}", "a" * 3000, "", " ", None, r"\pL{900}"]
)
def test_a_broken_expression_of_the_item_is_errored(answer: Any) -> None:
    grader = regex("{{item.answer}}", item_text="pattern", example="a")
    result = grade(grader, "a", {"answer": answer})
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    assert grader.reference({"answer": answer}) is None


@pytest.mark.parametrize("answer", ["", " \n", None])
def test_nothing_passes_by_containing_a_blank_field(answer: Any) -> None:
    result = grade(regex("{{item.answer}}"), "x", {"answer": answer})
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")


def test_the_example_is_the_reference_where_it_passes() -> None:
    grader = regex("(?i)the answer is {{item.answer}}", example="The answer is {{item.answer}}.")
    assert grader.reference({"answer": "4+4"}) == "The answer is 4+4."
    assert grader.reference({}) is None
    assert regex("a").reference({}) is None
    assert regex("a", example="b").reference({}) is None
    assert regex("a", example="{{item.other}}").reference({}) is None


def test_text_that_is_too_long_fails_whatever_is_expected() -> None:
    for expect in ("match", "no_match"):
        for text in ("é" * 16_385, "a" * 1_000_000):
            assert grade(regex("a", expect=expect), text).status is Status.FAILED


def test_a_part_of_the_completion_can_be_searched() -> None:
    grader = regex("^[0-9]+$", input="{{sample.output_json.n}}")
    assert grade(grader, '{"n": 42}').passed
    for text in ('{"n": "x"}', '{"m": 1}', "42"):
        assert grade(grader, text).status is Status.FAILED


def test_digits_and_words_are_ascii() -> None:
    assert not grade(regex(r"^\d$"), "٣").passed
    assert not grade(regex(r"^\w$"), "é").passed
    assert grade(regex(r"^\pL$"), "é").passed


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "pattern"),
        ({"pattern": ""}, "pattern"),
        ({"pattern": "("}, "pattern"),
        ({"pattern": "(?=a)"}, "pattern"),
        ({"pattern": "{{sample.output_text}}"}, "pattern"),
        ({"pattern": "{{answer}}"}, "pattern"),
        ({"pattern": "a", "input": "{{item.a}}"}, "input"),
        ({"pattern": "a", "example": "{{sample.output_text}}"}, "example"),
        ({"pattern": "a", "match": "prefix"}, "match"),
        ({"pattern": "a", "flags": "i"}, "flags"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "regex", **config})
    assert caught.value.path == path


@given(
    st.sampled_from(["a|b", "a", "a*", "ab|", "(a|b)c?", "[ab]"]),
    st.text(alphabet="abc\n", max_size=4),
    st.sampled_from(["^{}$", "c{}", "{}c", "{}{}"]),
)
def test_the_expression_of_an_item_is_one_of_its_own(item: str, text: str, around: str) -> None:
    grader = regex(around.replace("{}", "{{item.x}}"), item_text="pattern", strip=False)
    python = re.compile(around.replace("{}", f"(?:{item})").replace("$", r"\Z"))
    assert grade(grader, text, {"x": item}).passed == (python.search(text) is not None)


def test_an_item_cannot_close_the_brackets_around_its_expression() -> None:
    result = grade(regex("^{{item.x}}$", item_text="pattern"), "a", {"x": "a)|(?:b"})
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")


def test_white_space_around_an_item_is_ignored_as_that_around_the_text_is() -> None:
    for match in ("search", "whole"):
        assert grade(regex("{{item.x}}", match=match), " Paris ", {"x": " Paris\n"}).passed
    assert not grade(regex("{{item.x}}", strip=False), "Paris", {"x": "Paris "}).passed


def test_texts_that_look_the_same_are_the_same() -> None:
    for pattern in ("^caf\u00e9$", "^cafe\u0301$", "^{{item.x}}$"):
        for text in ("caf\u00e9", "cafe\u0301", "ca\u00adf\u00e9"):
            assert grade(regex(pattern), text, {"x": "cafe\u0301"}).passed


@given(
    st.sampled_from(["ab", "a", "a.b", "a|b", "()", "[a]"]),
    st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "+?", "|b", ""]),
    st.text(alphabet="ab.|()[]", max_size=8),
)
def test_what_repeats_an_item_repeats_all_of_it(item: str, repeat: str, text: str) -> None:
    python = re.compile(f"x(?:{re.escape(item)}){repeat}y")
    grader = regex(f"x{{{{item.x}}}}{repeat}y")
    for body in (text, item, item * 2, item * 3, ""):
        found = python.search(f"x{body}y") is not None
        assert grade(grader, f"x{body}y", {"x": item}).passed == found


def test_in_a_class_an_item_is_its_characters() -> None:
    grader = regex("^[{{item.x}}*]+$")
    assert grade(grader, "b*a", {"x": "ab"}).passed
    assert not grade(grader, "(ab)", {"x": "ab"}).passed
