"""Calls as lines, in the documented form and hidden in others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers import Sample
from verifiers.calls import read_call, read_calls, read_everything
from verifiers.readings import Reading, Shape

CALL = "off(area=den)"
HIDDEN = [
    *("Sure: " + CALL, "- " + CALL, f"`{CALL}`", "off (area=den)", f"[{CALL}]", "x = " + CALL),
    *("none; " + CALL, "none\r" + CALL, "\u200b" + CALL, "\ufeff" + CALL, "x=" + CALL, "1." + CALL),
    *("o\u200bff(area=den)", "off\u200b(area=den)", "off\n(area=den)", "1. " + CALL, "→" + CALL),
    *("none\u2028" + CALL, "(" + CALL + ")", '"' + CALL + '"', "so off( area = den )."),
    *("I do off ( area=den ) now.", "**" + CALL + "**", "é" + CALL, "-" + CALL, "none " + CALL),
]


def everything(text: str, names: set[str] | None = None) -> tuple[Reading, ...]:
    """Read what is in a text in any form."""
    return read_everything(Sample(output_text=text), "call", False, names)


@pytest.mark.parametrize("text", HIDDEN)
def test_a_call_behind_other_words_or_signs_is_found_with_its_arguments(text: str) -> None:
    assert everything(text) == (Reading("off", (("area", "den"),), Shape.SURROUNDED),)
    assert everything(text, {"off"}) == everything(text)


@pytest.mark.parametrize("text", ["I do off()", "- off ( )", 'so off("den")', "- off({'a': 1})"])
def test_calls_without_arguments_or_with_others_than_key_and_value_are_found(text: str) -> None:
    assert [one.name for one in everything(text)] == ["off"]


@given(st.sampled_from(HIDDEN), HOSTILE_TEXT, HOSTILE_TEXT)
def test_no_text_around_a_call_hides_it(call: str, before: str, after: str) -> None:
    assert everything(before + call + after)


@pytest.mark.parametrize(
    "text",
    [
        "I did it (really).",
        "The light(s) are on; see (a) and (b).",
        "Off (as you asked).",
        "It is on (a == b), area=den.",
        "Turn it off (area: den)",
        "f(x) and g(1, 2) are functions.",
        "3 (x=1), - (y=2), (z=3)",
        "[off](https://example.org)",
        "=> ()",
        "",
    ],
)
def test_brackets_in_a_sentence_are_no_call(text: str) -> None:
    assert everything("Well: " + text) == ()


def test_where_all_functions_are_known_only_theirs_are_called_in_other_forms() -> None:
    text = "see the sum (x=3), print() and home.off(area=den)"
    assert [one.name for one in everything(text)] == ["sum", "print", "home.off"]
    assert [one.name for one in everything(text, {"off", "on"})] == ["off"]
    assert [one.name for one in everything("other()", {"off"})] == ["other"]


def test_calls_in_every_form_are_read_in_the_order_of_the_text() -> None:
    text = "a() and b()\nso c() or\nd()\n- e()"
    assert [one.name for one in everything(text)] == ["a", "b", "c", "d", "e"]
    documented = read_calls(Sample(output_text=text), "call", True)
    assert [one.name for one in documented] == ["a", "d"]


def test_what_a_call_says_is_no_call_of_its_own() -> None:
    text = "say(text=\"off(area=den)\", also='f()')"
    assert [one.name for one in everything(text)] == ["say"]
    assert everything(text)[0].shape is Shape.WHOLE


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_hidden_call_after_the_right_one_is_never_ignored(hidden: str) -> None:
    for text in (f"{CALL}\n{hidden}", f"{CALL} {hidden}"):
        reading = read_call(Sample(output_text=text), "call", True)
        assert reading is not None and reading.shape is not Shape.WHOLE
    plain = read_call(Sample(output_text=CALL + "\nDone (really)."), "call", True)
    assert plain is not None and plain.shape is Shape.WHOLE


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "a(", "(", "a (", " (", "a=", "a(b=", "-a(b=[", "-a(b='", '-a(b="', "-a(b={", "a "),
        *("-a(b=1,", "1", "a\n(", "a.", "-a()", "- a(b=1)", "a(\u200b", "\r", "-a(b=\\"),
    ],
)
def test_a_long_row_of_beginnings_of_calls_is_read_in_linear_time(piece: str) -> None:
    for begin in ("", "-f(b=1, "):
        everything(begin + piece * (20_000 // len(piece)))
