"""What can be counted in a text: words, sentences, lines, list items, numbers.

The definitions are simple on purpose, so that they can be told to a user and checked by hand:

* a character is a Unicode code point; white space at both ends of the text does not count;
* a word is what stands between white space and has a letter or digit in it;
* a sentence has a letter or digit and ends with . ! ? or … before white space, with 。！？, or with
  its line. An abbreviation such as "Dr. Smith" ends one too; a list's "1." does not;
* a paragraph is a run of lines that are not blank;
* a list item is a line that begins with - * + • or with a number and . or ), then white space.

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
_DIGITS = re.compile(r"[0-9]+(?:[.,:/][0-9]+)*")

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


def count(unit: Unit, text: str) -> int:
    """Count the units of a text."""
    return _COUNTS[unit](text.strip())


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


def _words(text: str) -> int:
    return sum(1 for word in text.split() if any(map(str.isalnum, word)))


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
