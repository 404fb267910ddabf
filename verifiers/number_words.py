"""Words before a number that make it another one, or a bound: "half of 7", "more than 7", "not 7".

The words before the number are looked at from right to left, over those that change nothing ("more
than just about 7"), up to the first that does something or that is any other word, and never over
the end of a clause: "Not 6, but 7" and "Half of that is 7" say 7.
"""

from __future__ import annotations

import re

from verifiers.texts import NUMBER_WORDS

LOOK = 100
"""So many characters before and after a number are looked at."""


class Unreadable(ValueError):
    """There is no number, or none that can be read for certain."""


def word_set(words: str) -> frozenset[str]:
    """The words that spaces part."""
    return frozenset(words.split())


# What makes a number another one or a bound where nothing but fillers is between them.
_CHANGES = word_set(
    # bounds and comparisons; "than" is that of more, less, fewer, greater, other, rather
    "than least most under over below above beneath beyond exceed exceeds exceeding exceeded "
    "surpass surpasses surpassing within nearly almost barely hardly maximum minimum max min "
    "except excluding excepting besides unlike versus vs near until till before minus negative "
    # multiples and parts
    "half halve halved double doubled twice thrice triple tripled treble quadruple quarter square "
    "cube squared cubed "
    # functions
    "root sqrt cbrt log logarithm ln lg exp sin cos tan cot sec csc sine cosine tangent arcsin "
    "arccos arctan asin acos atan sinh cosh tanh abs floor ceil ceiling mod modulo gcd lcm "
    "factorial sgn det"
)
# The same before "of", where it is no change by itself or a noun; a number is one, too: "3 of 7".
_PARTS_OF = _CHANGES | word_set(
    "halves third thirds quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth "
    "eighths ninth ninths tenth tenths hundredth hundredths thousandth percent percentage fraction "
    "part parts none some few many majority minority rest roots power powers multiple multiples "
    "divisor divisors factors excess short shy instead out inverse reciprocal negative opposite "
    "upwards upward north south absolute cubes squares dozen dozens couple f g h"
)
_BEFORE = {
    "to": word_set(
        "up close closer nearer nearest next prior compared opposed relative quarter near"
    ),
    "from": word_set("far different apart aside away starting"),
    "as": word_set("much many little few"),
    "past": word_set("half quarter is just well far"),
    "but": word_set("all anything everything nothing everyone anyone"),
}
_COUNTS_UP = word_set(
    "add adds added adding sum sums summed summing count counts counted total totals come comes "
    "came round rounds rounded go goes went climb climbs climbed rise rises rose"
)
_NEGATIONS = word_set(
    "not never cannot cant neither nor no without isnt wasnt doesnt didnt dont wont"
)
_FILLERS = word_set(
    "a an the just exactly only even about approximately approx around roughly some ca circa "
    "precisely or equal any very usd us eur gbp rs"
)
# Between a negation and the number it denies there may be a verb and the name of the number, too.
_DENIED = _FILLERS | word_set(
    "is are was were be been being it that this equals to of answer result value number total "
    "correct right think believe say expect guess get got have has make makes cost costs quite "
    "really truly simply actually possibly necessarily always longer"
)
_MAX_WORDS = 10
_CLAUSE_ENDS = frozenset(".,;:!?)]")
_ABBREVIATIONS = frozenset(("approx.", "ca.", "max.", "min.", "vs."))
# What may stand between a word and its number: emphasis, quotes, brackets, a formula's beginning.
_OPENING_MARKS = " \t\xa0\u202f*_`\"'“”‘’«»$([{~"
_OPENING_COMMAND = re.compile(r"\\(?:boxed|fbox|text\w{0,2}|math\w{2}|bm|left|large)?$")


def bare(before: str) -> str:
    """Return what stands before a number, without the marks that only say how it looks."""
    plain = before.rstrip(_OPENING_MARKS)
    while "\\" in plain[-10:]:
        command = _OPENING_COMMAND.search(plain)
        if command is None:
            break
        plain = plain[: command.start()].rstrip(_OPENING_MARKS)
    return plain


def refuse_words(plain: str) -> None:
    """Raise Unreadable where the words at the end of a text make the number after it another."""
    words = _last_words(plain)
    denied = 0
    while denied < len(words) and words[denied] in _DENIED:
        denied += 1
    if denied < len(words) and _is_negation(words[denied]):
        raise Unreadable("a number that is denied")
    for place, word in enumerate(words):
        following = words[place + 1] if place + 1 < len(words) else ""
        if word in _CHANGES:
            raise Unreadable("a bound, or another number in words")
        if word == "of" and _is_part(words[place + 1 :]):
            raise Unreadable("a part or a multiple of a number")
        if following in _BEFORE.get(word, ()) and not _COUNTS_UP & {*words[place + 2 :][:1]}:
            raise Unreadable("a bound")
        if word not in _FILLERS and (word, following) != ("to", "equal"):
            return


def _last_words(plain: str) -> list[str]:
    """The last words of a text that are in one clause, in lower case, the last one first."""
    words: list[str] = []
    for word in reversed(plain.rpartition("\n\n")[2].rsplit(maxsplit=_MAX_WORDS)[-_MAX_WORDS:]):
        one = word.strip(_OPENING_MARKS).lower()
        if one[-1:] in _CLAUSE_ENDS and one not in _ABBREVIATIONS:
            break
        words.append(one.rstrip("."))
    return words


def _is_negation(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "n’t"))


def _is_part(words: list[str]) -> bool:
    """Whether the words before "of" are a part or a multiple, or a number that is one."""
    for word in words:
        if word not in _FILLERS:
            is_number = word in NUMBER_WORDS or word[-1:].isnumeric() or word[-1:] == "%"
            return is_number or word in _PARTS_OF or word.rpartition("-")[2] in _PARTS_OF
    return False
