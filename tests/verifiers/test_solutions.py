"""The code that defines what tests use is found among prose, examples, tests and drafts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.blocks import code_of
from verifiers.solutions import solution

RIGHT = "def add(a, b):\n    return a + b\n"
ADD = frozenset({"add"})


def fenced(*codes: str, language: str = "python") -> str:
    return "\n\nand\n\n".join(f"```{language}\n{code.rstrip()}\n```" for code in codes)


def indented(code: str, by: str = "    ") -> str:
    return "".join(f"{by}{line}" if line.strip() else line for line in code.splitlines(True))


@pytest.mark.parametrize(
    "other",
    [
        "print(add('a', 1))",
        "raise ValueError",
        "a = int(input())\nprint(add(a, a))",
        "import unittest\nfrom solution import add\nclass T(unittest.TestCase): pass",
        "from solution import add\nassert add(1, 2) == 3",
        f"{RIGHT}\nx = int(input())",
        "import pytest\ndef add(a, b): return 0",
        "x = ",
        ">>> add(1, 2)\n3",
    ],
)
def test_an_example_in_another_block_is_left_out(other: str) -> None:
    assert solution(fenced(RIGHT, other), ADD) == RIGHT
    if not other.startswith(RIGHT):
        assert solution(fenced(other, RIGHT), ADD) == RIGHT


@pytest.mark.parametrize(
    ("codes", "taken"),
    [
        (["def add(a, b): return 0", "def add(a): return a"], [1]),  # what is defined last holds
        (["def help(): pass", "def add(a): help()"], [0, 1]),
        (["def add(a): help()", "def help(): pass", "print(add(1))"], [0, 1]),
        (["import math", "def add(a): return math.pi", "import math\nraise Exception"], [0, 1]),
        (["x = 1", "y = 2", "def add(a): return x"], [0, 2]),
        (["def add(a): pass", "add = len(add)"], [0, 1]),
        (["class add: pass", "def put(self): pass\nadd.put = put", "raise ValueError"], [0, 1]),
        (["add = {}", "add['a'] = 1", "other = {}\nother[1] = 1"], [0, 1]),
        (["from operator import add"], [0]),
        (["raise ValueError\ndef add(): pass"], [0]),
    ],
)
def test_parts_that_need_each_other_are_taken_in_their_order(
    codes: list[str], taken: list[int]
) -> None:
    assert solution(fenced(*codes), ADD) == "".join(f"{codes[number]}\n" for number in taken)


def test_a_block_of_another_language_is_taken_where_it_alone_defines_the_names() -> None:
    for language in ("", "text"):
        text = f"{fenced('print(add(1, 2))')}\n{fenced(RIGHT, language=language)}"
        assert solution(text, ADD) == RIGHT


@pytest.mark.parametrize("by", ["    ", "\t", "      "])
def test_code_that_white_space_makes_code_of_is_read(by: str) -> None:
    code = f"import math\n\n{RIGHT}"
    for text in (
        indented(code, by),
        f"Here is it:\n\n{indented(code, by)}\nIt adds two numbers.",
        f"Sure!\n\n{indented(code, by)}\nUse it so:\n\n{indented('add(1, x)', by)}",
    ):
        assert solution(text, ADD).strip() == code.strip()


@pytest.mark.parametrize("before", ["Here is the function:\n\n", "Sure, it's easy:\n", "Hm.\n\n\n"])
@pytest.mark.parametrize(
    "after", ["", "\nThis adds two numbers.", "\n\nIt's right.\n\nadd(1, x)\n"]
)
def test_prose_around_code_without_fences_is_dropped(before: str, after: str) -> None:
    code = "@cache\ndef add(a, b):\n    if a:\n        b += a\n\n    return twice(b)\n"
    helper = "def twice(a):\n    return (\n        a\n    )\n"
    found = solution(f"{before}{helper}\n{code}{after}", ADD)
    assert found.replace("\n\n", "\n") == f"{helper}{code}".replace("\n\n", "\n")


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", RIGHT, "Sorry, I can't.", "def add(a, b:", "y = 1\n\ndef add(): return y\n"),
        "def sub(a):\n\n    add = 1\n    return (",
        "Look:\n\n    def other(): pass\n",
    ],
)
def test_a_text_that_is_python_or_defines_nothing_wanted_is_all_of_it(text: str) -> None:
    assert solution(text, ADD) == text


LINES = ["```", "```py", "def add(): x", "y = 1", "    z = 2", "add()", "", "It's"]


@given(st.lists(st.sampled_from(LINES), max_size=12).map("\n".join))
def test_every_line_of_code_is_one_of_the_text(text: str) -> None:
    lines = {line.strip() for line in text.split("\n")}
    assert {line.strip() for line in solution(text, ADD).split("\n")} <= lines | {""}
    assert solution(text, frozenset()) == code_of(text)


def test_a_text_of_very_many_parts_is_taken_as_it_is() -> None:
    text = "It's\n" + "x = 1\n" * 30_000 + RIGHT
    assert solution(text, ADD) == text
