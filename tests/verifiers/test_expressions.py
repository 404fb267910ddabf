"""The evaluator against Python's own, and the bombs that Python's own would not survive."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers.expressions import MAX_CHARS, Expression, NotArithmetic, evaluate

NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(["0.5", "2.25", "007"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        inner.map(lambda one: f"({one})"),
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(" ".join),
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("".join),
        inner.map(lambda one: f"(-({one}))"),
    ),
    max_leaves=12,
)


def python_says(text: str) -> Fraction | None:
    """Evaluate with Python's parser, every number a fraction; None for a division by zero."""
    source = "".join(f"F('{token}')" if token[0].isdigit() else token for token in _split(text))
    try:
        value: Fraction = eval(source, {"F": Fraction})
    except ZeroDivisionError:
        return None
    return value


def _split(text: str) -> list[str]:
    spaced = "".join(f" {char} " if char in "+-*/()" else char for char in text)
    return spaced.split()


@given(EXPRESSIONS)
def test_an_expression_comes_to_what_python_says(text: str) -> None:
    assert evaluate(text).value == python_says(text)


@given(EXPRESSIONS)
def test_numbers_and_operations_are_those_that_are_written(text: str) -> None:
    expression = evaluate(text)
    tokens = _split(text)
    assert list(expression.numbers) == [Fraction(one) for one in tokens if one[0].isdigit()]
    assert expression.operations == {one for one in tokens if one in set("+-*/")}


def test_a_minus_of_a_number_is_no_operation_but_one_of_a_parenthesis_is() -> None:
    assert evaluate("-3*5") == Expression(
        Fraction(-15), (Fraction(-3), Fraction(5)), frozenset("*")
    )
    assert evaluate("-(3*5)").operations == {"-", "*"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8/(3-8/3)", 24),
        ("2-3-4", -5),
        ("2-(3-4)", 3),
        ("24/4/3", 2),
        ("1/3+1/3+1/3", 1),
        ("2 × 3 · 4 ÷ 6 − 1", 3),
        ("-3+5", 2),
        ("5--3", 8),
        ("5*-3", -15),
        ("(−3)", -3),
        ("-(1)", -1),
        ("2*-(3-5)", 4),
        ("8/-(2)/2", -2),
        ("1--(2+3)*2", 11),
        ("-(-(4))", 4),
        ("-(1/0)", None),
        ("0.1+0.2", Fraction(3, 10)),
        ("1/0", None),
        ("1/(2-2)+1", None),
        ("0/5", 0),
        (" \n1 +\t2 ", 3),
    ],
)
def test_known_values(text: str, value: Any) -> None:
    assert evaluate(text).value == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "()", "(", ")", "(1", "1)", "1+", "+1", "*1", "1 2", "1(2)", "(1)(2)", "(1)2",
        "2**3", "2//3", "2^3", "2%3", "--1", "--(1)", "-", "-()", "1---2",
        "1e3", "0x1F", "1_000", "1,000", ".5",
        "5.", "1.2.3", "x", "pi", "3!", "√4", "٣+1", "２+2", "１", "²", "½", "1＋1", "1–1", "[1]",
        "{1}", "1=1", "1;2", "__import__('os')", "abs(1)", "1 if 1 else 2", "NaN", "inf", "1\x002",
        "9" * (MAX_CHARS + 1), "44**19**35",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(NotArithmetic):
        evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 999 + "1" + ")" * 999,
        "1+(" * 490 + "1" + ")" * 490,
        "9*" * 999 + "9",
        "9/7+" * 499 + "1",
        "9" * 999 + "*" + "9" * 999,
        "1/" * 999 + "3",
        "-(" * 600 + "1" + ")" * 600,
    ],
    ids=lambda text: text[:6],
)
def test_the_longest_expressions_are_evaluated(text: str) -> None:
    value = evaluate(text).value
    assert value is not None
    assert value.numerator.bit_length() + value.denominator.bit_length() < 8 * MAX_CHARS


@given(HOSTILE_TEXT)
def test_any_text_is_an_expression_or_none(text: str) -> None:
    try:
        expression = evaluate(text)
    except NotArithmetic:
        return
    assert expression.numbers
