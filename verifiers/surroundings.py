r"""What a number stands in: whether it is an answer by itself or a part of something else.

A number is refused where it is a part of

* an expression: `10 - 3`, `2**3`, `\sqrt{9}`, `f(5)`, `3 times 5`, `x + 5`, `5 squared`, `= 5!`. An
  exclamation mark after words, and not after `=`, ends a sentence; stars that make text bold are
  no operators;
* a date or a time of the day: `10:30`, `5 pm`, `May 5`, `2024-05-12`;
* a range or a choice: `3-5`, `3 to 5`, `3 or 5`; a bound: `≥ 5`, `±5`, `5+`.

A dash with space after it is a minus only where nothing else can be meant: after `=` or an opening
bracket, or if it is U+2212 after a word. Elsewhere it may be a bullet or a dash.
"""

from __future__ import annotations

import re

from verifiers.texts import NUMBER_WORDS

LOOK = 100
"""So many characters before and after a number are looked at."""

MINUS = "-\u2212"
OTHER_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\ufe58\ufe63\uff0d"
_DASHES = frozenset(MINUS + OTHER_DASHES)
_EM_DASH = "\u2014"
_SPACES = " \t\xa0\u202f"
_OPERATORS = frozenset("^√∛±∓÷×·⋅∙/+≠≤≥")
_VARIABLE = "[b-zB-HJ-Z]"
_NUMBER_WORD = rf"(?:{'|'.join(sorted(NUMBER_WORDS))})"
_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)(?!\w)\.?"
)

# A number, a bracket that closes, a number in words or a name of one letter, at the end of a text.
_OPERAND_ENDS = re.compile(
    rf"(?:[0-9)\]}}!%°²³]|(?<![^\W_])(?:[0-9]*{_VARIABLE}|(?i:{_NUMBER_WORD})))$"
)
_WORD_OPERATOR_ENDS = re.compile(
    r"(?:^|[^\w-])(?i:(?P<sure>(?:multiplied|divided)\s+by|root\s+of|to\s+the\s+power\s+of)"
    r"|plus|minus|times|over|out\s+of|mod|modulo|to|or|and|x|:)$"
)
_CLOCK_ENDS = re.compile(r"[0-9]:$")
_DATE_ENDS = re.compile(rf"(?:^|[^\w]){_MONTH}(?:\s*[0-9]{{1,2}}(?:st|nd|rd|th)?,?)?$")
_NUMBER_WORD_ENDS = re.compile(rf"(?:^|[^\w])(?i:{_NUMBER_WORD})(?:\s+and|-)?$")
_COMMAND_ENDS = re.compile(r"\\([A-Za-z]+)\*?\s*(?:\{[^{}]*)?$")
# Commands of LaTeX that say how a number looks, or that it follows.
_HARMLESS = (
    "boxed fbox text textbf textit textrm mathbf mathrm mathit bm underline displaystyle large "
    "approx cong equiv sim simeq to rightarrow Rightarrow longrightarrow implies therefore quad "
    "qquad colon left"
)
_HARMLESS_COMMANDS = frozenset(_HARMLESS.split())
_CALL_ENDS = re.compile(r"[\w}]$")

_JOINS_AFTER = re.compile(
    rf"\s*(?:[+×÷^⋅√]|!!|·\s*\w|[-{MINUS[1]}]\s*(?:{_VARIABLE}(?!\w)|[\\√(]\s*[a-z])"
    r"|/\s*(?:[xyzn](?!\w)|[(\\]))"
    rf"|\(\s*{_VARIABLE}\s*[-+*/^)]"
    r"|\s+(?i:squared|cubed|factorial|(?:multiplied|divided)\s+by|to\s+the\s+power"
    rf"|(?:plus|minus)\s+\S|times\s+(?:[b-z](?!\w)|\(|{_NUMBER_WORD}))"
    r"|\s+and\s+(?:a|an|one|two|three)\s+(?:half|quarters?|thirds?|fifths?|eighths?)\b"
)
_STAR_AFTER = re.compile(rf"\s*\*{{1,2}}\s*(?:{_VARIABLE}(?!\w)|[(\\√])")
_CLOCK_AFTER = re.compile(r"\s?(?i:am|pm|a\.m\.|p\.m\.)(?!\w)")
_DATE_AFTER = re.compile(rf"(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}")
_FACTORIAL_AFTER = re.compile(r"\s?!(?!=)")
_WORD = re.compile(r"[^\W\d_]{2}")


class Unreadable(ValueError):
    """There is no number, or none that can be read for certain."""


def is_letter(char: str) -> bool:
    """Whether a character goes on with a word; scripts without case have no spaces to tell by."""
    return char == "_" or char.lower() != char.upper()


def minus_before(text: str, start: int, signed: bool) -> bool:
    """Look at what stands before a number and its sign, if it has one.

    Returns whether it is a minus that belongs to the number; raises Unreadable where the number is
    a part of something else.
    """
    before = text[max(0, start - LOOK) : start]
    head = before.rstrip(_SPACES)
    spaced = head != before
    last = head[-1:]
    if last in _OPERATORS or _CLOCK_ENDS.search(before) or head.endswith(("\\,", "{,}")):
        raise Unreadable("a part of something else")
    if last in _DASHES:
        return _is_minus(head, spaced, signed)
    _refuse_operand(head, spaced, signed)
    _refuse_words(head)
    _refuse_call(head)
    return False


def _is_minus(head: str, spaced: bool, signed: bool) -> bool:
    """Whether the dash at the end of a text is a minus of the number after it."""
    dash, rest = head[-1], head[:-1].rstrip(_SPACES)
    if signed or not spaced or _OPERAND_ENDS.search(rest):
        raise Unreadable("a dash that is no sign of the number")
    if dash in MINUS and rest[-1:] in ("=", "(", "[", "{", "≈"):
        return True
    words = _WORD.search(rest[-2:]) is not None
    if dash == MINUS[1] and (words or not rest.strip()):
        return True
    if dash == _EM_DASH and words:
        return False
    raise Unreadable("a dash that may be a minus")


def _refuse_operand(head: str, spaced: bool, signed: bool) -> None:
    """Refuse a number that follows another number, or a sign that joins it to something."""
    if head.endswith(("}{", "_{", "^{", "^(", "_(")):
        raise Unreadable("an exponent, an index or an argument")
    if head[-1:].isnumeric() or (head.endswith(")") and not spaced):
        raise Unreadable("a number that follows a number")
    if signed and _OPERAND_ENDS.search(head):
        raise Unreadable("a difference or a range")
    if head.endswith("*") and _OPERAND_ENDS.search(head.rstrip("*" + _SPACES)):
        raise Unreadable("a product or a power")


def _refuse_words(head: str) -> None:
    operator = _WORD_OPERATOR_ENDS.search(head)
    if operator is not None:
        left = head[: operator.start() + 1].rstrip()
        if operator["sure"] or _OPERAND_ENDS.search(left):
            raise Unreadable("an expression, a range or a choice")
    if _NUMBER_WORD_ENDS.search(head):
        raise Unreadable("a number half in words")
    if _DATE_ENDS.search(head):
        raise Unreadable("a date")


def _refuse_call(head: str) -> None:
    """Refuse an argument of a function or of a command of LaTeX."""
    command = _COMMAND_ENDS.search(head)
    if command is not None and command[1] not in _HARMLESS_COMMANDS:
        raise Unreadable("an argument")
    depth = 0
    for place in range(len(head) - 1, -1, -1):
        depth += (head[place] == ")") - (head[place] == "(")
        if depth < 0:
            if _CALL_ENDS.search(head[:place]) and not head[:place].endswith("left"):
                raise Unreadable("an argument")
            return


def refuse_after(text: str, start: int, end: int) -> None:
    """Raise Unreadable where what follows a number and its unit makes it a part of something."""
    after = text[end : end + LOOK]
    starred = text[:start].rstrip(_SPACES).endswith("*")
    if _JOINS_AFTER.match(after) or (not starred and _STAR_AFTER.match(after)):
        raise Unreadable("a part of an expression")
    if _CLOCK_AFTER.match(after) or _DATE_AFTER.match(after):
        raise Unreadable("a date or a time of the day")
    before = text[max(0, start - LOOK) : start]
    exclaims = _WORD.search(before) and not before.rstrip().endswith("=")
    if _FACTORIAL_AFTER.match(after) and not exclaims:
        raise Unreadable("a factorial")
    if after.startswith("|") and text[start - 1 : start] == "|" and start > 0:
        raise Unreadable("an absolute value")
