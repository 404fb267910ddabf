"""RE2 patterns against Python's `re` where both mean the same, and within their bounds."""

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.patterns import (
    MAX_PATTERN_CHARS,
    MAX_TEXT_BYTES,
    Pattern,
    TextTooLong,
    literal,
    parse_pattern,
    repeated,
)

TEXT = st.text(alphabet="abé.(\n", max_size=8)
ATOMS = st.sampled_from(["a", "b", "é", ".", "[ab]", "[^a]", r"\.", r"\("])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from("*+?")).map(lambda two: f"(?:{two[0]}){two[1]}"),
    ),
    max_leaves=5,
)


@given(PATTERNS, TEXT)
def test_what_both_can_say_means_the_same_as_in_python(source: str, text: str) -> None:
    pattern = parse_pattern(source)
    assert pattern.found_in(text) == (re.search(source, text) is not None)
    assert pattern.is_all_of(text) == (re.fullmatch(source, text) is not None)


@given(st.text(max_size=12), st.text(max_size=3))
def test_a_literal_matches_itself_and_nothing_longer(text: str, more: str) -> None:
    pattern = parse_pattern(literal(text))
    assert pattern.is_all_of(text)
    assert pattern.is_all_of(text + more) == (more == "")
    assert pattern.found_in("x" + text + more)


def test_case_is_ignored_where_asked() -> None:
    assert parse_pattern("été", ignore_case=True).found_in("ÉTÉ")
    assert not parse_pattern("été").found_in("ÉTÉ")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("(", "missing"),
        ("a**", "bad repetition"),
        (r"(a)\1", "invalid escape"),
        ("(?=a)", "invalid perl operator"),
        ("(?<!a)b", "invalid"),
        ("a{1001}", "invalid repetition size"),
        ("((a{100}){10}){10}", "repetition"),
        ("(a?){1000}", "too large"),
        (r"\pL{1000}", "too large"),
        ("(" * 1999, "missing|nest"),
        ("a" * (MAX_PATTERN_CHARS + 1), "longer"),
    ],
)
def test_what_cannot_be_searched_in_linear_time_is_refused(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_pattern(source)


@pytest.mark.parametrize(
    "source", ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*)(.*)(.*)(.*)x", "(x+x+)+y"]
)
def test_classic_catastrophic_patterns_end(source: str) -> None:
    pattern = parse_pattern(source)
    text = "a" * (MAX_TEXT_BYTES - 1) + "!"
    assert not pattern.found_in(text)
    assert not pattern.is_all_of(text)


def test_text_is_bounded_in_bytes() -> None:
    pattern = parse_pattern("é$")
    assert pattern.found_in("é" * (MAX_TEXT_BYTES // 2))
    for search in (pattern.found_in, pattern.is_all_of):
        with pytest.raises(TextTooLong):
            search("é" * (MAX_TEXT_BYTES // 2 + 1))


def test_a_lone_surrogate_is_a_character_like_others() -> None:
    assert parse_pattern("^a.b$").found_in("a\ud800b")


def test_patterns_can_be_sent_to_another_process() -> None:
    pattern = parse_pattern("a+", ignore_case=True)
    sent = pickle.loads(pickle.dumps(pattern))
    assert sent == pattern == Pattern("a+", True)
    assert sent.found_in("xA")


@pytest.mark.parametrize(
    ("before", "in_class"),
    [
        *(("[", True), ("[^", True), ("[]", True), ("[^]", True), ("[[]", False), ("[a]", False)),
        *((r"\[", False), (r"[\]", True), (r"[\]]", False), ("[[:alpha:]", True), ("[:a:]", False)),
        *((r"\Q[\E", False), (r"\Q[", False), ("[[:alpha:]]", False), ("", False), ("a]", False)),
    ],
)
def test_a_gap_is_repeated_by_what_follows_it_outside_of_a_class(
    before: str, in_class: bool
) -> None:
    for after in ("*", "+", "?", "{2}"):
        assert repeated([before, None, after]) == (False, not in_class, False)
    assert repeated([before, None, "a*"]) == (False, False, False)
    assert repeated([before, None]) == (False, False)
