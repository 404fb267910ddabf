r"""What stands before a number: whether that leaves it an answer, and whether it is a minus.

A number is refused where what stands before it makes it

* a part of an expression: `10 - 3`, `2**3`, `\sqrt{9}`, `f(5)`, `(2)(5)`, `3 times 5`, `x + 5`;
* a part of a date or a time of the day: `10:30`, `May 5`, `2024-05-12`. "In May 5 were sold" is
  none: what happens on a day is not in it;
* a part of a range or a choice: `3-5`, `3 to 5`, `3 or 5`.

`verifiers.number_words` looks at the words.

A dash with space after it is no sign but a bullet or a dash: "The answer - 5" and "- 5 apples" say
5. It is a minus after `=` or an opening bracket, and so is U+2212 after a word. Where it may be
either, it is refused: "It is - 5", "Answer: - 5", and a line that holds nothing but `- 5`.
"""

from __future__ import annotations

import re

from verifiers.number_words import LOOK, Unreadable, bare, refuse_words, word_set
from verifiers.texts import NUMBER_WORDS
from verifiers.units import UNKNOWN, find_unit

MINUS = "-\u2212"
OTHER_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\ufe58\ufe63\uff0d"
_DASHES = frozenset(MINUS + OTHER_DASHES)
_EM_DASH = "\u2014"
_SPACES = " \t\xa0\u202f"
_OPERATORS = frozenset("^√∛±∓÷×·⋅∙/+≠≤≥≮≯≪≫≲≳⩽⩾")
_VARIABLE = "[b-zB-HJ-Z]"
_NUMBER_WORD = rf"(?:{'|'.join(sorted(NUMBER_WORDS))})"
MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)(?!\w)\.?"
)

# A number, a bracket that closes, a number in words or a name of one letter, at the end of a text;
# the "s" of "It's" is no name.
_OPERAND_ENDS = re.compile(
    r"(?:[0-9)\]}%°²³]|(?:[0-9)]|(?<![^\W_])[a-z])!"
    rf"|(?<![^\W_])(?<!['’])(?:[0-9]*{_VARIABLE}|(?i:{_NUMBER_WORD})))$"
)
_WORD_OPERATOR_ENDS = re.compile(
    r"(?:^|[^\w-])(?i:(?P<sure>(?:multiplied|divided)\s+by|to\s+the\s+power\s+of)"
    r"|plus|minus|times|over|out\s+of|mod|modulo|to|or|and|x)$"
)
_UNIT_ENDS = re.compile(r"(?<=[0-9])\s?[^\W\d_]{1,12}$")
# A clock's or a ratio's colon stands between numbers, with the same space on both sides of it.
_COLON_ENDS = re.compile(r"[0-9](?::|\s:\s)$")
_COMPARISON_ENDS = re.compile(r"(?:[<>!/]=+|=<|&[lg][te];|<)$")
# An arrow, a prompt and the end of a tag are no comparisons; some tags strike out what follows.
_NO_COMPARISON_ENDS = re.compile(r"(?:[-=~]|>>|<(?!s>|del>|strike>)[/A-Za-z|][^<>]*)>$")
_DATE_ENDS = re.compile(
    rf"(?:(?P<in>(?<!\w)(?i:in|during)\s+)|(?:^|[^\w])){MONTH}"
    r"(?P<day>\s*[0-9]{1,2}(?:st|nd|rd|th)?,?)?$"
)
_YEAR = re.compile(r"[12][0-9]{3}(?![0-9.,])")
_NUMBER_WORD_ENDS = re.compile(rf"(?:^|[^\w])(?i:{_NUMBER_WORD})(?:\s+and|-)?$")
_COMMAND_ENDS = re.compile(r"\\([A-Za-z]+)\*?\s*(?:\{[^{}]*)?$")
# Commands of LaTeX that say how a number looks, or that it follows.
_HARMLESS_COMMANDS = word_set(
    "boxed fbox text textbf textit textrm mathbf mathrm mathit bm underline displaystyle large "
    "approx cong equiv sim simeq to rightarrow Rightarrow longrightarrow implies therefore quad "
    "qquad colon left"
)
_CALL_ENDS = re.compile(r"[\w})\]]$")
# After these a dash may well be a minus: they want a number, or nothing else.
_BEFORE_MINUS = word_set(
    "is are was were be been being equals equal to of by at about approximately around roughly "
    "exactly or and get gets got gives give has have makes make becomes become than below"
)
_WORD_AFTER = re.compile(r"[^\W\d_]{2}")
_LINE_ENDS = ("", "\n", "\r")
_LINES = re.compile("[\n\r]")


def minus_before(text: str, start: int, signed: bool) -> bool:
    """Look at what stands before a number and its sign, if it has one.

    Returns whether it is a minus that belongs to the number; raises Unreadable where the number is
    a part of something else.
    """
    before = text[max(0, start - LOOK) : start]
    head = before.rstrip(_SPACES)
    plain = bare(before)
    spaced = head != before
    is_struck = "~~" in before[len(plain) :]
    if is_struck or _COLON_ENDS.search(before) or head.endswith(("\\,", "{,}")):
        raise Unreadable("a part of something else")
    _refuse_operator(plain)
    if plain[-1:] in _DASHES:
        return _is_minus(plain, before[len(plain) : len(plain) + 1].isspace(), signed)
    _refuse_operand(head, spaced, signed)
    _refuse_word_operators(plain, text, start)
    refuse_words(plain)
    _refuse_call(head, plain)
    return False


def refuse_lone_dash(text: str, start: int, end: int) -> None:
    """Raise Unreadable for a line that holds a spaced dash and a quantity, and nothing else."""
    plain = bare(text[max(0, start - LOOK) : start])
    if plain[-1:] not in _DASHES or plain.endswith(MINUS[1]):
        return
    if plain[:-1].rstrip(_SPACES)[-1:] not in _LINE_ENDS:
        return
    line = _LINES.split(text[end : end + LOOK], maxsplit=1)[0]
    if _WORD_AFTER.search(line) is None:
        raise Unreadable("a dash that may be a minus")


def _refuse_operator(plain: str) -> None:
    if plain[-1:] in _OPERATORS:
        raise Unreadable("a part of an expression")
    if plain.endswith(">"):
        if _NO_COMPARISON_ENDS.search(plain) is None:
            raise Unreadable("a bound")
    elif _COMPARISON_ENDS.search(plain):
        raise Unreadable("a bound")


def _is_minus(plain: str, spaced: bool, signed: bool) -> bool:
    """Whether the dash at the end of a text is a minus of the number after it."""
    dash, rest = plain[-1], plain[:-1].rstrip(_SPACES)
    if signed or not spaced or _OPERAND_ENDS.search(rest):
        raise Unreadable("a dash that is no sign of the number")
    if dash in MINUS and rest[-1:] in ("=", "(", "[", "{", "≈"):
        return True
    is_word, starts_line = len(rest) > 1 and rest[-2:].isalpha(), rest[-1:] in _LINE_ENDS
    if dash == MINUS[1] and (is_word or starts_line):
        return True
    if dash == _EM_DASH and is_word:
        return False
    if starts_line or (is_word and rest.split()[-1].lower() not in _BEFORE_MINUS):
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


def _refuse_word_operators(plain: str, text: str, start: int) -> None:
    operator = _WORD_OPERATOR_ENDS.search(plain)
    if operator is not None:
        left = plain[: operator.start() + 1].rstrip()
        if operator[0].lower().endswith("to"):
            left = _without_unit(left)
        if operator["sure"] or _OPERAND_ENDS.search(left):
            raise Unreadable("an expression, a range or a choice")
    if _NUMBER_WORD_ENDS.search(plain):
        raise Unreadable("a number half in words")
    date = _DATE_ENDS.search(plain)
    if date is not None and (not date["in"] or date["day"] or _YEAR.match(text, start)):
        raise Unreadable("a date")


def _without_unit(left: str) -> str:
    """A text without the unit of the number that it ends with."""
    word = _UNIT_ENDS.search(left)
    if word is None:
        return left
    unit, end = find_unit(left, word.start())
    return left if unit in (None, UNKNOWN) or end < len(left) else left[: word.start()]


def _refuse_call(head: str, plain: str) -> None:
    """Refuse an argument of a function or of a command of LaTeX, and a factor in brackets."""
    for end in (head, plain) if "\\" in head else ():
        command = _COMMAND_ENDS.search(end)
        if command is not None and command[1] not in _HARMLESS_COMMANDS:
            raise Unreadable("an argument")
    depth = 0
    for place in range(len(head) - 1, -1, -1):
        depth += (head[place] == ")") - (head[place] == "(")
        if depth < 0:
            if _CALL_ENDS.search(head[:place]) and not head[:place].endswith("left"):
                raise Unreadable("an argument or a factor")
            return
