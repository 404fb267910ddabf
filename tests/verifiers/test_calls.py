"""Reading calls out of text and tool calls."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT, JSON, KEYS
from verifiers import Sample, ToolCall
from verifiers.calls import MAX_CALLS, Syntax, read_call, read_calls, write_call
from verifiers.readings import Reading, Shape
from verifiers.values import Normalise, canonical

EXACT = Normalise(casefold=False, strip=False, numbers=False)
TEXT_SYNTAXES: list[Syntax] = ["json", "call"]


def read(text: str, syntax: Syntax = "call", ignore: bool = False) -> Reading | None:
    """Read a call out of a text."""
    return read_call(Sample(output_text=text), syntax, ignore)


@given(KEYS, st.dictionaries(KEYS, JSON, max_size=4), st.sampled_from(TEXT_SYNTAXES))
def test_a_written_call_reads_back_exactly(
    name: str, arguments: dict[str, Any], syntax: Syntax
) -> None:
    text = write_call(name, arguments, syntax)
    assert text is not None
    reading = read(text, syntax)
    assert reading is not None
    assert (reading.name, reading.shape) == (name, Shape.WHOLE)
    assert [key for key, _ in reading.arguments] == list(arguments)
    assert canonical(dict(reading.arguments), EXACT) == canonical(arguments, EXACT)


def test_tool_calls_are_not_text() -> None:
    assert write_call("f", {}, "tools") is None


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f()", ()),
        ("f(  )", ()),
        ("  f(a=1)\n", (("a", 1),)),
        ("f( a = living room , b = 2.5 )", (("a", "living room"), ("b", 2.5))),
        ("f(a='it\\'s, (ok)', b=\"x=\\\"y\")", (("a", "it's, (ok)"), ("b", 'x="y'))),
        ("f(a=kid's room)", (("a", "kid's room"),)),
        ("f(a=true, b=True, c=null)", (("a", True), ("b", "True"), ("c", None))),
        ('f(a=[1, "x"], b={"c": []})', (("a", [1, "x"]), ("b", {"c": []}))),
        ("f(a=٣)", (("a", "٣"),)),
        ("f(a=007, b=-1e2, c=1e999)", (("a", "007"), ("b", -100.0), ("c", "1e999"))),
        ("f(a='')", (("a", ""),)),
    ],
)
def test_whole_calls(text: str, arguments: tuple[tuple[str, Any], ...]) -> None:
    assert read(text) == Reading("f", arguments, Shape.WHOLE)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("f(", ()),
        ("f(a", ()),
        ("f(a=", ()),
        ("f(a=)", ()),
        ("f(a=x", (("a", "x"),)),
        ("f(a=x, ", (("a", "x"),)),
        ("f(a=x, b=y z=1)", (("a", "x"),)),
        ("f(a=x, x)", (("a", "x"),)),
        ("f(a=x, a=y)", (("a", "x"), ("a", "y"))),
        ("f(a=x\n, b=y)", (("a", "x"),)),
        ("f(a: x)", ()),
        ("f(a='x)", ()),
        ('f(a="x)', ()),
        ("f(a=[1, b=2)", ()),
        ("f(a=[NaN])", ()),
        ('f(a={"b": 1, "b": 2})', ()),
        ("f(x=1, a=" + "[" * 60_000, (("x", 1),)),
        ("f(a=1, b=2", (("a", 1), ("b", 2))),
    ],
)
def test_a_broken_call_keeps_its_name_and_what_could_be_read(
    text: str, arguments: tuple[tuple[str, Any], ...]
) -> None:
    assert read(text) == Reading("f", arguments, Shape.BROKEN)


@pytest.mark.parametrize("text", ["", "none", "call f()", "f ()", "(a=1)", "1f()", "é(a=1)", "=f("])
def test_what_does_not_begin_a_call_is_no_call(text: str) -> None:
    assert read(text) is None


def test_later_lines_surround_a_call_unless_ignored_and_its_own_line_always_counts() -> None:
    assert read("f(a=1)\nDone.") == Reading("f", (("a", 1),), Shape.SURROUNDED)
    assert read("f(a=1)\nDone.", ignore=True) == Reading("f", (("a", 1),), Shape.WHOLE)
    assert read("f(a=1)\nDone.\n g()", ignore=True) == Reading("f", (("a", 1),), Shape.SURROUNDED)
    assert read("f(a=1); g()", ignore=True) == Reading("f", (("a", 1),), Shape.SURROUNDED)
    assert read("\n\nf(a=1)  \r\n ") == Reading("f", (("a", 1),), Shape.WHOLE)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ('{"name": "f", "arguments": {"a": 1}}', Reading("f", (("a", 1),), Shape.WHOLE)),
        ('{"arguments": {}, "name": "f"}', Reading("f", (), Shape.WHOLE)),
        ('Ok {"name": "f", "arguments": {}}', Reading("f", (), Shape.SURROUNDED)),
        ('{"name": "f", "arguments": {}, "id": 1}', Reading("f", (), Shape.SURROUNDED)),
        ('{"name": "f"}', Reading("f", (), Shape.BROKEN)),
        ('{"name": "f", "arguments": "{}"}', Reading("f", (), Shape.BROKEN)),
        ('{"name": "f", "argu', Reading("f", (), Shape.BROKEN)),
        ('{"name": "f", "arguments": {"a": NaN}}', Reading("f", (), Shape.BROKEN)),
        ('{"name": "f", "arguments": {"a": 1, "a": 1}}', Reading("f", (), Shape.BROKEN)),
        ('{"name": 1, "arguments": {}}', None),
        ('{"name": ', None),
        ("null", None),
        ('["f"]', None),
    ],
)
def test_json_calls(text: str, reading: Reading | None) -> None:
    assert read(text, "json") == reading


def test_ignored_text_around_a_json_call_leaves_it_whole_but_more_keys_do_not() -> None:
    whole = read('Ok {"name": "f", "arguments": {}} done', "json", ignore=True)
    more = read('{"name": "f", "arguments": {}, "id": 1}', "json", ignore=True)
    second = read('{"name": "f", "arguments": {}} or {"name": "g", "ar', "json", ignore=True)
    assert whole is not None and whole.shape is Shape.WHOLE
    assert more is not None and more.shape is Shape.SURROUNDED
    assert second is not None and second.shape is Shape.SURROUNDED


def test_tool_calls_are_read_from_the_sample_and_a_second_one_is_never_ignored() -> None:
    call = ToolCall(name="f", arguments={"a": 1})
    bad = ToolCall(name="f", arguments={"a": float("nan")})

    def reading(*calls: ToolCall) -> Reading | None:
        return read_call(Sample(output_text="f(b=2)", output_tools=calls), "tools", True)

    assert reading() is None
    assert reading(call) == Reading("f", (("a", 1),), Shape.WHOLE)
    assert reading(call, call) == Reading("f", (("a", 1),), Shape.SURROUNDED)
    assert reading(bad) == Reading("f", (), Shape.BROKEN)


@given(HOSTILE_TEXT, st.sampled_from(TEXT_SYNTAXES), st.booleans(), st.booleans())
def test_any_text_is_read_or_is_no_call(
    text: str, syntax: Syntax, ignore: bool, begun: bool
) -> None:
    reading = read("f(a=" + text if begun else text, syntax, ignore)
    if begun and syntax == "call":
        assert reading is not None and reading.name == "f"


def shapes(text: str, syntax: Syntax, ignore: bool = False) -> list[tuple[str, Shape]]:
    """Read every call of a text, names and shapes only."""
    found = read_calls(Sample(output_text=text), syntax, ignore)
    return [(reading.name, reading.shape) for reading in found]


F, G = ('{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}')


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("json", f"{F} {G}"),
        ("json", f"[{F}, {G}]"),
        ("json", f" [ {F}\n,{G} ]\n"),
        ("json", f"{F}\n{G}"),
        ("call", "f(a=1)\ng()"),
        ("call", "\n f(a=1) \n\n  g()\n"),
    ],
)
def test_several_whole_calls(syntax: Syntax, text: str) -> None:
    assert shapes(text, syntax) == [("f", Shape.WHOLE), ("g", Shape.WHOLE)]


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("json", f"[{F}, {G}"),
        ("json", f"[{F} {G}]"),
        ("json", f"{F}, {G}"),
        ("json", f"[{F}, {G},]"),
        ("json", f"{F} and {G}"),
        ("json", f"{F} {{}} {G}"),
        ("json", f"Sure! {F} {G}"),
        ("call", "Sure!\nf(a=1)\ng()"),
        ("call", "f(a=1)\nand\ng()"),
        ("call", "f(a=1)\ng()\nDone."),
    ],
)
def test_text_around_several_calls_surrounds_each_unless_ignored(syntax: Syntax, text: str) -> None:
    assert shapes(text, syntax) == [("f", Shape.SURROUNDED), ("g", Shape.SURROUNDED)]
    assert shapes(text, syntax, ignore=True) == [("f", Shape.WHOLE), ("g", Shape.WHOLE)]


def test_a_broken_call_among_several_is_read_as_far_as_it_goes() -> None:
    broken = ("g", Shape.BROKEN)
    assert shapes(F + '{"name": "g", "argu', "json", ignore=True) == [("f", Shape.WHOLE), broken]
    assert shapes("g(a=\nf(a=1)", "call") == [broken, ("f", Shape.WHOLE)]


def test_calls_beyond_the_bound_are_not_read() -> None:
    for syntax, call in (("json", G), ("call", "g()\n")):
        assert len(shapes(call * (MAX_CALLS * 3), syntax)) == MAX_CALLS + 1  # type: ignore[arg-type]
    many = (ToolCall(name="g", arguments={}),) * (MAX_CALLS * 3)
    tools = read_calls(Sample(output_text="", output_tools=many), "tools", False)
    assert len(tools) == MAX_CALLS + 1
