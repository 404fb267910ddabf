r"""Numbers as LaTeX and hurried writers spell them, in the spelling that is read.

`\frac{3}{4}` is `3/4`, `1{,}500` and `1\,500` are `1,500` and `1 500` with a thin space,
`12\text{ m}` is `12 m`, `21^\circ` is `21°`, and `1h30min` is `1h 30min`. Nothing else is changed,
and every function is linear in the length of the text.
"""

from __future__ import annotations

import re

_MINUS = "-\u2212"
_FRACTION = re.compile(rf"\\[dtc]?frac\s?\{{\s?([{_MINUS}]?[0-9]+)\s?\}}\s?\{{\s?([0-9]+)\s?\}}")
_TEXT = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mbox)\s?\{([^{}\\]{0,99})\}")
_DEGREE = re.compile(r"\^\s?\{?\s?\\circ(?![A-Za-z])\s?\}?|\\degree(?![A-Za-z])")
_COMMA = re.compile(r"(?<=[0-9])\{,\}(?=[0-9])")
_THIN_SPACE = re.compile(r"(?<=[0-9])(?:\\[,;: ]|~)(?=[0-9]{3}(?![0-9]))")
# It begins with a digit, which is looked for fast, and only then looks at what is before that.
_RUN = re.compile(
    r"[0-9](?<![\w.,][0-9])[0-9]{0,3}(?:d|hrs?|h|mins?|m|ft)"
    r"(?:[0-9]{1,4}(?:d|hrs?|h|mins?|m|ft)){0,2}"
    r"[0-9]{1,4}(?:\.[0-9]{1,9})?\s?(?:hrs?|h|mins?|m|secs?|s|in|oz)(?!\w)"
)
_NEXT_PART = re.compile(r"(?<=[a-z])(?=[0-9])")


def spelled(text: str) -> str:
    """Return a text with its numbers in the spelling that is read."""
    if "\\" in text:
        text = _TEXT.sub(_words, text)
        text = _DEGREE.sub("°", text)
        text = _FRACTION.sub(_fraction, text)
    if "{,}" in text:
        text = _COMMA.sub(",", text)
    if "\\" in text or "~" in text:
        text = _THIN_SPACE.sub("\u202f", text)
    return _RUN.sub(lambda run: _NEXT_PART.sub(" ", run[0]), text)


def _words(match: re.Match[str]) -> str:
    """The words of a formula, apart from the numbers beside them."""
    before = match.string[max(0, match.start() - 1) : match.start()]
    after = match.string[match.end() : match.end() + 1]
    words = match[1].lstrip() if before.isspace() or before.isdigit() else match[1]
    return _apart(before) + words + (" " if after.isdigit() else "")


def _fraction(match: re.Match[str]) -> str:
    """A fraction, which a number before it makes a mixed number."""
    before = match.string[max(0, match.start() - 1) : match.start()]
    return f"{_apart(before)}{match[1]}/{match[2]}"


def _apart(before: str) -> str:
    """The space that parts what is written anew from a number that ends before it."""
    return " " if before.isdigit() else ""
