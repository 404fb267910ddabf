r"""What a text may be read as, once what tells apart only its spelling is gone.

For looking for what must not be there, not for comparing answers: it goes further than
`verifiers/texts.py`. Full-width and mathematical letters are plain ones, letters have no accents,
letters of other alphabets are the Latin ones that they look like, brackets are one of `([{<`,
quotes are `"` or `'`. Entities and escapes such as `&quot;`, `\u006f` and `\x6f` are what they
stand for, and backslashes are gone: `\"` is a quote. Linear in the length of the text.
"""

from __future__ import annotations

import html
import re
import unicodedata

from verifiers.texts import normal

_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});")
# However often a string is a string in a string. A row of backslashes is read once, from its start.
_ESCAPE = re.compile(r"(?<!\\)\\++(?:u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,5})\}|x([0-9A-Fa-f]{2}))")
_SPACE_ESCAPE = re.compile(r"(?<!\\)\\++[nrtfbv]")
_SURROGATES = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
# Control characters but for white space, and the accents of Latin letters.
_DROPPED = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u0300-\u036f]+")
# Bounded, so that what is never closed costs the same wherever it begins.
_COMMENT = re.compile(
    r"/\*(?:[^*]|\*(?!/)){0,400}+\*/|<!--(?:[^-]|-(?!->)){0,400}+-->|//[^\n]{0,400}|#[^\n]{0,400}"
)
_COMMENTED = ("/*", "<!--", "//", "#")

_LOOKALIKES = dict(
    zip(
        "аеорсухіјѕһԁԛԝӏАВЕКМНОРСТУХІЈЅαεικνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧıℓ",
        "aeopcyxijshdqwlABEKMHOPCTYXIJSaeikvoptuxABEZHIKMNOPTYXil",
        strict=True,
    )
)
_QUOTES = {**dict.fromkeys("‘’‚‛‹›ʼ′´", "'"), **dict.fromkeys("“”„‟«»″「」『』〝〞〟", '"')}


def _brackets() -> dict[str, str]:
    """Every opening and closing bracket of Unicode that is not ASCII, as a plain one."""
    found: dict[str, str] = {}
    for char in map(chr, [*range(0x0F3A, 0x0F3E), *range(0x2000, 0x3100), *range(0xFD3E, 0xFF70)]):
        category = unicodedata.category(char)
        if category in ("Ps", "Pe") and char not in _QUOTES:
            name = unicodedata.name(char)
            kind = 2 if "CURLY" in name else 1 if "SQUARE" in name or "LENTICULAR" in name else 0
            found[char] = ("([{" if category == "Ps" else ")]}")[kind]
    return found


_FOLDED = str.maketrans({**_LOOKALIKES, **_QUOTES, **_brackets()})


def folds(text: str) -> list[str]:
    """Return the texts that a text may be read as, the plainest first: at most four.

    `\\n` is read as white space and as an n, and comments as such and as text.
    """
    text = _plain(text)
    if "&" in text:
        text = _plain(_ENTITY.sub(lambda match: html.unescape(match[0]), text))
    if "\\" in text:
        text = _plain(_ESCAPE.sub(_character, text))
    found = [text.replace("\\", "")]
    if _SPACE_ESCAPE.search(text):
        found.append(_SPACE_ESCAPE.sub("\n", text).replace("\\", ""))
    if any(one in text for one in _COMMENTED):
        found += [_COMMENT.sub(" ", one) for one in found]
    return found


def squeezed(text: str) -> str:
    """Return the letters and digits of a folded text, in small letters."""
    if text.isascii() and text.isalnum():
        return text.lower()
    return "".join(filter(str.isalnum, text)).casefold()


def _plain(text: str) -> str:
    if text.isascii():
        return text if text.isprintable() else _DROPPED.sub("", text)
    text = _SURROGATES.sub(_joined, text).translate(_FOLDED)
    decomposed = unicodedata.normalize("NFKD", normal(text))
    return _DROPPED.sub("", decomposed).translate(_FOLDED)


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1] or match[2] or match[3], 16))


def _joined(match: re.Match[str]) -> str:
    return match[0].encode("utf-16", "surrogatepass").decode("utf-16")
