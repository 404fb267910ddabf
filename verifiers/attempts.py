"""Whether a text tries to call something, in whatever form: for where nothing may be called.

Here, too much is seen rather than too little: a call that nobody sees would be learned. Prose must
pass all the same, and the names of all functions, where they are known, tell more. In the folded
text (`verifiers/folding.py`) these are attempts:

* a marker of a tool call, such as `<tool_call>`, `[TOOL_CALLS]`, `<function=`, `Action Input:`;
* a known name with a bracket right after it, or `{`, or with another bracket after a space if what
  is in it looks like arguments: `key=`, `key:`, a quote, an object, nothing. Bare words or numbers
  after a space count only if name and brackets are the whole line: "nothing is off (it is dark)";
* a known name that is the value of a key that names calls (`name`, `tool`, `action`, ...), or,
  behind a brace, of any key or in quotes, or in quotes before an object: `["off", {...}]`;
* any name of more than one letter with `(` right after it, and with a space if `key=` or `)`
  follows; endings such as "light(s)" are none;
* behind a brace, a key such as `tool` or `action` with a name as its value, or `name` where another
  key is `arguments`, `args`, `parameters`, `input` or such; a text that is an object of objects,
  `{"off": {...}}`; and `name:` on a line before one with `arguments:`.

The last two count where the names are not all there are. And a line that begins with a known name
with an underscore in it, `turn_off hall`, is an attempt, too. Linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from verifiers.folding import folds, squeezed


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_POSSIBLE = re.compile(r"[(\[{<:=&\\]|[^\x00-\x7f]")
_MARKS = re.compile(
    r"[<\[](?:[^<>\[\]\n]{0,30}?(?:tool|function)[\W_]{0,3}(?:calls?|use)(?![a-z])"
    r"|(?<=<)(?:function\b|invoke\b|\|open\|>\s*+tools|\|python_tag))",
    re.IGNORECASE,
)
_INPUT = re.compile(r"\b(?:action|tool)[ _]?input[\"']?\s*[:=]")
# Whole words with an underscore: nobody begins a line of prose with one.
_LINE_NAME = re.compile(r"^[^\w\n]{0,8}([^\W_]+_\w+)", re.MULTILINE)
_OBJECTS = re.compile(
    r"[^\w{]{0,40}(?:json\b\s*+)?\{\s*+[\"']?(?!(?:answer|response|result|message|content|error|output|data)\b)"
    r"[A-Za-z_][\w.]*+[\"']?\s*+:\s*+\{(?s:.*)\}\s*+\}\W{0,40}\Z",
    re.IGNORECASE,
)
_FIELDS = re.compile(
    r"^[^\w\n]{0,8}(?:name|function|tool|action)\s*+:[^\n]{1,80}+\n"
    r"[^\w\n]{0,8}(?:arguments|args|parameters|params|input)\s*+:",
    re.IGNORECASE | re.MULTILINE,
)
_CALLED = re.compile(r"[\"'](?:tool|function)(?:_?calls?)?[\"']\s*+:\s*+[\[{]", re.IGNORECASE)
# A word, what may stand between a name and its bracket, and the bracket.
_BRACKETED = re.compile(r"(?<!\w)(\w++)([\s\"'`*~:=>|!?.)-]*+)([(\[{<])")
_WORD = re.compile(r"\w+")
_TAG = re.compile(r"<\s*(\w{1,80})")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDING = re.compile(r"(?:s|es|ies|d|ed|r|er|n|en|e|ing|ly|in|innen)\)")
_PROSE_KEYS = (
    "note|hint|tip|reason|because|see|warning|error|status|state|info|update|source|also|ps"
)
_KEYED = r"[\w.-]++\s*+(?:=(?!=)|:=|->)"
_TEXT = r"[rbfu]{0,2}[\"']"
_COLON = rf"(?!(?:{_PROSE_KEYS})\b)[a-z_][\w-]*+\s*+:(?!//)"
_STAR = r"\*{0,2}(?:\{|\[\s*+[\"'{\[0-9])|\*{1,2}\w++\s*+\)"
_ARGUMENT = re.compile(
    rf"\s*+(?:\)|{_KEYED}|{_TEXT}|{_COLON}|{_STAR})",
    re.IGNORECASE,
)
_SURE_ARGUMENT = re.compile(rf"\s*+(?:\)|{_KEYED})")
_STRUCTURED = re.compile(rf"\s*+(?:{_KEYED}|{_TEXT}|{_COLON})", re.IGNORECASE)
_FEW_WORDS = r"\s*+[\w.'-]++(?: [\w.'-]++)?"
_BARE_LINE = re.compile(rf"{_FEW_WORDS}(?:,{_FEW_WORDS})*+\s*+[)\]][^\w\n]*+(?:\n|$)")
# What follows `<` in a comparison or in HTML.
_NO_ARGUMENT = re.compile(
    r"[^A-Za-z\"']|(?:br|b|i|u|s|p|em|strong|code|span|div|sub|sup|li|ul|ol|td|tr|hr|a)\b"
)
_QUOTING = frozenset("\"'`*~")
_ENDS = frozenset("!?.)")  # as in `off!(hall)`, `off?.(hall)` and `(off)(hall)`
_RUNNERS = _words("call run execute exec invoke apply function tool action do use")
_RUN = re.compile(r"[\s\"'`]*+([\w.-]{1,80})[\"'`\s]*+[,)]")

# The sign between a key and a value, and the value: what stands before the next sign, comma or
# bracket. Where that is a sign, the next key is a part of it.
_PAIR = re.compile(r"[:=]++>?[\s\[({\"'`+]*+(?=([^,:={}\[\]\n;]{0,80}+)([:=]?))")
_LAST_WORD = re.compile(r"[\"'`]?\w*+\W*$")
_QUOTED = re.compile(r"[\"'](?=([^\"'{}\[\]:,\n]{1,80}+)[\"']++(?!\s*+[:=]))")
_LISTED = re.compile(r"[\"'](?=([^\"'{}\[\]:,\n]{1,80}+)[\"']++\s*+,\s*+[{\[])")
# What belongs to no name, or joins the parts of one: `"o" + "ff"`.
_NO_PART = re.compile(r"[\"'`]\s*+\+\s*+|[\"'`)+]")
_VALUE_NAME = re.compile(r"[A-Za-z_][\w./-]{0,63}")
_CALL_KEYS = _words(
    "tool function toolname functionname toolcall functioncall toolcalls functioncalls"
)
_ACTION_KEYS = _CALL_KEYS | _words("action actionname service command intent call method do")
_NAME_KEYS = _ACTION_KEYS | _words("name api fn func")
_ARGUMENT_KEYS = _words(
    "arguments argument args arg parameters parameter params kwargs input inputs "
    "toolinput actioninput actionargs toolargs functionarguments"
)
_NO_NAMES = _words("none null nil nothing no false true undefined na empty string")
_NO_FUNCTIONS = _words("left right bigl bigr boxed text mathrm frac sqrt and or")
_LOOK = 80  # characters before a sign or a bracket, for what the last words there are


@dataclass(frozen=True)
class _Known:
    """Names as they are spelt, and what is left of them when only letters and digits count."""

    exact: frozenset[str]
    squeezed: frozenset[str]


def attempts_call(
    text: str, names: Collection[str] = (), *, only: bool = False, lines: bool = True
) -> bool:
    """Tell whether a text attempts a call.

    `names` are known functions, and with `only` there are no others. Without `lines`, a name with
    brackets after it is no call, whatever is in them.
    """
    known = _known(frozenset(names))
    if _begins_line(text, known):
        return True
    if not _POSSIBLE.search(text):
        return False
    return any(
        _has_marks(one)
        or (not only and _is_structure(one))
        or _has_pairs(one, known, only)
        or (lines and _has_brackets(one, known, only))
        for one in folds(text)
    )


@lru_cache(maxsize=256)
def _known(names: frozenset[str]) -> _Known:
    folded = frozenset(folds(name)[0] for name in names)
    return _Known(folded, frozenset(map(squeezed, folded)) - {""})


def _is_structure(text: str) -> bool:
    return any((_OBJECTS.match(text), _FIELDS.search(text), _CALLED.search(text)))


def _begins_line(text: str, known: _Known) -> bool:
    if "_" not in text:
        return False
    named = (match[1] for match in _LINE_NAME.finditer(text))
    return any(name in known.exact for name in named)


def _has_marks(text: str) -> bool:
    if ("<" in text or "[" in text) and _MARKS.search(text):
        return True
    lowered = text.lower()
    return "input" in lowered and _INPUT.search(lowered) is not None


def _has_brackets(text: str, known: _Known, only: bool) -> bool:
    tags = _TAG.finditer(text) if known.squeezed and "<" in text else ()
    if any(squeezed(one[1]) in known.squeezed for one in tags):
        return True
    return any(
        (bool(known.squeezed) and _calls_known(match, known))
        or (not only and _calls_something(match))
        for match in _BRACKETED.finditer(text)
    )


def _calls_known(match: re.Match[str], known: _Known) -> bool:
    """Tell for a word and a bracket whether a known name is called."""
    if any(one in known.squeezed for one in _names_before(match)):
        return _is_called(match, known)
    if match[1].lower() not in _RUNNERS:
        return False
    method = match.string[match.start() - 1 : match.start()] == "."
    before = _names_before(match, method=True) if method else iter(())
    run = _RUN.match(match.string, match.end()) if match[3] == "(" else None
    inside = run is not None and squeezed(run[1]) in known.squeezed
    return inside or any(one in known.squeezed for one in before)


def _names_before(match: re.Match[str], method: bool = False) -> Iterator[str]:
    """Yield the last word before a bracket, with more and more words before it.

    Words, because `turn on(` calls `turn_on`. The last one is left out if it is a method's.
    """
    end = match.start() if method else match.end(1)
    words = _WORD.findall(match.string[max(0, end - _LOOK) : end])[-4:]
    joined = ""
    for word in reversed(words):
        joined = squeezed(word) + joined
        yield joined


def _is_called(match: re.Match[str], known: _Known) -> bool:
    """Tell for a known name and a bracket whether they are a call rather than prose."""
    gap, bracket, text, inside = match[2], match[3], match.string, match.end()
    if bracket == "{":
        return True
    if bracket == "<":
        return not gap and _NO_ARGUMENT.match(text, inside) is None
    if not set(gap) - _QUOTING - _ENDS:
        footnote = bracket == "[" and text.startswith("^", inside)
        return not footnote and not _ENDING.match(text, inside)
    if _ARGUMENT.match(text, inside):
        return True
    alone = match[1] in known.exact and not gap.strip()
    return alone and _is_line(match) and bool(_BARE_LINE.match(text, inside))


def _calls_something(match: re.Match[str]) -> bool:
    """Tell for a word and a bracket whether they are a call, whatever functions there are."""
    word, gap, bracket, text, inside = match[1], match[2], match[3], match.string, match.end()
    if bracket == "<" or not _IDENTIFIER.fullmatch(word) or word.lower() in _NO_FUNCTIONS:
        return False
    if not set(gap) - _QUOTING:
        if bracket != "(" or len(word) == 1:
            return _STRUCTURED.match(text, inside) is not None
        return text[inside : inside + 1].isascii() and not _ENDING.match(text, inside)
    if bracket != "(" or gap.strip():
        return False
    if _SURE_ARGUMENT.match(text, inside):
        return True
    return _is_line(match) and _STRUCTURED.match(text, inside) is not None


def _is_line(match: re.Match[str]) -> bool:
    """Tell whether a line begins with the match, but for signs; of a line's signs few are read."""
    start = match.start()
    before = match.string[max(0, start - _LOOK) : start]
    line = before.rpartition("\n")[2]
    return not _WORD.search(line) and (start <= _LOOK or len(line) < len(before))


def _has_pairs(text: str, known: _Known, only: bool) -> bool:
    """Tell whether keys and values, or values in quotes, spell a call."""
    brace = text.find("{")
    inside = brace if brace >= 0 else len(text)
    if known.squeezed and brace >= 0:
        quoted = chain(_QUOTED.finditer(text, brace), _LISTED.finditer(text))
        if any(_is_name(one[1], known) for one in quoted):
            return True
    named = with_arguments = False
    for match in _PAIR.finditer(text):
        value = _LAST_WORD.sub("", match[1]) if match[2] else match[1]
        braced = match.start(1) > inside
        if known.squeezed and _is_name(value, known) and (braced or _key(match) in _NAME_KEYS):
            return True
        if only or brace < 0:
            continue
        key = _key(match)
        with_arguments = with_arguments or key in _ARGUMENT_KEYS
        if key in _NAME_KEYS and _may_be_name(value):
            if key in _ACTION_KEYS and braced:
                return True
            named = True
    return named and with_arguments


def _key(match: re.Match[str]) -> str:
    """Return the last word before a sign."""
    words = _WORD.findall(match.string[max(0, match.start() - _LOOK) : match.start()])
    return squeezed(words[-1]) if words else ""


def _is_name(value: str, known: _Known) -> bool:
    if squeezed(value) in known.squeezed:
        return True
    if "." not in value and "/" not in value:
        return False
    return squeezed(re.split(r"[./]", value)[-1]) in known.squeezed


def _may_be_name(value: str) -> bool:
    bare = _NO_PART.sub("", value).strip()
    return bool(_VALUE_NAME.fullmatch(bare)) and squeezed(bare) not in _NO_NAMES
