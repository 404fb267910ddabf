"""Formulas against Python's own arithmetic."""

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.formula import (
    FUNCTIONS,
    MAX_FORMULA_CHARS,
    Formula,
    FormulaError,
    Undefined,
    parse_formula,
)

NAMES = ("a", "b", "long_name2")
VALUES = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.25, 0.5, 1.0]) for name in NAMES})
# Only numbers with a point, which Python also takes for floats.
LEAVES = st.sampled_from([*NAMES, "0.5", "2.0", ".25", "3.", "1.5e-1"])
PYTHON: dict[str, Any] = {name: getattr(math, name, None) for name in FUNCTIONS}
PYTHON |= {"min": min, "max": max, "abs": abs, "__builtins__": {}}


@st.composite
def chains(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """Operands with operators between them, as they come: precedence decides what belongs to it."""
    text = draw(inner)
    for _ in range(draw(st.integers(1, 3))):
        sign = draw(st.sampled_from(["", "-", "--", " - "]))
        text += draw(st.sampled_from(["+", " - ", "*", " / ", "^"])) + sign + draw(inner)
    return text


def calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Calls of functions."""
    one = st.sampled_from(sorted(FUNCTIONS - {"min", "max"}))
    many = st.lists(inner, min_size=2, max_size=3).map(", ".join)
    return st.builds("{}({})".format, one, inner) | st.builds(
        "{}({})".format, st.sampled_from(["min", "max"]), many
    )


TEXTS = st.recursive(
    LEAVES,
    lambda inner: chains(inner) | calls(inner) | inner.map("({})".format) | inner.map("-{}".format),
    max_leaves=8,
)


def by_python(text: str, values: dict[str, float]) -> float | None:
    """Evaluate by Python, None where that gives no finite real number."""
    try:
        value = eval(text.replace("^", "**"), PYTHON, values)
    except (ArithmeticError, ValueError, TypeError):
        return None  # TypeError: a complex number went into a function.
    return value if not isinstance(value, complex) and math.isfinite(value) else None


@given(TEXTS, VALUES)
def test_a_formula_has_the_value_that_python_gives_it(text: str, values: dict[str, float]) -> None:
    expected = by_python(text, values)
    formula = parse_formula(text)
    assert formula.names <= set(NAMES)
    if expected is None:
        with pytest.raises(Undefined):
            formula.evaluate(values)
    else:
        assert formula.evaluate(values) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 1 + 2 * 3 ", 7),
        ("(1 + 2) * 3", 9),
        ("8 / 4 / 2", 1),
        ("8 - 4 - 2", 2),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("2^-1", 0.5),
        ("min(3)", 3),
        ("min(3, 1, 2) + max(3, 1)", 4),
        ("floor(2.5) + ceil(2.5)", 5),
        ("1e2", 100),
    ],
)
def test_precedence_and_functions(text: str, value: float) -> None:
    assert parse_formula(text).evaluate({}) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a b", "a +", "+ a", "* a", "(a", "a)", "()", "a ** b", "a // b", "a % b", "1 2",
        "min()", "min(a,)", "min a", "abs(a, b)", "sum(a)", "__import__(a)", "a.b", "a[0]",
        "1.2.3", "1e999", "0x10", "1_000", "٣", "ä", "a = b", "a; b", "'a'", "lambda: a", "a\x00",
        "(" * 100 + "a" + ")" * 100, "2^" * 100 + "2", "a" * (MAX_FORMULA_CHARS + 1),
        "abs(" * 100 + "a" + ")" * 100,
    ],
)  # fmt: skip
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text)


@given(st.text(alphabet="ab12.+-*/^(), minexp\n", max_size=30))
def test_any_text_is_a_formula_or_refused_and_has_a_value_or_none(text: str) -> None:
    try:
        formula = parse_formula(text)
        value = formula.evaluate(dict.fromkeys(formula.names, 0.5))
    except (FormulaError, Undefined):
        return
    assert math.isfinite(value)


@pytest.mark.parametrize(
    "text",
    [
        "1 / a", "log(a)", "sqrt(a - 1)", "(a - 1)^0.5", "a^-1", "exp(exp(exp(9)))", "9^9^9",
        "1e308 * 10", "min(1, 1e308 * 10)",
    ],
)  # fmt: skip
def test_what_has_no_finite_value_is_undefined(text: str) -> None:
    with pytest.raises(Undefined):
        parse_formula(text).evaluate({"a": 0.0})


def test_the_longest_formula_is_evaluated_and_sent_without_recursion() -> None:
    text = "+".join("a" * (MAX_FORMULA_CHARS // 2))
    formula: Formula = pickle.loads(pickle.dumps(parse_formula(text)))
    assert formula.evaluate({"a": 1.0}) == MAX_FORMULA_CHARS // 2
