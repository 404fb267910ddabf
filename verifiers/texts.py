"""What can be counted in a text: words, sentences, lines, list items, numbers.

The definitions are simple on purpose, so that they can be told to a user and checked by hand:

* a character is a Unicode code point; white space at both ends of the text does not count;
* a word is what stands between white space, dashes (— – or --), ellipses, or a comma or such with
  a letter after it, and has a letter or digit in it; "well-known" and "1,000" are one;
* a sentence has a letter or digit and ends with . ! ? or … before white space, with 。！？, or with
  its line. An abbreviation such as "Dr. Smith" ends one too; a list's "1." does not;
* a paragraph is a run of lines that are not blank;
* a list item is a line that begins with - * + • or with a number and . or ), then white space.

What looks the same is the same text first: see `normal`, which every grader compares texts by.
Every function is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Literal

Unit = Literal["characters", "words", "sentences", "lines", "paragraphs", "items"]

_ITEM = re.compile(r"\s*(?:[-*+•]|([0-9]{1,9})[.)])\s+(?=\S)")
# Followed by white space or not: that is looked at afterwards, since a lookahead that fails would
# be tried again from every full stop of a long row of them.
_END = re.compile(r"([.!?…]++)[\"'”’)\]»]*+|[。！？]++[”’」』）]*+")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
# What parts words without white space. A comma, colon or such does so before a letter only, which a
# long row of them without a letter is asked about once, at its beginning.
_BETWEEN_WORDS = re.compile(r"\s+|[—–―…]+|-{2,}|\.{2,}|(?<![,;:!?])[,;:!?]++(?=[^\W\d_])")
_ALTERNATIVES = str.maketrans(
    {**dict.fromkeys("‘’‛ʼ＇", "'"), **dict.fromkeys("“”‟„", '"'), **dict.fromkeys("‐‑", "-")}
)
_SPACES = re.compile(r"\s+")
_DIGITS = re.compile(r"[0-9]+(?:[.,:/][0-9]+)*")

# Unicode's Default_Ignorable_Code_Point, but for the two joiners: soft hyphen, zero-width space,
# marks of direction, variation selectors, tags, fillers; and annotation marks. Other characters of
# category Cf, such as the Arabic number sign, are seen. Tags after a black flag tell England from
# Scotland.
_UNSEEN = re.compile(
    "(\U0001f3f4[\U000e0020-\U000e007f]+)|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
# Scripts whose letters take another form beside a joiner (Arabic to Mandaic, India's, Tibetan,
# Myanmar, Khmer, Mongolian and their relatives), and the symbols that emoji are joined from.
_JOINED = (
    "\u0600-\u0dff\u0f00-\u109f\u1700-\u1cff\ua800-\uabff\U00010a00-\U00011fff"
    "\u2190-\u2bff\U0001f000-\U0001faff"
)
_JOINERS = re.compile(
    f"(?<=[{_JOINED}])([\u200c\u200d])[\u200c\u200d]*(?=[{_JOINED}])|[\u200c\u200d]+"
)
_MANY_MARKS = re.compile(r"[^\w\s\x00-\u02ff]{31,}")
_MAX_MARKS = 30  # on one letter, as in Unicode's stream-safe text format

_SCALES = frozenset(("hundred", "thousand", "million", "billion", "trillion"))
NUMBER_WORDS = _SCALES | frozenset(
    (
        *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
        *("eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy"),
        *("eighty", "ninety"),
    )
)
"""English cardinal numbers; ordinals and "dozen", "half" or "couple" are words like any other."""


def normal(text: str) -> str:
    """Return a text in the form in which two that look the same are the same; for comparisons.

    Characters are composed (NFC), and those that nobody sees are dropped: zero-width spaces, marks
    of direction, soft hyphens, variation selectors and the like. The zero-width joiner and
    non-joiner stay between letters of scripts that write something else with them, Persian or Hindi
    for example, and between the parts of an emoji; elsewhere they are dropped, too. Of more than 30
    combining marks on one letter the rest is dropped.

    Letters of two alphabets that look alike stay different, and so do compatibility forms, such as
    full-width digits. Linear in the length of the text, as `unicodedata.normalize` alone is not.
    """
    if text.isascii():
        return text
    seen = _JOINERS.sub(r"\1", _UNSEEN.sub(r"\1", text))
    return unicodedata.normalize("NFC", _MANY_MARKS.sub(_fewer_marks, seen))


def plain(text: str) -> str:
    """Return the normal form with plain quotes and hyphens, and one space for white space.

    In it "don't" and "don’t" are the same, and words are found across the end of a line.
    """
    return _SPACES.sub(" ", normal(text).translate(_ALTERNATIVES))


def count(unit: Unit, text: str) -> int:
    """Count the units of a text in its normal form."""
    return _COUNTS[unit](normal(text).strip())


def lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def is_bullet(line: str) -> bool:
    """Tell whether a line is a list item with a bullet."""
    match = _ITEM.match(line)
    return match is not None and match[1] is None


def item_number(line: str) -> int | None:
    """Return the number of a numbered list item, None for any other line."""
    match = _ITEM.match(line)
    return int(match[1]) if match and match[1] else None


def has_word(text: str, wanted: str) -> bool:
    """Tell whether a text contains another one that is no part of a longer word on either side."""
    start = text.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        joined_before = _is_word_part(text[start - 1 : start]) and _is_word_part(wanted[0])
        joined_after = _is_word_part(text[end : end + 1]) and _is_word_part(wanted[-1])
        if not joined_before and not joined_after:
            return True
        start += 1
        while joined_before and _is_word_part(text[start - 1 : start]):
            start += 1  # Nothing begins inside this word: looking there would take quadratic time.
        start = text.find(wanted, start)
    return False


def begins_with_word(text: str, wanted: str) -> bool:
    """Tell whether a text begins with another one and goes on with no part of a word."""
    following = text[len(wanted) : len(wanted) + 1]
    return text.startswith(wanted) and not (_is_word_part(wanted[-1]) and _is_word_part(following))


def ends_with_word(text: str, wanted: str) -> bool:
    """Tell whether a text ends with another one, and no part of a word is before it."""
    before = text[: -len(wanted)][-1:]
    return text.endswith(wanted) and not (_is_word_part(wanted[0]) and _is_word_part(before))


def numbers_in_digits(text: str) -> tuple[int, int]:
    """Count the numbers in ASCII digits, such as 3, 1,000 or 12:30, and those in other digits.

    Superscripts, fractions and Roman numerals that are characters of their own are other digits.
    """
    others = sum(1 for run in _runs(text, _is_other_digit) if run)
    return len(_DIGITS.findall(text)), others


def numbers_in_words(text: str) -> tuple[int, int]:
    """Count the English numbers in words, and those among them that are a mere "one".

    Number words in a row, with hyphens or after "hundred and", are one number.
    """
    found = lone_ones = 0
    run: list[str] = []
    last_end = 0
    for match in _WORD.finditer(text):
        word = match.group().casefold()
        gap = text[last_end : match.start()]
        last_end = match.end()
        near = not gap.strip(" -‐‑")
        if word == "and" and near and run and run[-1] in _SCALES:
            continue
        if run and not (near and word in NUMBER_WORDS):
            lone_ones += run == ["one"]
            run = []
        if word in NUMBER_WORDS:
            found += not run
            run.append(word)
    return found, lone_ones + (run == ["one"])


def _fewer_marks(match: re.Match[str]) -> str:
    kept: list[str] = []
    marks = 0
    for character in match.group():
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def _words(text: str) -> int:
    return sum(1 for word in _BETWEEN_WORDS.split(text) if any(map(str.isalnum, word)))


def _sentences(text: str) -> int:
    return sum(_sentences_of_line(line) for line in lines(text))


def _sentences_of_line(line: str) -> int:
    item = _ITEM.match(line)
    begin = item.end() if item else 0
    found = 0
    for match in _END.finditer(line, begin):
        ends = match[1] is None or not line[match.end() : match.end() + 1].strip()
        if ends:
            found += any(map(str.isalnum, line[begin : match.start()]))
            begin = match.end()
    return found + any(map(str.isalnum, line[begin:]))


def _paragraphs(text: str) -> int:
    blank = [not line.strip() for line in text.splitlines()]
    return sum(
        1 for here, before in zip(blank, [True, *blank], strict=False) if before and not here
    )


def _items(text: str) -> int:
    return sum(1 for line in text.splitlines() if _ITEM.match(line))


_COUNTS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "words": _words,
    "sentences": _sentences,
    "lines": lambda text: len(lines(text)),
    "paragraphs": _paragraphs,
    "items": _items,
}


def _is_word_part(character: str) -> bool:
    """Tell for a character; there is none before the first and after the last."""
    return character.isalnum() or character == "_"


def _is_other_digit(character: str) -> bool:
    return not character.isascii() and unicodedata.category(character).startswith("N")


def _runs(text: str, belongs: Callable[[str], bool]) -> list[str]:
    """Return the longest stretches of characters that belong."""
    return "".join(one if belongs(one) else " " for one in text).split()
