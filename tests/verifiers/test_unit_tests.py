"""The `unit_tests` grader: code is run against tests, and cannot talk its way through them."""

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import JSON
from verifiers import Grade, GraderConfigError, Sample, Status, build

pytestmark = pytest.mark.usefixtures("patient")

TIMEOUT_S = 30.0
RIGHT = "def add(a, b):\n    return a + b\n"
TESTS: list[Any] = ["assert add(1, 2) == 3", {"call": "add(2, 2)", "equals": 4}]


def graded(text: str, tests: Any = TESTS, **fields: Any) -> Grade:
    grader = build({"type": "unit_tests", "timeout_s": TIMEOUT_S, **fields})
    return grader.grade(Sample(output_text=text), {"tests": tests, "code": RIGHT})


def test_right_code_passes_bare_or_fenced_with_talk_around_it() -> None:
    for text in (RIGHT, f"```python\n{RIGHT}```", f"Sure!\n```\n{RIGHT}\n```\nIt adds. ```x```"):
        grade = graded(text)
        assert (grade.passed, grade.score) == (True, 1)
        assert grade.subscores == {"runs": 1, "tests": 1}


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.floats(0, 0.9))
def test_the_score_is_the_weighed_share_of_tests_passed(right: list[bool], weight: float) -> None:
    tests = [{"call": "add(1, 1)", "equals": 2 if one else 3} for one in right]
    share = sum(right) / len(right)
    grade = graded(RIGHT, tests, runs_weight=weight)
    assert grade.passed == all(right)
    assert grade.subscores == {"runs": 1, "tests": share}
    assert grade.score == pytest.approx(weight + (1 - weight) * share, abs=1e-5)


@given(JSON, JSON)
def test_a_value_equals_itself_and_nothing_else(value: Any, other: Any) -> None:
    code = f"def f():\n    return {value!r}"
    assert graded(code, [{"call": "f()", "equals": value}]).passed
    same = graded(code, [{"call": "f()", "equals": other}]).passed
    assert same == (_tagged(value) == _tagged(other))


def _tagged(value: Any) -> Any:
    """A value of which Python's own equality is that of JSON: true is not 1, but 1.0 is."""
    match value:
        case bool():
            return "bool", value
        case list():
            return [_tagged(one) for one in value]
        case dict():
            return {key: _tagged(one) for key, one in value.items()}
    return value


def test_tuples_are_lists_and_other_values_are_no_json() -> None:
    wanted = [{"call": "f()", "equals": [1, [2]]}]
    assert graded("def f(): return (1, (2,))", wanted).passed
    for value in ("{1}", "b'1'", "f", "range(3)", "[float('nan')]", "1j", "object"):
        grade = graded(f"def f(): return {value}", [{"call": "f()", "equals": None}])
        assert grade.status is Status.FAILED
    deep = "def f():\n    x = []\n    for _ in range(5000): x = [x]\n    return x"
    assert graded(deep, [{"call": "f()", "equals": []}]).status is Status.FAILED


def test_an_object_that_equals_everything_does_not_pass_a_comparison_outside() -> None:
    code = (
        "class All:\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "def add(a, b): return All()"
    )
    inside, outside = (graded(code, [test]) for test in TESTS)
    assert inside.passed  # which is why the other kind of test exists
    assert outside.status is Status.FAILED


@pytest.mark.parametrize(
    "code",
    [
        "",
        "def (",
        "def add(a, b): return a - b",
        "def add(a, b): raise ValueError",
        "def add(a): return a",
        "raise SystemExit",
        "raise KeyboardInterrupt",
        "add = 3",
        "import numpy",
        "import os\nos.fork()",
        "open('/etc/passwd')",
        "x = [0] * 10 ** 10",
        "def add(a, b): return [0] * 10 ** 10",
        "def add(a, b): return add(a, b)",
        "\x00",
        "\ud800",
        "(" * 60_000,
        "-" * 60_000 + "1",
        "assert False",
        "def add(a, b): raise TimeoutError('feed time limit exceeded')",
        RIGHT.replace("add", "sum"),
        "print(" + repr("x" * 50_000) + ")",
        "```python\n```",
    ],
)
def test_code_that_is_wrong_fails(code: str) -> None:
    grade = graded(code)
    assert (grade.status, grade.error) == (Status.FAILED, None)


def test_a_value_whose_lists_hold_each_other_many_times_fails() -> None:
    for pair in ("[x, x]", "{'a': x, 'b': x}", "(x, x)"):
        web = f"def f():\n    x = []\n    for _ in range(40): x = {pair}\n    return x"
        for equals in ([], [[], []], {"a": [], "b": {}}, 1):
            grade = graded(web, [{"call": "f()", "equals": equals}])
            assert grade.status is Status.FAILED
    cycle = "def f():\n    x = []\n    x.append(x)\n    return x"
    assert graded(cycle, [{"call": "f()", "equals": [[]]}]).status is Status.FAILED


@pytest.mark.parametrize("value", ["10 ** 100_000", "[10 ** 100_000]", "'a' * 10 ** 7"])
@pytest.mark.parametrize("equals", [1, [1], "a"])
def test_a_value_that_is_huge_fails(value: str, equals: Any) -> None:
    grade = graded(f"def f(): return {value}", [{"call": "f()", "equals": equals}])
    assert grade.status is Status.FAILED


@pytest.mark.parametrize(
    "code",
    [
        "raise ModuleNotFoundError(\"No module named 'heapq'\")",
        "raise ModuleNotFoundError(\"No module named 'heapq'\"); import heapq",
        "def add(a, b): raise ModuleNotFoundError(\"No module named 'heapq'\")",
        "try:\n    import heapq\nexcept ImportError as e:\n    raise ModuleNotFoundError(str(e))",
        "raise NotImplementedError('does not yet support yield')",
        "def add(a, b): raise NameError(\"name 'add' is not defined\")",
    ],
)
def test_code_that_only_claims_that_the_sandbox_lacks_something_fails(code: str) -> None:
    assert graded(code).status is Status.FAILED


@pytest.mark.parametrize(
    "shadow",
    [
        "def sorted(x): return [1, 2]",
        "sorted = lambda x: [1, 2]",
        "class sorted: pass",
        "import math as sorted",
        "for sorted in [abs]: pass",
        "[sorted := abs for _ in range(1)]",
        "exec('sorted = lambda x: [1, 2]')",
        "eval('(sorted := lambda x: [1, 2])')",
        "def f(x):\n    global sorted\n    sorted = lambda x: [1, 2]\n    return x",
        "def f(x):\n    exec('global sorted\\nsorted = lambda x: [1, 2]')\n    return x",
        "def f(x):\n    eval('exec')('global sorted\\nsorted = lambda x: [1, 2]')\n    return x",
        "y = {'a': 1}\nz = f'{y[\"a\"]}'\ndef f(x):\n    global sorted\n    sorted = list",
    ],
)
def test_code_that_gives_a_builtin_of_the_tests_another_meaning_fails(shadow: str) -> None:
    tests = ["assert f([3]) is None or True", "assert sorted([2, 1]) == [1, 2]"]
    honest = "def f(x): return x\n"
    assert graded(honest, tests).passed
    assert graded(f"{honest}{shadow}", tests).status is Status.FAILED


def test_builtins_that_setup_uses_are_genuine_too_and_its_names_stay_its_own() -> None:
    setup = "LIMIT = 1e-6\ndef close_to(a, b):\n    assert abs(a - b) < LIMIT"
    tests = ["close_to(f(0.5), 0.5)"]
    assert graded("def f(x): return x", tests, setup=setup).passed
    for cheat in (
        "def abs(x): return 0\ndef f(x): return 9",
        "def f(x):\n    global LIMIT\n    LIMIT = 100\n    return 9",
        "def f(x):\n    global close_to\n    close_to = print\n    return x",
    ):
        assert graded(cheat, tests, setup=setup).status is Status.FAILED


def test_code_may_use_global_and_builtins_names_that_no_test_needs() -> None:
    code = (
        "count = 0\ndef max(a, b): return a if a > b else b\n"
        "def f():\n    global count\n    count = max(count, 0) + 1\n    return count\n"
        "def g(text):\n    'Not the global len.'\n    return eval(text)"
    )
    assert graded(code, ["assert f() == 1 and len([f()]) == 1", "assert g('1 + 2') == 3"]).passed


BROKEN = {
    "package": "import numpy",
    "unknown module": "from nowhere import nothing",
    "module that the sandbox lacks": "import heapq",
    "in a function": "def check():\n    import numpy\ncheck()",
    "language": "def g():\n    yield 1",
    "no python": "break",
    "builtin that the sandbox lacks": "globals()",
    "name": "undefined()",
    "name in a function": "def check(x):\n    assert x == undefined\ncheck(add(1, 2))",
    "too deep": "x = " + "-" * 250 + "1",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_wrong_with_setup_or_tests_is_not_the_codes_fault(broken: str) -> None:
    for code in (RIGHT, RIGHT.replace("+", "-")):
        of_setup = graded(code, setup=broken)
        of_item = graded(code, [*TESTS, broken])
        of_config = build(
            {"type": "unit_tests", "timeout_s": TIMEOUT_S, "tests": [*TESTS, broken]}
        ).grade(Sample(output_text=code), {})
        kinds = [grade.error_kind for grade in (of_setup, of_item, of_config)]
        assert kinds == ["config", "item", "config"]


@pytest.mark.parametrize("broken", ["x = 1 / 0", "import math\nmath.nothing", "raise ValueError"])
def test_setup_that_raises_by_itself_is_the_configurations_error(broken: str) -> None:
    grade = graded(RIGHT, setup=broken)
    assert grade.error_kind == "config"
    assert grade.error is not None and grade.error.startswith("setup raises by itself: ")
    assert graded(RIGHT, setup="add(1)").status is Status.FAILED


def test_a_missing_name_is_judged_by_what_right_code_defines() -> None:
    tests = ["assert add(1, 2) == 3", "assert sub(3, 1) == 2"]
    both = f"{RIGHT}\ndef sub(a, b): return a - b"

    def judged(code: str, right: str | None, **fields: Any) -> Grade:
        config = {"type": "unit_tests", "timeout_s": TIMEOUT_S, "reference": "right", **fields}
        item = {"tests": tests} | ({} if right is None else {"right": right})
        return build(config).grade(Sample(output_text=code), item)

    assert judged(both, None).passed
    assert judged("x = 1", None).status is Status.FAILED  # it defines nothing that is wanted
    assert judged(RIGHT, None).error_kind == "item"
    assert judged(RIGHT, None, unjudged="failed").status is Status.FAILED
    assert judged(RIGHT, RIGHT).error_kind == "item"
    half = judged(RIGHT, both)
    assert (half.status, half.subscores["tests"]) == (Status.FAILED, 0.5)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("while True: pass", "timeout"),
        ("def add(a, b):\n    while True: pass", "timeout"),
        ("x = sum(range(10 ** 12))", "timeout"),
        ("import subprocess", "sandbox"),
        ("def add(a, b):\n    import heapq\n    return a + b", "sandbox"),
        ("def add(a, b):\n    yield a + b", "sandbox"),
    ],
)
def test_code_that_cannot_be_judged_is_errored_or_failed_as_configured(
    code: str, kind: str
) -> None:
    grade = graded(code, timeout_s=0.2)
    assert (grade.score, grade.error_kind) == (None, kind)
    failed = graded(code, timeout_s=0.2, unjudged="failed")
    assert (failed.status, failed.score) == (Status.FAILED, 0)


def test_setup_comes_after_the_code_and_before_the_tests() -> None:
    tests = ["close_to(add(0.1, 0.2), 0.3)"]
    setup = "def close_to(a, b):\n    assert abs(a - b) < 1e-6"
    assert graded(RIGHT, tests, setup=setup).passed
    assert graded(f"def close_to(a, b): pass\n{RIGHT}", tests, setup=setup).passed
    cheat = "def close_to(a, b): pass\ndef add(a, b): return 0"
    assert graded(cheat, tests, setup=setup).status is Status.FAILED
    assert graded("x = 1", tests, setup="check = add").score == pytest.approx(0.1)


def test_tests_run_one_after_the_other() -> None:
    code = "seen = []\ndef note(x):\n    seen.append(x)\n    return seen"
    tests = [{"call": "note(1)", "equals": [1]}, {"call": "note(2)", "equals": [1, 2]}]
    assert graded(code, tests).passed


def test_tests_may_be_those_of_the_configuration() -> None:
    grader = build({"type": "unit_tests", "timeout_s": TIMEOUT_S, "tests": TESTS})
    assert grader.grade(Sample(output_text=RIGHT), {}).passed
    assert (
        build({"type": "unit_tests", "tests": "{{ item.a.b }}"})
        .grade(Sample(output_text=RIGHT), {"a": {"b": TESTS}})
        .passed
    )


@pytest.mark.parametrize(
    "tests",
    [
        *(None, 1, "assert True", [], {}, [1], [None], ["x ="], ["assert 1"] * 101, ["x" * 70_000]),
        *([{"call": call, "equals": 1}] for call in ("", "x = 1", "1; 2", "(")),
        *([{"call": "f()"}], [{"call": "f()", "equals": 1, "more": 1}]),
    ],
)
def test_an_item_without_proper_tests_is_errored(tests: Any) -> None:
    for code in (RIGHT, "while True: pass"):
        grade = graded(code, tests)
        assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tests": []}, "tests"),
        ({"tests": "a b"}, "tests"),
        ({"tests": ["x ="]}, "tests"),
        ({"setup": "def ("}, "setup"),
        ({"reference": ""}, "reference"),
        ({"runs_weight": 1}, "runs_weight"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1000.0}, "timeout_s"),
        ({"unjudged": "passed"}, "unjudged"),
        ({"code": "first"}, "code"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(fields: Any, path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "unit_tests", **fields})
    assert caught.value.path.split(".")[0] == path


def test_the_reference_is_the_items_code_if_it_passes() -> None:
    grader = build({"type": "unit_tests", "reference": "code"})
    assert grader.reference({"tests": TESTS, "code": RIGHT}) == RIGHT
    assert grader.reference({"tests": TESTS, "code": "add = max"}) is None
    for item in ({"tests": TESTS}, {"code": RIGHT}, {"tests": TESTS, "code": 1}):
        assert grader.reference(item) is None
    assert build({"type": "unit_tests"}).reference({"tests": TESTS, "code": RIGHT}) is None


def test_code_as_a_whole_keeps_its_fences() -> None:
    assert graded(RIGHT, code="whole").passed
    assert graded(f"```\n{RIGHT}```", code="whole").status is Status.FAILED
    quoted = 'TEXT = """\n```\n"""\n' + RIGHT
    ast.parse(quoted)
    assert graded(quoted, code="whole").passed


SHARED = "t = ()\nfor _ in range(60): t = (t, t)\n"


@pytest.mark.parametrize(
    "value",
    [
        *("{t: 1}", "{t}", "frozenset([t])", "[{'a': {t: 1}}]", "{1: t}", "t", "[t, t]", "Box()"),
        *("{'a': t}", "range(10 ** 12)", "{'a': 1}.keys()"),
    ],
)
@pytest.mark.parametrize("equals", [1, [[]], {"a": []}])
def test_a_value_that_takes_for_ever_to_look_at_fails(value: str, equals: Any) -> None:
    code = f"{SHARED}class Box:\n    def __init__(self): self.x = {{t: 1}}\ndef f(): return {value}"
    for unjudged in ("errored", "failed"):
        grade = graded(code, [{"call": "f()", "equals": equals}], unjudged=unjudged)
        assert (grade.status, grade.subscores) == (Status.FAILED, {"runs": 1, "tests": 0})


def test_shared_parts_may_be_keys_inside() -> None:
    code = f"{SHARED}d = {{t: 1}}\ns = {{t, (t, t)}}\ndef f(): return [d[t], len(s)]"
    assert graded(code, [{"call": "f()", "equals": [1, 2]}]).passed


@pytest.mark.parametrize(
    "bind",
    [
        *("sorted = {t: 1}", "eval('(sorted := {t: 1})')", "exec('sorted = {t: 1}')"),
        *("eval('(type := {t: 1})')", "eval('(type := Box())')", "ｅval('(sorted := Box())')"),
        *("class type: pass", "eval('(KeyError := (t,))')", "eval('(type := len)')"),
    ],
)
def test_a_builtin_made_a_value_that_takes_for_ever_to_look_at_fails(bind: str) -> None:
    box = "class Box:\n    def __init__(self): self.x = {t: 1}\n"
    tests = ["assert sorted([2, 1]) == [1, 2] and type(f(1)) is int and KeyError"]
    honest = f"{SHARED}{box}def f(x): return x + eval('0')\n"
    assert graded(honest, tests).passed
    assert graded(f"{honest}{bind}", tests).status is Status.FAILED


def test_code_cannot_reach_what_looks_at_its_values() -> None:
    names = ("look", "is", "scalars", "str", "range", "most")
    binds = "; ".join(f"_nightowl_{name} = All()" for name in names)
    code = (
        "class All:\n    def __eq__(self, o): return True\n    def __call__(self, *a): return 1\n"
        f"def add(a, b):\n    exec('global {', '.join(f'_nightowl_{name}' for name in names)}')\n"
        f"    exec({binds!r})\n    return a + b\n"
    )
    assert graded(code, [{"call": "add(1, 2)", "equals": 3}] * 2).passed
    assert graded(code, [{"call": "add(1, 2)", "equals": 4}] * 2).status is Status.FAILED


def test_a_call_may_end_with_a_semicolon_or_a_comment() -> None:
    for call in ("add(1, 2);", "add(1, 2)  # three", "(add(1,\n2))", " add(1, 2)".strip()):
        assert graded(RIGHT, [{"call": call, "equals": 3}]).passed


WRONG_TESTS = {
    "misspelt": "assert ad(1, 2) == 3",
    "divides by zero": "1 / 0",
    "wrong": "assert add(1, 2) == 4",
    "expects an error": "add('a', 1)",
    "lacks a module": "import numpy",
}


@pytest.mark.parametrize("test", WRONG_TESTS.values(), ids=WRONG_TESTS.keys())
@pytest.mark.parametrize("code", [RIGHT, "x = 1", "while True: pass", "no python"])
@pytest.mark.parametrize("unjudged", ["errored", "failed"])
def test_an_item_whose_reference_fails_is_wrong_whatever_the_code(
    test: str, code: str, unjudged: str
) -> None:
    grade = graded(code, [*TESTS, test], reference="code", unjudged=unjudged, timeout_s=0.5)
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")


def test_an_endless_setup_is_the_configurations_error() -> None:
    for unjudged in ("errored", "failed"):
        for text in (RIGHT, "x = 1"):
            grade = graded(text, setup="while True: pass", timeout_s=0.2, unjudged=unjudged)
            assert (grade.status, grade.error_kind) == (Status.ERRORED, "config")


@pytest.mark.parametrize("test", ["1 / 0", {"call": "1 / 0", "equals": 1}, "while True: pass"])
@pytest.mark.parametrize("right", [None, "code"])
def test_a_test_that_cannot_pass_by_itself_is_the_items_error(test: Any, right: str | None) -> None:
    for code in (RIGHT, RIGHT.replace("+", "-")):
        grade = graded(code, [*TESTS, test], timeout_s=0.5, unjudged="failed", reference=right)
        assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")


def test_code_that_overruns_in_a_test_is_not_the_tests_fault() -> None:
    for code in ("def add(a, b):\n    while True: pass", "while True: pass"):
        for reference in (None, "code"):
            grade = graded(code, timeout_s=0.3, unjudged="failed", reference=reference)
            assert (grade.status, grade.score) == (Status.FAILED, 0)


def test_an_example_after_the_code_does_not_break_it() -> None:
    examples = (
        "print(add('a', 1))",
        "a = int(input())\nprint(add(a, 1))",
        "import unittest\nfrom solution import add\nunittest.main()",
    )
    for example in examples:
        assert graded(f"```python\n{RIGHT}```\n\nUse it so:\n\n```python\n{example}\n```").passed
    block = "".join(f"    {line}\n" for line in RIGHT.splitlines())
    assert graded(f"Here it is:\n\n{block}\nIt adds.").passed
    assert graded(f"Here is the function:\n\n{RIGHT}").passed
