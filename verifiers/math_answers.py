r"""Where the answer of a mathematical text is, and how it is written.

The answer is what the last `\boxed{...}` holds, else what the last line with the word "answer"
says, else the last line. Formulas stand in it alone or between dollar signs; a line with words is
prose, of which math-verify finds the last number or formula. What the words around that make of it
("not 7", "half of 7", "7 or more") is read as `numeric` reads it: then it is no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from verifiers.number_after import refuse_after
from verifiers.number_words import LOOK, Unreadable, bare, refuse_words

MAX_CHARS = 400
"""A longer answer is not read: the time that math-verify's grammar takes grows fast."""

_BOX = re.compile(r"\\f?box(?:ed)?\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SAYS = re.compile(r"answer(?:\s+is)?\s*[:=]?\s*", re.IGNORECASE)
_DELIMITED = re.compile(r"\$|\\\(|\\\[")
_NAMES = re.compile(r"\\(?:text|textbf|mathrm|mathbf|operatorname|begin|end)\s*\{[^{}]*\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_MINUS = re.compile(r"(?<![0-9)}$] )(?<!\w)(?:minus|negative)\s+(\$?)\s*(?=[0-9])", re.IGNORECASE)
# Each at once from its start: what is never closed is looked at once.
_SAID = re.compile(r"\$+[^$]{1,400}\$+|\\[(\[].{1,400}?\\[)\]]|[0-9](?:[0-9,./]*[0-9])?")
_MIXED = re.compile(r"(?<![0-9.,])([0-9]+)\s+([0-9]+)\s*/\s*([0-9]+)(?![0-9.,])")
_SCIENTIFIC = re.compile(
    r"(?<![0-9.])([0-9]{1,40}(?:\.[0-9]{1,40})?)"
    r"(?:[eE]([-+]?[0-9]{1,4})(?![0-9A-Za-z])"
    r"|\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{\s*([-+]?[0-9]{1,4})\s*\}|([0-9])))"
)
_LONGEST_DECIMAL = 40
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "\u00a0": " ",
    }
)


@dataclass(frozen=True)
class Written:
    """An answer as it is written: a formula, or prose with formulas or numbers in it."""

    text: str
    prose: bool = False


def answer_in(text: str, boxed_only: bool) -> Written | None:
    """Find the answer of a completion; None if there is none."""
    boxes = list(_BOX.finditer(text))
    if boxes:
        inside = _braced(text, boxes[-1].end())
        return None if inside is None else formula(inside)
    if boxed_only:
        return None
    line = _last_line(text)
    if line is None:
        return None
    line = _MINUS.sub(r"\1-", line.lstrip("# "))  # `#### 7`, as in GSM8K
    said = _SAYS.match(line)
    stated = formula((line[said.end() :] if said else line).strip("*").rstrip(".,;:"))
    if not _is_prose(stated.text):
        return stated
    return Written(line, prose=True) if _is_said(line) else None


def formula(text: str) -> Written:
    """An answer that is known to be one formula, or several between dollar signs.

    What is not LaTeX but plain enough is written as such: 1e5, 3 1/2, x², 2π.
    """
    text = text.translate(_SIGNS)
    text = _SUPERSCRIPT.sub(lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    text = _SCIENTIFIC.sub(_decimal, text)
    return Written(" ".join(text.split()))


def _decimal(match: re.Match[str]) -> str:
    """A number times a power of ten, written out if that is not too long: floats are not exact."""
    exponent = int(match[2] or match[3] or match[4])
    if abs(exponent) > _LONGEST_DECIMAL:
        return f"{match[1]}\\times 10^{{{exponent}}}"
    return f"{Decimal(f'{match[1]}e{exponent}'):f}"


def _braced(text: str, start: int) -> str | None:
    """The text up to the brace that closes the one before `start`; None if nothing does."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[start : match.start()]
    return None


def _last_line(text: str) -> str | None:
    """The last line that says "answer" and more, from that word on, else the last one of all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        place = line.lower().rfind("answer")
        if place >= 0 and _SAYS.sub("", line[place:], count=1).strip("*. "):
            return line[place:]
    return lines[-1] if lines else None


def _is_said(line: str) -> bool:
    """Whether the last number or formula of a line is what the line says, by the words around."""
    found = list(_SAID.finditer(line[-MAX_CHARS:]))
    if not found:
        return True
    last = found[-1]
    before = last.string[max(0, last.start() - LOOK) : last.start()]
    try:
        refuse_words(bare(before))
        refuse_after(last.string, last.start(), last.end())
    except Unreadable:
        return False
    return True


def _is_prose(text: str) -> bool:
    return bool(_DELIMITED.search(text) or _WORD.search(_NAMES.sub("", text)))
