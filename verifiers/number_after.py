"""What stands after a number and its unit: whether that leaves it an answer.

A number is refused where what follows makes it

* a part of an expression: `5 + x`, `5 squared`, `5 halved`, `5 \\pi`, `5 i`, `= 5!`. An exclamation
  mark at the end of a sentence is none, except after `=`: "5!" says 5, "5! ways" is refused;
* a part of a date or a time of the day: `5 pm`, `5 o'clock`, `5 May`;
* a bound: `5+`, `5 or more`, `5 at most`; or wrong: "5 is not the answer".
"""

from __future__ import annotations

import re

from verifiers.number_before import MINUS, MONTH
from verifiers.number_words import LOOK, Unreadable, bare, word_set
from verifiers.texts import NUMBER_WORDS

_SPACES = " \t\xa0\u202f"
_CLOSING_MARKS = "*_`\"'”’»$)]}~"
_VARIABLE = "[b-zB-HJ-Z]"
_NUMBER_WORD = rf"(?:{'|'.join(sorted(NUMBER_WORDS))})"

_JOINS = re.compile(
    rf"\s*(?:[+×÷^⋅√π]|!!|·\s*\w|[-{MINUS[1]}]\s*(?:{_VARIABLE}(?!\w)|[\\√(]\s*[a-z])"
    r"|/\s*(?:[xyzn](?!\w)|[(\\]))"
    rf"|\(\s*{_VARIABLE}\s*[-+*/^)]|\([0-9]"
    r"|\s+(?i:(?:squar|cub|halv|doubl|tripl|quadrupl|quarter|invert|negat)ed|factorial|choose|pi"
    r"|(?:multiplied|divided)\s+by|to\s+the\s+power|modulo|mod|(?:third|fourth|fifth|sixth|seventh"
    r"|eighth|ninth|tenth|hundredth|thousandth)s)(?!\w)"
    rf"|\s+(?i:(?:plus|minus)\s+\S|times\s+(?:[b-z](?!\w)|\(|{_NUMBER_WORD}(?!\w)))"
    r"|(?:th|nd|rd)\s+roots?(?!\w)|\s*[≤≥≠]|\s+[<>]=?\s+\S"
    r"|\s+and\s+(?:a|an|one|two|three)\s+(?:half|quarters?|thirds?|fifths?|eighths?)\b"
)
# A letter alone that is no unit is a factor; some of them are also words of other languages.
_FACTOR = re.compile(
    r"\s(?:[bcfjnpqrxDEGHMNOPQRSTUXYZ](?![\w'’])|[eikouvwyz](?![\w'’]|\s+[^\W\d_]{2}))"
)
_COMMAND = re.compile(r"\s*\\([A-Za-z]+)")
_HARMLESS_COMMANDS = word_set(
    "text textrm textbf textit mathrm mbox quad qquad right end approx simeq sim implies "
    "Rightarrow rightarrow to because therefore checkmark square blacksquare Box hfill newline par "
    "rm displaystyle"
)
_STAR = re.compile(rf"\s*\*{{1,2}}\s*(?:{_VARIABLE}(?!\w)|[(\\√])")
_CLOCK = re.compile(r"\s?(?i:am|pm|a\.m\.|p\.m\.|o['’]\s?clock)(?!\w)")
_DATE = re.compile(rf"(?:st|nd|rd|th)?\s+(?:of\s+)?{MONTH}")
_EXCLAMATION = re.compile(r"\s?!(?!=)")
_SENTENCE_END = re.compile(
    r"\s?!(?!=)[\"'”’)\]*_]*(?:\Z|\s*\n|\s+(?:[A-Z\"“‘(*_#]|[^\x00-\x7f]|\Z))"
)
_BOUND = re.compile(
    r",?\s+(?i:(?:or|and)\s+(?:even\s+)?(?:more|less|fewer|above|over|up|upwards?|below|under|higher"
    r"|lower|greater|larger|smaller|better|counting|beyond|longer|shorter)"
    r"|at\s+(?:the\s+)?(?:very\s+)?(?:least|most|minimum|maximum|best|worst)"
    r"|max|maximum|minimum|tops)(?!\w)"
)
_DENIED = re.compile(
    r",?\s+(?i:(?:is|was|would\s+be|seems|looks)\s+(?:not\s+(?:the|right|correct|it|my|our"
    r"|true|possible|what)|wrong|incorrect|false|too|impossible)"
    r"|(?:isn['’]t|wasn['’]t|cannot\s+be|can['’]t\s+be|could\s?n['’]t\s+be|could\s+not\s+be))(?!\w)"
    r"|\?\s+(?i:no|nope|wrong)(?!\w)"
)


def refuse_after(text: str, start: int, end: int) -> None:
    """Raise Unreadable where what follows a number and its unit makes it a part of something."""
    after = text[end : end + LOOK]
    if not after.strip(".)*"):
        return
    plain = after.lstrip(_CLOSING_MARKS)
    _refuse_expression(text[max(0, start - LOOK) : start], after, plain)
    if _CLOCK.match(plain) or _DATE.match(plain):
        raise Unreadable("a date or a time of the day")
    if _BOUND.match(plain) or _DENIED.match(plain):
        raise Unreadable("a bound, or denied")


def _refuse_expression(before: str, after: str, plain: str) -> None:
    starred = before.rstrip(_SPACES).endswith("*")
    if _JOINS.match(plain) or _FACTOR.match(plain) or (not starred and _STAR.match(after)):
        raise Unreadable("a part of an expression")
    command = _COMMAND.match(plain)
    if command is not None and command[1] not in _HARMLESS_COMMANDS:
        raise Unreadable("a part of an expression")
    if _EXCLAMATION.match(after) and (bare(before).endswith("=") or not _SENTENCE_END.match(after)):
        raise Unreadable("a factorial")
    if after.startswith("|") and before.endswith("|"):
        raise Unreadable("an absolute value")
