"""Calls in disguise, composed of names, arguments, and ways to spell and to wrap them."""

import json

from hypothesis import strategies as st

NAMES = st.from_regex(r"[a-z]{3,6}(_[a-z]{2,5})?", fullmatch=True).filter(
    lambda name: not {*name.split("_")} & {"nil", "none", "null", "left", "and", "frac", "sqrt"}
)
VALUES = st.sampled_from(["hall", "living room", "50", "it"])

INVISIBLE = ["\u200b", "\u00ad", "\u2060", "\ufeff", "\u034f", "\x00", "\ufe0f"]
FULL_WIDTH = {char: chr(ord(char) + 0xFEE0) for char in map(chr, range(0x21, 0x7F))}
MATHS = {chr(0x61 + place): chr(0x1D41A + place) for place in range(26)}
CYRILLIC = dict(zip("aeopcyx", "\u0430\u0435\u043e\u0440\u0441\u0443\u0445", strict=True))
BRACKETS = [("(", ")"), ("[", "]"), ("{", "}"), ("\uff08", "\uff09"), ("\u3010", "\u3011")]
ENTITIES = {'"': "&quot;", "{": "&#123;", "(": "&lpar;", "=": "&#x3d;"}


def translated(text: str, table: dict[str, str]) -> str:
    """Put other characters for those of a table."""
    return "".join(table.get(char, char) for char in text)


@st.composite
def masked(draw: st.DrawFn, text: str) -> str:
    """Return a text that looks the same or nearly so, and is other characters."""
    match draw(st.integers(0, 6)):
        case 0:
            place = draw(st.integers(0, len(text)))
            return text[:place] + draw(st.sampled_from(INVISIBLE)) + text[place:]
        case 1:
            return translated(text, draw(st.sampled_from([FULL_WIDTH, MATHS, CYRILLIC])))
        case 2:
            return translated(text, ENTITIES)
    return text


@st.composite
def keys(draw: st.DrawFn, key: str) -> str:
    """Spell a key of an object: with whatever quotes, case and escapes."""
    key = draw(st.sampled_from([key, key.title(), key.upper(), key + "\u200b"]))
    if draw(st.booleans()):
        key = f"\\u{ord(key[0]):04x}{key[1:]}"
    quote = draw(st.sampled_from(['"', "'", "", '"""', "\u201c", '\\"', "`"]))
    return f"{quote}{key}{quote}{draw(st.sampled_from(['', ' ', chr(10)]))}"


@st.composite
def name_values(draw: st.DrawFn, name: str) -> str:
    """Spell a name as a value: with whatever quotes, escapes and comments."""
    half = len(name) // 2
    spelt = draw(
        st.sampled_from(
            [
                *(name, name.upper(), name.replace("_", "-"), f"\\u{ord(name[0]):04x}{name[1:]}"),
                *(f"{name[:half]}\u200b{name[half:]}", f"{name[:half]}\\'{name[half:]}"),
            ]
        )
    )
    quote = draw(st.sampled_from(['"', "'", "", '"""', "\u201d", '\\"', "`"]))
    before = draw(st.sampled_from(["", " ", "\n", "/* a, b: c */", "// why\n", "# why\n"]))
    after = draw(st.sampled_from(["", " ", "/* a, b: c */", " // why\n"]))
    return f"{before}{quote}{spelt}{quote}{after}"


@st.composite
def objects(draw: st.DrawFn, name: str) -> str:
    """Spell a call as an object that JSON may not allow, with whatever words."""
    of_name = draw(st.sampled_from(["name", "tool", "function", "action", "tool_name"]))
    of_arguments = draw(st.sampled_from(["arguments", "args", "parameters", "params", "input"]))
    value = json.dumps({"area": draw(VALUES)})
    value = draw(st.sampled_from([value, json.dumps(value), "{area: hall}", "{", "[1", "null"]))
    sign = draw(st.sampled_from([":", " : ", "=", "=>"]))
    pairs = [
        f"{draw(keys(of_name))}{sign}{draw(name_values(name))}",
        f"{draw(keys(of_arguments))}{sign}{value}",
    ]
    if draw(st.booleans()) and not value.startswith(("{", "[1")):
        pairs.reverse()
    text = "{" + ", ".join(pairs) + draw(st.sampled_from(["}", ",}", "", "]", "}}"]))
    wrap = draw(
        st.sampled_from(
            ["{}", "Sure: {} done", "[{}]", "```json\n{}\n```", "<tool_call>{}</tool_call>"]
        )
    )
    text = wrap.replace("{}", text)
    return json.dumps({"say": text}) if draw(st.booleans()) else text


@st.composite
def arguments(draw: st.DrawFn) -> str:
    """Spell the inside of a call's brackets so that it looks like arguments."""
    value = draw(VALUES)
    one = json.dumps(value)
    return draw(
        st.sampled_from(
            [
                *(f"area={value}", f"area = {one}", f"area: {one}", f"'{value}'", one, f"r{one}"),
                *(f"f'{value}'", f"[{one}]", f"**{{'area': {one}}}", f"{{'area': {one}}}", "*args"),
            ]
        )
    )


@st.composite
def calls(draw: st.DrawFn, name: str) -> str:
    """Spell a call with brackets right after the name, behind whatever words."""
    inside = draw(arguments() | st.sampled_from(["hall", "1", "living room, 50", "", "true"]))
    around = draw(st.sampled_from(["{}", "`{}`", "none {}", "none; {}", "- {}", "[{}]", "x={}"]))
    space = draw(st.sampled_from(["", "\u200b", "\u2060"]))
    closing = draw(st.sampled_from([")", "", "))"]))
    bracket = draw(st.sampled_from(["(", "\uff08", "\u207d"]))
    return around.replace("{}", f"{name}{space}{bracket}{inside}{closing}")


@st.composite
def known_calls(draw: st.DrawFn, name: str) -> str:
    """Spell a call that only who knows the name can tell from prose."""
    inside = draw(arguments())
    name = draw(st.sampled_from([name, name.upper(), name.replace("_", " "), f"home.{name}"]))
    gap = draw(st.sampled_from([" ", "", "\n", "\u3000", "  ", "` ", "** "]))
    opening, closing = draw(st.sampled_from(BRACKETS))
    around = draw(st.sampled_from(["{}", "none {}", "I do: {} now", "(see {})"]))
    return around.replace("{}", f"{name}{gap}{opening}{inside}{closing}")
