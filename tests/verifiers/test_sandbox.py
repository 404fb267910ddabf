"""What code in the sandbox can do, cannot do, and what becomes of it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import JSON
from verifiers import sandbox
from verifiers.sandbox import NoModule, NoPython, NotCovered, OutOfMemory, Overran, Raised

TIMEOUT_S = 30.0
SHORT_S = 0.2


def value_of(expression: str, *codes: str, timeout_s: float = TIMEOUT_S, **inputs: Any) -> Any:
    with sandbox.session(timeout_s) as session:
        for code in codes:
            session.run(code)
        return session.value(expression, **inputs)


@given(JSON)
def test_json_goes_in_and_comes_out_as_it_is(value: Any) -> None:
    assert value_of("[x, type(x).__name__]", x=value) == [value, type(value).__name__]


@given(st.integers(-100, 100), st.lists(st.integers(-9, 9), max_size=6))
def test_code_says_what_python_says(number: int, numbers: list[int]) -> None:
    code = (
        "def f(n, xs):\n"
        "    total = {}\n"
        "    for i, x in enumerate(sorted(xs, reverse=True)):\n"
        "        total[str(x)] = total.get(str(x), 0) + x * i + n // 7\n"
        "    return [total, [x ** 2 for x in xs if x % 3], f'{n:+d}', sum(xs) / (len(xs) or 1)]\n"
    )
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert value_of("f(n, xs)", code, n=number, xs=numbers) == scope["f"](number, numbers)


def test_a_session_remembers_and_the_next_one_does_not() -> None:
    assert value_of("x + y", "x = 1", "y = x + 1") == 3
    with pytest.raises(Raised, match="name 'x' is not defined"):
        value_of("x")


def test_what_code_changes_in_modules_is_gone_in_the_next_session() -> None:
    assert value_of("math.inf == 1 or random.random()", "import math, random", "random.seed(5)") > 0
    first = value_of("random.random()", "import random")
    assert value_of("random.random()", "import random") == first


@pytest.mark.parametrize(
    "expression",
    [
        "random.random()",
        "time.time()",
        "str(datetime.datetime.now())",
        "list({'a', 'bc', 'def', 'x', 'y'})",
        "hash('text')",
    ],
)
def test_the_same_code_gives_the_same_result_every_time(expression: str) -> None:
    imports = "import random, time, datetime"
    assert value_of(expression, imports) == value_of(expression, imports)


OUTSIDE = {
    "fork": "import os\nos.fork()",
    "system": "import os\nos.system('true')",
    "kill": "import os\nos.kill(1, 9)",
    "exec": "import os\nos.execv('/bin/true', [])",
    "environment": "import os\nos.environ['HOME']",
    "getenv": "import os\nos.getenv('HOME')",
    "listdir": "import os\nos.listdir('/')",
    "open": "open('/etc/passwd').read()",
    "write": "open('/tmp/nightowl-sandbox', 'w').write('x')",
    "pathlib": "import pathlib\npathlib.Path('/etc/passwd').read_text()",
    "mkdir": "import pathlib\npathlib.Path('/tmp/nightowl-sandbox').mkdir()",
    "import hook": "__import__('os').system('true')",
    "builtins": "__builtins__['open']('/etc/passwd')",
    "subclasses": "().__class__.__base__.__subclasses__()",
    "globals of a function": "(lambda: 0).__globals__['os']",
    "code object": "(lambda: 0).__code__",
    "frame": "import sys\nsys._getframe()",
    "modules": "import sys\nsys.modules['os'].fork()",
    "entropy": "import os\nos.urandom(8)",
    "input": "input()",
    "breakpoint": "breakpoint()",
    "exit": "exit()",
    "compile": "compile('1', '', 'eval')",
    "eval": "eval('__import__')('os')",
    "package": "import numpy",
    "package of ours": "import verifiers",
    "own module": "import pydantic_monty",
    "loader": "__loader__.load_module('os')",
    "warnings": "import os\nos.warnings",
}


@pytest.mark.parametrize("code", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_there_is_no_way_to_the_outside(code: str) -> None:
    with pytest.raises(Raised):
        value_of("0", code)
    assert not Path("/tmp/nightowl-sandbox").exists()


@pytest.mark.parametrize(
    "module",
    [
        *("subprocess", "socket", "ctypes", "threading", "multiprocessing", "importlib", "pickle"),
        *("shutil", "signal", "gc", "inspect", "http.client", "urllib.request", "heapq", "string"),
    ],
)
def test_other_modules_of_python_are_not_there(module: str) -> None:
    with pytest.raises(NotCovered, match=module.partition(".")[0]):
        value_of("0", f"import {module}")


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("def f():\n    yield 1", "yield"),
        ("class A:\n    pass\nclass B(A):\n    pass", "inheritance"),
        ("x = 1\ndel x", "del"),
    ],
)
def test_what_the_interpreter_lacks_of_the_language_is_not_covered(code: str, what: str) -> None:
    with pytest.raises(NotCovered, match=what):
        value_of("0", code)


LOOPS = {
    "loop": "while True: pass",
    "loop that catches": "while True:\n  try:\n    1 / 0\n  except BaseException:\n    pass",
    "loop in finally": "try:\n    1 / 0\nfinally:\n    while True: pass",
    "prints": "while True: print('x' * 1000)",
    "sum": "sum(range(10 ** 12))",
    "factorial": "import math\nmath.factorial(10 ** 7)",
    "recursion": "def f(n): return f(n - 1) + f(n - 1) if n else 1\nf(200)",
    "regular expression": "import re\nre.match(r'(a|a|b)*?(?=c)(a*)*\\\\1$', 'a' * 5000)",
    "sleeps": "import time\nwhile True: time.sleep(1000)",
    "waits": "import asyncio\nwhile True: await asyncio.sleep(1000)",
    "copies": "x = 'a' * 10 ** 6\nwhile True: x = x[1:] + 'b'",
}


@pytest.mark.parametrize("code", LOOPS.values(), ids=LOOPS.keys())
def test_code_without_end_is_ended(code: str) -> None:
    with pytest.raises((Overran, Raised)) as end:
        value_of("0", code, timeout_s=SHORT_S)
    assert isinstance(end.value, Overran) or "sleep" in code or "re." in code
    assert value_of("1") == 1


HEAPS = {
    "list": "[0] * 10 ** 9",
    "text": "'a' * 10 ** 10",
    "power tower": "9 ** 9 ** 9 ** 9",
    "shift": "1 << 10 ** 10",
    "growing list": "x = []\nwhile True: x.append('a' * 1000)",
    "doubling": "x = 'a'\nwhile True: x += x",
    "format": "f'{1:>{10 ** 9}}'",
    "percent": "'%1000000000d' % 1",
    "range": "list(range(10 ** 9))",
    "nested": "x = []\nwhile True: x = [x, x]",
    "join": "','.join(['a' * 10 ** 6] * 10 ** 6)",
    "replace": "('a' * 10 ** 6).replace('a', 'a' * 10 ** 6)",
}


@pytest.mark.parametrize("code", HEAPS.values(), ids=HEAPS.keys())
def test_code_that_takes_all_memory_gets_none(code: str) -> None:
    with pytest.raises((OutOfMemory, Overran)):
        value_of("0", code, timeout_s=2.0)


DEEP: dict[str, str] = {
    "recursion": "def f(n): return f(n + 1)\nf(0)",
    "parentheses": "(" * 5000 + ")" * 5000,
    "signs": "-" * 60_000 + "1",
    "subscripts": "[]" + "[0]" * 20_000,
    "attributes": "x" + ".x" * 30_000,
    "lambdas": "lambda: " * 8_000 + "0",
    "json": "import json\njson.loads('[' * 100000)",
    "comparison": "x, y = [], []\nfor _ in range(100000): x, y = [x], [y]\nx == y",
    "digits": "int('9' * 100000)",
    "text of a number": "str(7 ** 200000)",
    "null": "x = 1\x00",
    "surrogate": "x = '\ud800'",
    "no python": "def (",
}


@pytest.mark.parametrize("code", DEEP.values(), ids=DEEP.keys())
def test_deep_and_odd_code_raises(code: str) -> None:
    with pytest.raises(Raised):
        value_of("0", code)


@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_the_value_of_code_stays_inside(count: int) -> None:
    assert value_of("len(x)", f"x = list(range({count}))\nx") == count


def test_an_error_names_the_line_of_the_first_code() -> None:
    with pytest.raises(Raised, match="division by zero") as caught:
        value_of("f()", "x = 1\ndef f():\n    return x / 0\n")
    assert caught.value.line == 3


def test_to_pretend_having_overrun_is_to_raise() -> None:
    with pytest.raises(Raised):
        value_of("0", "raise TimeoutError('feed time limit exceeded: 300ms > 300ms')")


def test_the_time_of_a_session_is_for_all_its_code() -> None:
    loop = "import time\nfor _ in range({}): pass"
    with pytest.raises(Overran), sandbox.session(SHORT_S) as session:
        for _ in range(10_000):
            session.run(loop.format(20_000))


def test_sessions_of_many_threads_do_not_mix() -> None:
    def own(number: int) -> Any:
        return value_of("x", f"x = {number}", "x = x * 2")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(own, range(40))) == [2 * number for number in range(40)]


def test_an_interpreter_that_is_killed_is_an_error_and_replaced() -> None:
    with pytest.raises(sandbox.Died), sandbox.session(TIMEOUT_S) as session:
        session.run("x = 1")
        _kill_interpreters()
        session.run("x = 2")
    assert value_of("1") == 1


def test_an_interpreter_that_died_while_nobody_used_it_is_not_missed() -> None:
    assert value_of("1") == 1
    _kill_interpreters()
    assert value_of("1") == 1


def _kill_interpreters() -> None:
    for child in psutil.Process(os.getpid()).children():
        if child.name() == "monty":
            child.kill()
            child.wait()


@pytest.mark.parametrize(
    ("codes", "kind", "place", "missing"),
    [
        (("import heapq",), NotCovered, 0, None),
        (("x = 1", "if x:\n    from numpy import (\n        array)"), NoModule, 1, "numpy"),
        (("def f(): import numpy", "f()"), NoModule, 0, "numpy"),
        (("raise ModuleNotFoundError(\"No module named 'heapq'\")",), Raised, 0, None),
        (("x = ModuleNotFoundError(\"No module named 'heapq'\")", "raise x"), Raised, 1, None),
        (("def f(): return g", "f()"), Raised, 0, "g"),
        (("def f(): return g", "f(x)"), Raised, 1, "x"),
        (("raise NameError(\"name 'g' is not defined\")",), Raised, 0, None),
        (("x = 1", "def ("), NoPython, 1, None),
        (("x = 1", "-" * 6000 + "1"), NoPython, 1, None),
        (("x = 1", "raise SyntaxError('no')"), Raised, 1, None),
        (("def f(): exec('(')", "f()"), Raised, 0, None),
    ],
)
def test_an_error_says_in_which_code_it_was_raised_and_what_was_missing(
    codes: tuple[str, ...], kind: type[Exception], place: int, missing: str | None
) -> None:
    with pytest.raises((Raised, NotCovered)) as caught:
        value_of("0", *codes)
    assert (type(caught.value), caught.value.place) == (kind, place)
    assert getattr(caught.value, "missing", None) == missing


def test_sessions_end_within_what_is_left_for_all_of_them() -> None:
    with sandbox.ending(1.0):
        for _ in range(2):
            with pytest.raises(Overran):
                value_of("0", "while True: pass")
    assert value_of("1") == 1


def test_code_that_comes_late_is_ended_with_its_session_not_after_its_own_time() -> None:
    with pytest.raises(Overran), sandbox.session(TIMEOUT_S) as session:
        pid = session._session.worker_pid
        assert pid is not None
        session.run("x = 1")
        session._end -= TIMEOUT_S - 1.5  # as if other code had taken the rest
        session.run("while True: pass")
    assert not psutil.pid_exists(pid)  # it was killed from outside: its own limit comes later


def test_builtins_are_known_and_look_the_same_in_every_session() -> None:
    known = sandbox.known_builtins()
    assert {"len", "int", "ValueError", "sorted"} <= known.keys()
    assert "globals" not in known
    assert value_of("[len, int, sorted]") == [known["len"], known["int"], known["sorted"]]


@given(st.text(max_size=400))
def test_what_is_shown_is_the_beginning_on_one_line(text: str) -> None:
    line = sandbox.shown(text)
    assert line.isprintable()
    assert len(line) <= sandbox.MAX_SHOWN_CHARS + 3
    assert all(a in (b, " ") for a, b in zip(line[: sandbox.MAX_SHOWN_CHARS], text, strict=False))
