"""`math` against exact fractions and expanded polynomials, and its bombs."""

from fractions import Fraction
from math import comb
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verifiers.strategies import HOSTILE_TEXT
from verifiers import Grade, Grader, GraderConfigError, Sample, Status, build
from verifiers.pool import GraderPool

FRACTIONS = st.builds(Fraction, st.integers(-40, 40), st.sampled_from([1, 2, 4, 5, 8, 3, 7]))
# Reading a formula that the parser has not met takes it tens of milliseconds.
few = settings(max_examples=30)


def mathematics(**config: Any) -> Grader:
    """Build a math grader."""
    return build({"type": "math", **config})


def grade(text: str, answer: Any, **config: Any) -> Grade:
    """Grade a text against an answer."""
    return mathematics(**config).grade(Sample(output_text=text), {"answer": answer})


def ways(number: Fraction) -> list[str]:
    """The ways to write a fraction that mean it exactly."""
    sign, top, bottom = "-" if number < 0 else "", abs(number.numerator), number.denominator
    whole, rest = divmod(top, bottom)
    texts = [f"{sign}\\frac{{{top}}}{{{bottom}}}", f"{number}", f"{sign}{2 * top}/{2 * bottom}"]
    if whole and rest and not sign:
        texts += [f"{whole}\\frac{{{rest}}}{{{bottom}}}", f"{whole} {rest}/{bottom}"]
    if 1000 % bottom == 0:
        texts += [f"{float(number)}", f"{float(number * 100):g}\\%", f"{float(number * 1000)}e-3"]
    return texts


@few
@given(FRACTIONS, FRACTIONS, st.data())
def test_numbers_are_equal_as_fractions_are(
    wanted: Fraction, found: Fraction, data: st.DataObject
) -> None:
    found = data.draw(st.sampled_from([wanted, found]))
    answer, text = data.draw(st.sampled_from(ways(wanted))), data.draw(st.sampled_from(ways(found)))
    if "%" in answer + text and wanted != found:
        return  # 50 % equals 50 as well as 0.5
    result = grade(f"\\boxed{{{text}}}", answer)
    assert result.passed == (wanted == found)
    assert result.score == (1 if result.passed else 0.1)


@few
@given(st.integers(-(10**40), 10**40), st.integers(-2, 2))
def test_whole_numbers_are_equal_as_they_are_to_computer_algebra(number: int, more: int) -> None:
    for text in (
        f"{number + more}",
        f"\\boxed{{{number + more}}}",
        f"\\boxed{{0+{number + more}}}",
    ):
        result = grade(text, number, worked_out=False)
        assert result.passed == (more == 0)
        assert result.score == (1 if more == 0 else 0.1)


@few
@given(st.integers(1, 6), st.integers(-5, 5), st.integers(1, 4), st.booleans())
def test_polynomials_are_equal_when_their_coefficients_are(
    factor: int, constant: int, power: int, wrong: bool
) -> None:
    coefficients = [comb(power, k) * factor**k * constant ** (power - k) for k in range(power + 1)]
    coefficients[0] += wrong
    expanded = "+".join(f"({one})x^{{{k}}}" for k, one in enumerate(coefficients))
    result = grade(f"$({factor}x+({constant}))^{{{power}}}$", expanded)
    assert result.passed == (not wrong)


@pytest.mark.parametrize(
    ("text", "answer", "passed"),
    [
        ("The answer is 42.", 42, True),
        ("so 6 * 7 = 42", 42, True),
        ("It is $x = 5$, I think.", "5", True),
        ("\\boxed{41}, no, \\boxed{42}", 42, True),
        ("42 is the answer", 42, True),
        ("\\boxed{\\text{Monday}}", "\\text{Monday}", True),
        ("yes", "yes", True),
        ("The answer is (B)", "B", True),
        ("x = -3 or x = 4", "-3, 4", True),
        ("-5", 5, False),
        ("−5", -5, True),
        ("–5", 5, False),
        ("1,234", 1234, True),
        ("1e22", 1e22, True),
        ("\\boxed{", 42, False),
        ("", 42, False),
    ],
)
def test_answers_in_texts(text: str, answer: Any, passed: bool) -> None:
    assert grade(text, answer).passed == passed


def test_a_question_is_no_answer_unless_allowed() -> None:
    for text in ("17 * 23", "$17 \\cdot 23$", "\\boxed{400 - 9}", "\\sqrt{152881}"):
        assert grade(text, 391).status is Status.FAILED
        assert grade(text, 391, worked_out=False).passed
    assert grade("1024", "2^{10}").passed and grade("2^{10}", "2^{10}").passed
    assert grade("\\frac{782}{2}", 391).passed


def test_only_a_box_counts_where_that_is_asked() -> None:
    assert not grade("42", 42, find="boxed").passed
    assert mathematics(find="boxed").reference({"answer": 42}) == "\\boxed{42}"


@few
@given(
    st.one_of(
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False, width=16),
        st.sampled_from(["x^2+1", "\\frac{1}{2}", "$x=3$", "(1,2)", "a b\nc", "5 apples", "yes"]),
        FRACTIONS.map(str),
    ),
    st.sampled_from(["any", "boxed"]),
)
def test_the_reference_passes(answer: Any, find: str) -> None:
    grader = mathematics(find=find)
    text = grader.reference({"answer": answer})
    assert text is not None
    assert grader.grade(Sample(output_text=text), {"answer": answer}).passed


@given(HOSTILE_TEXT)
def test_a_hostile_completion_fails(text: str) -> None:
    result = grade(text, "x^2+41")
    assert result.status is Status.FAILED
    assert result.score in (0.0, 0.1)


BOMBS = [
    "9^{9^{9^{9}}}", "9**9**9**9", "44**19**35", "((2^{99})^{99})^{99}", "99999!", "((9!)!)!",
    "\\sum_{n=1}^{10^{100}} n", "\\int e^{-x^{x^x}} dx", "\\binom{10^9}{10^8}", "9" * 5_000,
    "(" * 500 + "1" + ")" * 500, "\\frac{1}{" * 100, "|x|" * 100, "{" * 65_000, "$" * 65_000,
    "x+" * 30_000 + "x", "\\boxed{" * 9_000, "1 " * 32_000, "٣", "５", "NaN", "\\infty",
    "__import__('os').system('true')", "x" * 1_000_000, "1" + "+1" * 30_000, "\\frac{0}{0}",
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:12])
def test_a_bomb_fails(bomb: str) -> None:
    for text in (bomb, f"\\boxed{{{bomb}}}", f"The answer is ${bomb}$.", f"it is {bomb}, I say"):
        assert grade(text, 5).status is Status.FAILED


@pytest.mark.parametrize(
    "answer",
    [
        None,
        True,
        [1],
        {},
        "",
        " ",
        "9^{9^9}",
        "(",
        "12 000",
        "\\int x dx",
        "٣",
        "x" * 401,
        "\\frac",
    ],
)
def test_a_broken_answer_is_errored_and_has_no_reference(answer: Any) -> None:
    for item in ({"answer": answer}, {}):
        result = mathematics().grade(Sample(output_text="5"), item)
        assert (result.status, result.error_kind) == (Status.ERRORED, "item")
        assert mathematics().reference(item) is None


def test_what_takes_too_long_is_ended_by_the_pool() -> None:
    slow = Sample(output_text="\\boxed{f(x)(x+1)^{30}(y+2)^{30}(z+3)^{30}}")
    quick = Sample(output_text="\\boxed{x+1}")
    item = {"answer": "x+1"}
    with GraderPool(workers=1, deadline_s=2.0) as pool:
        grades = pool.grade_many({"type": "math"}, [(slow, item), (quick, item)])
    assert grades[0].error_kind == "timeout"
    assert grades[1].passed


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"find": "last"}, "find"),
        ({"decimals": -1}, "decimals"),
        ({"worked_out": "yes"}, "worked_out"),
        ({"reference": "a b"}, "reference"),
        ({"timeout": 5}, "timeout"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        mathematics(**config)
    assert caught.value.path == path
