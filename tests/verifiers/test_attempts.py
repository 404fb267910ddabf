"""Attempts to call, in texts that were made to stall whoever reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers.attempts import attempts_call
from verifiers.folding import folds, squeezed

PIECES = [
    *"(){}[]<>\"'\\:=,.#/*&a -_|`;",
    *('{"', "a(", "a (", "f(a=", "a=", "a:", "{a:", "/*", "//", "<!--", "<tool", "\\u", "\\n"),
    *("&a;", "&#1", "\\\\u", "x\\"),
    *("zzz", "zzz ", "zzz (", "zzz (a ", "{zzz", "a.call(", "call(a", "a\n(", "a\u0301\u0316"),
    *("\uff08", "name:", '"name": ', '"""', "a[", "a{", "a<", "\uff9e", "\ufdfa", "\\ud83d\\ude00"),
]  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("begin", ["", "{"])
def test_a_long_row_of_pieces_is_looked_at_in_linear_time(piece: str, begin: str) -> None:
    # What took quadratic time would take a minute: the test would not end within its time.
    attempts_call(begin + piece * (65_536 // len(piece)), ("none_such", "zzy"))


@pytest.mark.parametrize("inside", ["off(hall)", "{name: off}", '"off"'])
def test_ten_thousand_brackets_or_sixty_thousand_quotes_hide_nothing(inside: str) -> None:
    for around in ("{" * 10_000, "[{(" * 10_000, '{"' + '"' * 60_000, '{"a":' * 10_000):
        assert attempts_call(around + inside, ["off"])


@given(HOSTILE_TEXT, HOSTILE_TEXT, st.booleans())
def test_no_text_around_an_attempt_hides_it(before: str, after: str, only: bool) -> None:
    for attempt in (" off(hall)", ' {"tool": "off", "args": {}}', " off[area=hall]"):
        assert attempts_call(f"{before}{attempt} {after}", ["off"], only=only)


@given(st.text(alphabet="abc XYZ_.,!?'-\n"))
def test_text_without_brackets_and_signs_attempts_nothing(text: str) -> None:
    assert not attempts_call(text, ["a", "b", "abc"])


@given(st.text())
def test_what_is_folded_stays_so(text: str) -> None:
    for one in folds(text):
        assert "\\" not in one and "\u200b" not in one
        assert squeezed(squeezed(one)) == squeezed(one)
