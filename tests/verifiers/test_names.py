"""Names that code uses and binds, against what Python itself does with them."""

import builtins

import pytest

from verifiers.names import binds, bound_later, may_bind, module_of, names_of


def test_names_of_codes_that_run_one_after_the_other() -> None:
    setup = "import math, os.path as p\ndef close_to(a, b):\n    assert abs(a - b) < EPS"
    names = names_of((setup, "check = add", "x = [check(i) for i in y]", "no python", "x ="))
    assert names.used == {"abs", "EPS", "add", "y"}
    assert names.bound == {"math", "p", "close_to", "check", "x"}


BINDS = [
    *("len = 3", "len: int = 3", "len += 3", "(len := 3)", "[len := 3 for _ in 'a']"),
    *("def len(): pass", "class len: pass", "import math as len", "from math import pi as len"),
    *("for len in 'a': pass", "with open('x') as len: pass", "len, x = 3, 4", "[*len] = 3, 4"),
    *("try: x\n  except E as len: pass", "match 3:\n    case len: pass"),
]


@pytest.mark.parametrize("bind", BINDS)
def test_functions_bind_names_of_the_module_by_declaring_them(bind: str) -> None:
    assert bound_later(f"def f():\n  global len\n  {bind}") == {"len"}
    assert bound_later(f"def f():\n  def g():\n    global x, len\n  {bind}") == frozenset()
    assert bound_later(f"def f():\n  'global len'\n  {bind}") == frozenset()


def test_newer_python_is_searched_as_text() -> None:
    newer = "def f():\n  global len, \\\n    abs\n  len = 3\ndef g(:"
    assert bound_later(newer) == {"len", "abs"}
    assert bound_later("exec('x')\ndef g(:") is None


def test_exec_may_bind_anything_and_the_word_alone_nothing() -> None:
    for code in ("exec('x')", "run = exec", "def f(x): exec(x)", "class A:\n  x = exec"):
        assert bound_later(code) is None
    for code in ("# exec", "'exec'", "executor = 1", "x.exec()", "x = 1"):
        assert bound_later(code) == frozenset()


def test_the_names_are_those_that_python_looks_up() -> None:
    code = "def f(a):\n  b = a\n  return [b for c in d if e]\nclass G(h):\n  i = j\nk = lambda m: n"
    scope = {name: 1 for name in names_of((code,)).used}
    assert scope.keys() == {"d", "e", "h", "j", "n"}
    exec("class h: pass", scope)
    exec(code, scope)
    assert {*scope} - {"__builtins__"} - names_of((code,)).used == {"f", "G", "k"}
    assert not hasattr(builtins, "G")


@pytest.mark.parametrize("bind", BINDS)
def test_what_code_binds_as_it_runs_is_told_from_its_text(bind: str) -> None:
    at_top = bind.replace("\n  ", "\n")
    assert binds(at_top, {"len"}) is True
    assert binds(at_top, {"abs"}) is False
    assert binds(f"def f():\n  {bind}", {"len"}) is False
    declared = f"def f():\n  global len\n  {bind}"
    assert binds(declared, {"len"}) is (None if ":" in bind and "int" in bind else True)
    for unknown in (f"{bind}\neval('1')", f"{bind}\n\uff45val('1')", "len = = 1"):
        assert binds(unknown, {"len"}) is None


def test_names_in_other_letters_are_the_same_names() -> None:
    assert bound_later("\uff45xec('len = 3')") is None
    assert may_bind("\uff45xec('len = 3')", frozenset({"len"}))


def test_a_module_defines_imports_and_needs_names() -> None:
    module = module_of("import math\nadd = wrapped(add)\ndef f():\n  return math.pi * g(x)\nf()")
    assert module is not None
    assert module.defined == {"add", "f"}
    assert module.imported == {"math"}
    assert module.needed == {"add", "wrapped", "g", "x"}
    assert module_of("x =") is None
