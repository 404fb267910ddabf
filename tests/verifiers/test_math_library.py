"""math-verify as it is used: without alarms, in any thread, and what counts as worked out."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from verifiers.math_answers import formula
from verifiers.math_library import equal, read, worked_out


@pytest.mark.parametrize(
    ("wanted", "found", "same"),
    [
        ("1/2", "0.5", True),
        ("\\frac{1}{2}", "50\\%", True),
        ("(x+1)^2", "x^2+2x+1", True),
        ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", True),
        ("\\{1,2\\}", "\\{2,1\\}", True),
        ("(1,2)", "(2,1)", False),
        ("[1,2)", "[1,2]", False),
        ("x<3", "3>x", True),
        ("x=5", "5", True),
        ("x^2", "x^3", False),
        ("1", "\\frac{1}{0}", False),
        ("\\infty", "-\\infty", False),
        (
            "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
            "\\begin{pmatrix}1 & 2 \\\\ 3 & \\frac{8}{2}\\end{pmatrix}",
            True,
        ),
    ],
)
def test_answers_are_compared_as_mathematics(wanted: str, found: str, same: bool) -> None:
    assert equal(read(formula(wanted)), read(formula(found)), 6) == same


@pytest.mark.parametrize("text", ["", "\\frac", "\\begin{x}", "&", "#"])
def test_what_is_not_understood_is_nothing(text: str) -> None:
    assert read(formula(text)) == []


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("391", True),
        ("-391", True),
        ("0.5", True),
        ("\\frac{1}{2}", True),
        ("-\\frac{3}{4}", True),
        ("50\\%", True),
        ("1.5 × 10^3", True),
        ("1e-5", True),
        ("x = 5", True),
        ("\\{1, 2\\}", True),
        ("17 \\cdot 23", False),
        ("2 + 3", False),
        ("2^{10}", False),
        ("5!", False),
        ("\\sqrt{4}", False),
        ("x = 2 + 3", False),
        ("\\{1, 1 + 1\\}", False),
        ("x", False),
        ("\\pi", False),
        ("2 \\cdot 3 \\cdot 10^3", False),
    ],
)
def test_a_number_is_worked_out_when_nothing_is_left_to_reckon(text: str, done: bool) -> None:
    values = read(formula(text))
    assert values and all(map(worked_out, values)) == done


def test_threads_need_no_alarms_and_leave_them_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)
    texts = [f"x^2+{number}" for number in range(8)] * 3
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda text: read(formula(text)), texts))
        same = list(pool.map(lambda one, other: equal(one, other, 6), values, values[::-1]))
    assert all(values)
    assert same == [one == other for one, other in zip(texts, texts[::-1], strict=True)]
    assert signal.getsignal(signal.SIGALRM) is before
