"""Where answers are found, and that looking for them is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers import Sample, build
from verifiers.math_answers import Written, answer_in, formula

MATH_7 = build({"type": "math"})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{42}", "42"),
        ("\\boxed{1} no, \\boxed{2}.", "2"),
        ("\\boxed {\\frac{1}{2}} it is", "\\frac{1}{2}"),
        ("\\fbox{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("$$\\boxed{ x^2 }$$\nThe answer is 5", "x^2"),
        ("42", "42"),
        ("so\n\nx = 5.\n", "x = 5"),
        ("**Answer: 7**", "7"),
        ("answer = 7\nhope this helps", "7"),
        ("First the answer\nseems 6, but the answer is 7\nGood luck", "7"),
        ("Answer:\n\n7", "7"),
        ("−5", "-5"),
        ("2 × π", "2 \\times \\pi"),
        ("x²⁺¹", "x^{2}⁺^{1}"),
        ("x⁻¹²", "x^{-12}"),
        ("3 1/2", "3\\frac{1}{2}"),
        ("1.5e-3", "0.0015"),
        ("1e22", "10000000000000000000000"),
        ("1400.0e-3", "1.4000"),
        (f"{10**38 + 1}e-1", f"{10**37}.1"),
        ("3 × 10^8 + 1.5 \\cdot 10^{-2}", "300000000 + 0.015"),
        ("2e300", "2\\times 10^{300}"),
        ("2e3x", "2e3x"),
        ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
    ],
)
def test_a_formula_is_found(text: str, answer: str) -> None:
    assert answer_in(text, boxed_only=False) == Written(answer)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("5 apples", "5 apples"),
        ("hm\nso x is $5$, I think.", "so x is $5$, I think."),
        ("The answer is $\\frac{1}{2}$.", "answer is $\\frac{1}{2}$."),
        ("The answer to that is clearly 7.", "answer to that is clearly 7."),
    ],
)
def test_prose_is_a_line_from_the_word_answer_on(text: str, line: str) -> None:
    assert answer_in(text, boxed_only=False) == Written(line, prose=True)


@pytest.mark.parametrize("text", ["", " \n ", "\\boxed{", "\\boxed{{}", "\\boxed{1} \\boxed{2"])
def test_there_is_no_answer_in_nothing_and_in_a_box_that_is_open(text: str) -> None:
    assert answer_in(text, boxed_only=False) is None


def test_only_a_box_counts_where_that_is_asked() -> None:
    assert answer_in("The answer is 5", boxed_only=True) is None
    assert answer_in("\\boxed{5}", boxed_only=True) == Written("5")


@given(st.recursive(st.text("ab1 ", max_size=3), lambda inner: inner.map(lambda t: f"{{{t}}}x")))
def test_a_box_holds_what_is_between_its_braces(inside: str) -> None:
    assert answer_in(f"so \\boxed{{{inside}}} }}", boxed_only=True) == formula(inside)


@given(HOSTILE_TEXT, st.booleans())
def test_any_text_has_an_answer_or_none(text: str, boxed_only: bool) -> None:
    found = answer_in(text, boxed_only)
    assert found is None or not (boxed_only and found.prose)


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 9_000, "answer " * 9_000, "answer:\n" * 8_000, "\n" * 65_000, "1 1/" * 16_000,
     "²" * 65_000, "\\text{" * 10_000, "{" * 65_000, "1e" * 32_000, "a " * 32_000, "9" * 65_000],
    ids=lambda text: text[:9],
)  # fmt: skip
def test_long_texts_end(text: str) -> None:
    answer_in(text, boxed_only=False)
    answer_in("\\boxed{" + text + "}", boxed_only=False)


@pytest.mark.parametrize(
    "text",
    [
        "The answer is not 7.",
        "It is not $7$.",
        "The answer is less than 7.",
        "more than $7$",
        "at least 7",
        "half of 7",
        "That is double 7.",
        "the square root of 7",
        "7 squared",
        "It is 7 or more.",
        "7 is not the answer",
    ],
)
def test_what_words_make_another_number_is_no_answer(text: str) -> None:
    assert not MATH_7.grade(Sample(output_text=text), {"answer": "7"}).passed


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 7.",
        "So we get $3 + 4 = 7$.",
        "Not 6, but 7",
        "10 minus 3 is 7",
        "There are 7 apples left.",
        "#### 7",
        "The total is $7",
    ],
)
def test_what_words_leave_as_it_is_is_the_answer(text: str) -> None:
    assert MATH_7.grade(Sample(output_text=text), {"answer": "7"}).passed


@pytest.mark.parametrize("text", ["minus 7", "Negative 7.", "The answer is negative $7$."])
def test_a_minus_in_words_is_one(text: str) -> None:
    assert MATH_7.grade(Sample(output_text=text), {"answer": "-7"}).passed
    assert not MATH_7.grade(Sample(output_text=text), {"answer": "7"}).passed
