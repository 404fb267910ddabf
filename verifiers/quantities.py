"""Numbers with their units in prose: the last one of a text, or a text that is one.

A number is written in ASCII digits: `-1,234.5`, `1.2e-3`, `3 × 10^8`, `3/4`, `1 1/2`, `2 million`,
`5 hundred`, `2 dozen`, `1.5bn`, `5k`, `2 and a half`. The minus sign U+2212 is a minus, and so are
the words minus and negative. Thousands are separated by the mark that is not the decimal one, by an
apostrophe or by a space, in groups of three. Quantities in a row of the same dimension, each in a
smaller unit than the one before, are one: `1 h 30 min`, `5 feet and 3 inches`. What of LaTeX is
read, `verifiers.spellings` says. A bracket at the end that reckons the number out is passed over
where it is right: `24 (= 4 * 6)`.

What looks like a number but cannot be read for certain is unreadable, never guessed: digits of
other scripts, groups that are not of three, numbers side by side, and all that
`verifiers.number_before` and `verifiers.number_after` say. A number that is a part of a name, such
as `B2`, is none; one that goes on in letters that are no unit, such as `5x`, is unreadable.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from verifiers.expressions import NotArithmetic, evaluate
from verifiers.number_after import refuse_after
from verifiers.number_before import MINUS, minus_before, refuse_lone_dash
from verifiers.number_words import LOOK, Unreadable
from verifiers.spellings import spelled
from verifiers.units import PERCENT, UNKNOWN, Unit, find_unit, part_of
from verifiers.values import MAX_DIGITS

__all__ = ["Quantity", "Style", "Unreadable", "last_quantity", "whole_quantity"]

MAX_EXPONENT = 400
MAX_LOOKED_AT = 100
"""So many numbers that are parts of names may come after the last one that is not."""

MAX_PARTS = 4
"""So many quantities can be one: days, hours, minutes, seconds."""

MAX_WHOLE_CHARS = 4_096
_WINDOW = 4_096
"""So many characters at the end of a text are read first."""

_CURRENCIES = "$€£¥"
_SCALES = {
    **{"dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6},
    **{"crore": 10**7, "billion": 10**9, "bn": 10**9, "trillion": 10**12},
}
_TOUCHING = {"k": 10**3, "bn": 10**9}
_OF_MONEY = {"K": 10**3, "m": 10**6, "M": 10**6, "b": 10**9, "B": 10**9, **_TOUCHING}
_PARTS = {"half": Fraction(1, 2), "third": Fraction(1, 3), "quarter": Fraction(1, 4)}

_SCALE = re.compile(rf"\s(?i:({'|'.join(_SCALES)}))s?(?!\w)")
_TOUCHING_SCALE = re.compile(r"(k|bn)(?!\w)")
_MONEY_SCALE = re.compile(r"(k|K|bn|[mMbB])(?!\w)")
_AND_PART = re.compile(rf"\s+and\s+(?:a|one)\s+({'|'.join(_PARTS)})(?!\w)")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)(?!\w)")
_CURRENCY = re.compile(rf"\s?[{_CURRENCIES}]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
# What ends bold text, code or a formula; and what stands before a unit in a formula.
_CLOSING = re.compile(
    r"(?:[*`}$]|_+(?!\w))*(?:\\[)\]])?(?:~|\\[,;:! ])*(?:\s?\\(?:text|mathrm|textrm|mbox)\{)?"
)
# What may stand between a number and its unit: `5 (km)`, `5 [in km]`, `5 in km`.
_BESIDE = re.compile(r"\s?[(\[]\s?(?:in\s)?|,?\sin\s")
_BESIDE_ENDS = re.compile(r"\s?[)\]]")
_JOIN = re.compile(r"(?:\s?,)?(?:\s+and)?\s*")
_REASON = re.compile(r"\(\s?(?:=\s?)?([0-9(][^=\n]{1,80})\)[\s.!*_$`]*\Z")
_NAME_LOOK = 24
_DIGIT = re.compile("[0-9]")
_MAX_PREFIX = 12  # "negative ", a currency and its space, and a decimal mark
_IN_NO_NUMBER = re.compile(r"[=:;!?\"#%|_<>&@\[\]bfhjklpqrwyzBFHJKLPQRWYZ]|\s(?=[^\W\d_x])")
_MANY_DIGITS = 500
_COMMAND_ENDS = re.compile(r"\\[A-Za-z]+$")


@dataclass(frozen=True)
class Style:
    """How numbers are written: the decimal mark, and whether 25 % is 25 or 0.25."""

    decimal: Literal[".", ","] = "."
    percent: Literal["number", "share"] = "number"


@dataclass(frozen=True)
class Quantity:
    """A number, and the unit that follows it; `parts` quantities were added up to it."""

    value: Fraction
    unit: Unit | None
    parts: int = 1


def _token(decimal: str) -> re.Pattern[str]:
    group = "," if decimal == "." else "."
    mark = re.escape(decimal)
    spaces = r"\ \xa0\u202f"
    return re.compile(
        rf"(?P<sign>[{MINUS}+]|(?<![^\W_])(?i:minus|negative)\s)?(?:[{_CURRENCIES}]\s?)?"
        r"(?:(?:(?P<whole>[0-9]+)\ )?(?P<top>[0-9]+)\s?/\s?(?P<bottom>[0-9]+)"
        r"(?!\s?/|[0-9]|[.,][0-9])"
        rf"|(?P<run>(?:(?<![0-9{mark}]){mark})?[0-9](?:[0-9]|[{mark}{group}'](?=[0-9])"
        rf"|[{spaces}](?=[0-9]{{3}}(?![0-9])))*)"
        rf"(?:[eE](?P<exponent>[{MINUS}+]?[0-9]+)"
        rf"|\s?(?:[x×·*]|\\times|\\cdot)\s?10(?:\^|\*\*)[{{(]?(?P<power>[{MINUS}+]?[0-9]+)[}})]?)?)"
    )


_TOKENS = {".": _token("."), ",": _token(",")}


def whole_quantity(text: str, style: Style) -> Quantity:
    """Read a text that is one quantity and nothing else but white space; raises Unreadable."""
    text = text.strip()
    if len(text) > MAX_WHOLE_CHARS:
        raise Unreadable("more than a number with a known unit")
    text = spelled(text)
    match = _TOKENS[style.decimal].match(text)
    if match is None:
        raise Unreadable("no number")
    quantity, end = _read_row(text, match, style)
    currency = _CURRENCY.match(text, end)
    if (currency.end() if currency else end) != len(text) or quantity.unit is UNKNOWN:
        raise Unreadable("more than a number with a known unit")
    return quantity


def last_quantity(text: str, style: Style) -> Quantity:
    """Read the last quantity of a text; raises Unreadable if there is none or it is not certain."""
    text = spelled(text)
    return _reckoned(text, style) or _last(text, style)[0]


def _reckoned(text: str, style: Style) -> Quantity | None:
    """The quantity before a bracket at the end of a text that reckons it out, if it does."""
    tail = max(0, len(text) - LOOK)
    reason = _REASON.search(text[tail:]) if ")" in text[-8:] else None
    if reason is None:
        return None
    try:
        sum_of = evaluate(reason[1].replace("x", "*"))
        quantity, end = _last(text[: tail + reason.start()], style)
    except (NotArithmetic, Unreadable):
        return None
    follows = not text[end : tail + reason.start()].strip(" *_`$")
    return quantity if follows and sum_of.operations and sum_of.value == quantity.value else None


def _last(text: str, style: Style) -> tuple[Quantity, int]:
    tokens = _last_tokens(text, style)
    if not tokens or (not text.isascii() and _OTHER_DIGIT.search(text, tokens[-1].end())):
        raise Unreadable("no number in ASCII digits")
    first = _row_start(text, tokens[-MAX_PARTS:], style)
    quantity, end = _read_row(text, first, style)
    if minus_before(text, first.start(), first["sign"] is not None):
        quantity = replace(quantity, value=-quantity.value)
    refuse_lone_dash(text, first.start(), end)
    refuse_after(text, first.start(), end)
    return quantity, end


def _last_tokens(text: str, style: Style) -> list[re.Match[str]]:
    """The last numbers of a text that are no parts of names, MAX_PARTS of them if it has so many.

    The end of a long text is read first, from a character on that is in no number.
    """
    window = max(0, len(text) - _WINDOW)
    begin = _IN_NO_NUMBER.search(text, window) if window else None
    if window and begin is None and len(_DIGIT.findall(text, window)) > _MANY_DIGITS:
        raise Unreadable("nothing but numbers and signs")
    for start in (begin.end(), 0) if begin else (0,):
        latest = deque(_tokens(text, style, start), MAX_LOOKED_AT)
        tokens = [one for one in latest if not _is_part_of_name(text, one)]
        if len(tokens) >= MAX_PARTS or len(latest) == MAX_LOOKED_AT:
            break
    return tokens


def _tokens(text: str, style: Style, start: int) -> Iterator[re.Match[str]]:
    """The numbers of a text, as `finditer` gives them, but past what has no digits in no time."""
    while (digit := _DIGIT.search(text, start)) is not None:
        token = _TOKENS[style.decimal].search(text, max(start, digit.start() - _MAX_PREFIX))
        if token is None:
            return
        yield token
        start = token.end()


def _row_start(text: str, tokens: list[re.Match[str]], style: Style) -> re.Match[str]:
    """The first of the numbers that make one quantity with the last one; raises Unreadable."""
    last = tokens[-1]
    for first in tokens[:-1]:
        try:
            quantity, end = _read_row(text, first, style)
        except Unreadable:
            continue  # It begins nothing that the last number could be a part of.
        if end > last.start():
            return first
        if quantity.unit is not None and text[end : last.start()].isspace():
            raise Unreadable("quantities side by side")
    return last


def _is_part_of_name(text: str, match: re.Match[str]) -> bool:
    """Whether a letter stands before the number, as in `B2` or `COVID-19`."""
    before = text[max(0, match.start() - _NAME_LOOK) : match.start()]
    if before.endswith("_"):
        return _is_subscript(before, text[match.end() : match.end() + LOOK])
    if not _is_letter(before[-1:]) or _COMMAND_ENDS.search(before):
        return False
    return not (match["sign"] and not _is_letter(before[-2:][:1]) and before[-1].islower())


def _is_subscript(before: str, after: str) -> bool:
    """Whether an underscore joins a number to a name; else it makes it stand out: `_5_`."""
    name = before.rstrip("_")
    return len(before) - len(name) > 3 or name[-1:].isalnum() or "_" not in after


def _is_letter(char: str) -> bool:
    """Whether a character goes on with a word; scripts without case have no spaces to tell by."""
    return char == "_" or char.lower() != char.upper()


def _read_row(text: str, match: re.Match[str], style: Style) -> tuple[Quantity, int]:
    """Read a quantity and those in smaller units that go on with it; returns where that ends."""
    quantity, end = _read(text, match, style)
    smallest = quantity.unit
    while quantity.parts < MAX_PARTS and smallest is not None and smallest is not UNKNOWN:
        join = _JOIN.match(text, end)
        following = join and _TOKENS[style.decimal].match(text, join.end())
        if not following or following["sign"]:
            break
        more, more_end = _read(text, following, style)
        unit = None if more.unit is None else part_of(smallest, more.unit)
        is_listed = join is not None and join[0].strip() != ""
        if unit is None or (is_listed and more.value * unit.factor >= smallest.factor):
            break
        value = quantity.value * smallest.factor / unit.factor
        value += more.value if quantity.value >= 0 else -more.value
        quantity, end = Quantity(value, unit, quantity.parts + 1), more_end
        smallest = unit
    return quantity, end


def _read(text: str, match: re.Match[str], style: Style) -> tuple[Quantity, int]:
    """Read a number and the unit after it; returns where that ends."""
    negative = match["sign"] not in (None, "+")
    value = _fraction(match) if match["top"] else _decimal(match, style)
    end = match.end()
    if text[end : end + 2].lstrip()[:1].isnumeric() and not text[end : end + 2].isascii():
        raise Unreadable("goes on in another script")
    value, end = _scaled(text, match, value)
    unit, end = _unit(text, match, end)
    if unit is PERCENT and style.percent == "share":
        value, unit = value / 100, None
    return Quantity(-value if negative else value, unit), end


def _scaled(text: str, match: re.Match[str], value: Fraction) -> tuple[Fraction, int]:
    """Apply the words after a number that multiply it or add a part; returns where they end."""
    end = match.end()
    is_money = any(one in match[0] for one in _CURRENCIES) and _is_money(text, match, end)
    touching = (_MONEY_SCALE if is_money else _TOUCHING_SCALE).match(text, end)
    if touching is not None:
        value, end = value * (_OF_MONEY if is_money else _TOUCHING)[touching[1]], touching.end()
    part = _AND_PART.match(text, end)
    if part is not None:
        value, end = value + _PARTS[part[1]], part.end()
    while (scale := _SCALE.match(text, end)) is not None:
        value, end = value * _SCALES[scale[1].lower()], scale.end()
    return value, end


def _unit(text: str, match: re.Match[str], end: int) -> tuple[Unit | None, int]:
    """Read the unit after a number; raises Unreadable where the number goes on in letters."""
    if _ORDINAL.match(text, end):
        return None, end
    closing = _CLOSING.match(text, end)
    start = closing.end() if closing else end
    unit, unit_end = find_unit(text, start)
    if unit is not None and unit is not UNKNOWN:
        return unit, unit_end
    beside = _BESIDE.match(text, end)
    if beside is not None:
        unit_beside, unit_end = find_unit(text, beside.end())
        if unit_beside is not None and unit_beside is not UNKNOWN:
            closing = _BESIDE_ENDS.match(text, unit_end)
            return unit_beside, closing.end() if closing else unit_end
    if end == start and _is_letter(text[end : end + 1]):
        raise Unreadable("goes on in letters")
    return UNKNOWN if unit is UNKNOWN or _is_money(text, match, end) else None, end


def _is_money(text: str, match: re.Match[str], end: int) -> bool:
    """Whether a currency belongs to the number; two dollar signs on a line enclose a formula."""
    signs = match[0] + text[end : end + 2].strip()[:1]
    if any(one in signs for one in "€£¥"):
        return True
    begin = text.rfind("\n", 0, match.start()) + 1
    line_end = text.find("\n", end)
    line = text[begin : len(text) if line_end < 0 else line_end]
    return "$" in signs and line.count("$") == 1


def _fraction(match: re.Match[str]) -> Fraction:
    whole, top, bottom = (_integer(match[name] or "0") for name in ("whole", "top", "bottom"))
    if bottom == 0 or (match["whole"] and top >= bottom):
        raise Unreadable("not a fraction")
    return whole + Fraction(top, bottom)


def _decimal(match: re.Match[str], style: Style) -> Fraction:
    integer, mark, decimals = match["run"].partition(style.decimal)
    if mark and not decimals.isdigit():
        raise Unreadable("separators after the decimal mark")
    digits = _without_separators(integer) + decimals
    if len(digits) > MAX_DIGITS:
        raise Unreadable("too many digits")
    exponent = _exponent(match["exponent"] or match["power"] or "0") - len(decimals)
    return int(digits) * Fraction(10) ** exponent


def _without_separators(integer: str) -> str:
    separators = {one for one in integer if not one.isdigit()}
    if not separators:
        return integer
    first, *groups = re.split("[^0-9]", integer)
    if len(separators) > 1 or not 1 <= len(first) <= 3 or any(len(one) != 3 for one in groups):
        raise Unreadable("groups of digits that are not of three")
    return first + "".join(groups)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise Unreadable("too many digits")
    return int(digits)


def _exponent(text: str) -> int:
    exponent = int(text.replace("\u2212", "-")) if len(text) <= 5 else MAX_EXPONENT + 1
    if abs(exponent) > MAX_EXPONENT:
        raise Unreadable("too large or too small")
    return exponent
