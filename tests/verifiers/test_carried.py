"""Values come out of the sandbox only where they are JSON of a bounded size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import JSON
from verifiers import sandbox
from verifiers.carried import NotJson, are_genuine, json_value, same_json, scalar_value

TIMEOUT_S = 30.0


def carried(expression: str, most: int, *codes: str) -> Any:
    with sandbox.session(TIMEOUT_S) as session:
        for code in codes:
            session.run(code)
        return json_value(session, expression, most)


def parts(value: Any) -> int:
    """Count values one by one."""
    found, open_ = 0, [value]
    while open_:
        one = open_.pop()
        found += 1
        open_ += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
    return found


@given(JSON, st.integers(-2, 1))
def test_json_comes_out_as_it_is_if_it_has_no_more_parts_than_it_may(value: Any, more: int) -> None:
    most = parts(value) + more
    if more < 0:
        with pytest.raises(NotJson):
            carried(repr(value), most)
    else:
        assert carried(repr(value), most) == value
        assert same_json(carried(repr(value), most), value)


@pytest.mark.parametrize(
    "expression",
    [
        *("{1: 2}", "{(1, 2): 3}", "{None: 1}", "{1}", "frozenset()", "b'1'", "1j", "len", "int"),
        *("range(3)", "[{1}]", "[[{'a': b''}]]", "{}.keys()", "iter([])", "Box()", "Box"),
    ],
)
def test_what_is_no_json_stays_inside(expression: str) -> None:
    with pytest.raises(NotJson):
        carried(expression, 100, "class Box: pass")
    with pytest.raises(NotJson), sandbox.session(TIMEOUT_S) as session:
        session.run("class Box: pass")
        scalar_value(session, expression)


@given(JSON)
def test_only_what_has_no_parts_is_a_scalar(value: Any) -> None:
    with sandbox.session(TIMEOUT_S) as session:
        if isinstance(value, list | dict):
            with pytest.raises(NotJson):
                scalar_value(session, repr(value))
        else:
            assert same_json(scalar_value(session, repr(value)), value)


def test_lists_that_hold_each_other_many_times_are_counted_in_each() -> None:
    for pair in ("(t, t)", "[t, t]", "{'a': t, 'b': t}"):
        web = f"t = []\nfor _ in range(60): t = {pair}"
        with pytest.raises(NotJson):
            carried("t", 1_000, web)


def test_every_builtin_is_genuine_until_it_is_another() -> None:
    known = sandbox.known_builtins()
    fixed = ("None", "True", "False")
    bound = [name for name in known if name not in fixed and name[:2] != "__"]
    with sandbox.session(TIMEOUT_S) as session:
        assert are_genuine(session, known)
        for name in bound:
            assert are_genuine(session, {name: known[name]})
            other = "int" if name != "int" else "str"
            for instead in (other, "lambda *a: 1", "(1,)", "'x'"):
                session.run(f"_kept = {name}\n{name} = {instead}")
                assert not are_genuine(session, {name: known[name]})
                session.run(f"{name} = _kept")
            assert are_genuine(session, {name: known[name]})
