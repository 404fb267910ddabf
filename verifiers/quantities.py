"""Numbers with their units in prose: the last one of a text, or a text that is one.

A number is written in ASCII digits: `-1,234.5`, `1.2e-3`, `3 × 10^8`, `3/4`, `1 1/2`, `2 million`.
The minus sign U+2212 is a minus. Thousands are separated by the mark that is not the decimal one,
by an apostrophe or by a no-break space, in groups of three; a plain space separates numbers.

What looks like a number but cannot be read for certain is unreadable, never guessed: digits of
other scripts, groups that are not of three, a dash that may be a minus, an exponent or a root, a
date. A number that is a part of a name, such as `B2`, is none.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from verifiers.units import PERCENT, Unit, find_unit
from verifiers.values import MAX_DIGITS

MAX_EXPONENT = 400
MAX_LOOKED_AT = 100
"""So many numbers that are parts of names may come after the last one that is not."""


_MINUS = "-\u2212"
_OTHER_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\ufe58\ufe63\uff0d"
_UNCERTAIN_BEFORE = "^√±/" + _OTHER_DASHES
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_SCALE = re.compile(rf"\s(?i:({'|'.join(_SCALES)}))s?(?!\w)")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)(?!\w)")
_CURRENCY = re.compile(r"\s?[$€£¥]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
# Digits that go on after a mark of LaTeX or a space that is no separator here.
_CUT_GROUP = re.compile(r"[0-9](?:\\[,;:! ]|\{,\})$")
_ZERO_GROUP = re.compile(r"[0-9]\s0[0-9]{2}")


@dataclass(frozen=True)
class Style:
    """How numbers are written: the decimal mark, and whether 25 % is 25 or 0.25."""

    decimal: Literal[".", ","] = "."
    percent: Literal["number", "share"] = "number"


@dataclass(frozen=True)
class Quantity:
    """A number, and the unit that follows it if that is known."""

    value: Fraction
    unit: Unit | None


class Unreadable(ValueError):
    """There is no number, or none that can be read for certain."""


def _token(decimal: str) -> re.Pattern[str]:
    group = "," if decimal == "." else "."
    mark = re.escape(decimal)
    return re.compile(
        rf"(?P<sign>[{_MINUS}+])?(?:[$€£¥]\s?)?"
        r"(?:(?:(?P<whole>[0-9]+)\ )?(?P<top>[0-9]+)/(?P<bottom>[0-9]+)(?![0-9./])"
        rf"|(?P<run>(?:(?<![0-9{mark}]){mark})?[0-9](?:[0-9]|[{mark}{group}'\xa0\u202f](?=[0-9]))*)"
        rf"(?:[eE](?P<exponent>[{_MINUS}+]?[0-9]+)"
        rf"|\s?(?:[x×·*]|\\times|\\cdot)\s?10(?:\^|\*\*)[{{(]?(?P<power>[{_MINUS}+]?[0-9]+)[}})]?)?)"
    )


_TOKENS = {".": _token("."), ",": _token(",")}


def whole_quantity(text: str, style: Style) -> Quantity:
    """Read a text that is one quantity and nothing else but white space; raises Unreadable."""
    text = text.strip()
    match = _TOKENS[style.decimal].match(text)
    if match is None:
        raise Unreadable("no number")
    quantity, end = _read(text, match, style)
    currency = _CURRENCY.match(text, end)
    if (currency.end() if currency else end) != len(text):
        raise Unreadable("more than a number")
    return quantity


def last_quantity(text: str, style: Style) -> Quantity:
    """Read the last quantity of a text; raises Unreadable if there is none or it is not certain."""
    latest = deque(_TOKENS[style.decimal].finditer(text), MAX_LOOKED_AT)
    last = next((one for one in reversed(latest) if not _is_part_of_name(text, one)), None)
    if last is None or _OTHER_DIGIT.search(text, last.end()):
        raise Unreadable("no number in ASCII digits")
    return _read(text, last, style)[0]


def _is_part_of_name(text: str, match: re.Match[str]) -> bool:
    """Whether letters touch the number that are neither a unit nor the end of an ordinal."""
    if _is_letter(text[match.start() - 1 : match.start()]):
        return True
    if not _is_letter(text[match.end() : match.end() + 1]):
        return False
    return find_unit(text, match.end())[0] is None and not _ORDINAL.match(text, match.end())


def _is_letter(char: str) -> bool:
    """Whether a character goes on with a word; scripts without case have no spaces to tell by."""
    return char == "_" or char.lower() != char.upper()


def _read(text: str, match: re.Match[str], style: Style) -> tuple[Quantity, int]:
    """Read a token and the unit after it; returns where that ends."""
    negative = _is_negative(text, match)
    value = _fraction(match) if match["top"] else _decimal(match, style)
    end = match.end()
    if text[end : end + 2].lstrip()[:1].isnumeric() and not text[end : end + 2].isascii():
        raise Unreadable("goes on in another script")
    scale = _SCALE.match(text, end)
    if scale is not None:
        value *= _SCALES[scale[1].lower()]
        end = scale.end()
    unit, end = find_unit(text, end)
    if unit is PERCENT and style.percent == "share":
        value, unit = value / 100, None
    return Quantity(-value if negative else value, unit), end


def _is_negative(text: str, match: re.Match[str]) -> bool:
    """Whether the sign is a minus, not a hyphen; raises Unreadable where that is not certain."""
    before = text[max(0, match.start() - 4) : match.start()]
    last = before[-1:]
    if match["sign"]:
        if last and last in _MINUS + _OTHER_DASHES:
            raise Unreadable("more than one dash")
        joins = last.isnumeric() or (last != "" and last in ")]}")
        return match["sign"] in _MINUS and not joins
    if last.isnumeric() or before.endswith("}{"):
        raise Unreadable("a part of something else")
    if _CUT_GROUP.search(before) or _ZERO_GROUP.fullmatch(before[-2:] + match[0]):
        raise Unreadable("digits that go on")
    in_range = last != "" and last in _OTHER_DASHES and before[-2:-1].isnumeric()
    if last and last in _UNCERTAIN_BEFORE and not in_range:
        raise Unreadable("not a plain number")
    return False


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
