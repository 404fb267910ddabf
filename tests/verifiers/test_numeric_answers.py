"""`numeric`: what an honest answer may look like, and words that make a number another one."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import Sample, build

NUMBERS = st.integers(0, 10**6) | st.decimals(0, 10**4, allow_nan=False, places=2)
SIGNED = st.integers(-(10**6), 10**6) | st.decimals(-(10**4), 10**4, allow_nan=False, places=2)

CHANGED = [
    "> {}", "< {}", ">= {}", "<= {}", "!= {}", "≥ {}", "≪ {}", "&lt; {}", "\\leq {}", "\\ge {}",
    "+ ({})", "(2)({})", "2({})", "[2]({})", "\\pi {}", "\\sqrt{{{}}}", "3/({})", "x·{}",
    "{} halved", "{} doubled", "{} squared", "{} i", "{} x", "{} \\pi", "{}\\sqrt{{3}}", "{} pi",
    "{} π", "{} choose k", "{} o'clock", "{} o’clock", "{}+", "{} or more", "{} or fewer",
    "{} and above", "{} at least", "{} at most", "{} at the very least", "{} max", "{} is wrong",
    "{} is not the answer", "{} isn't right", "{} cannot be right", "{} is too much",
    "Is it {}? No.", "~~{}~~", "<del>{}</del>", "{} < x", "x > {}",
    "{} ≤ x", "{} mod x", "{} minus that", "{} plus x", "{} tenths", "the {}th root", "({})(2)",
    "**{}** or more", "({}) squared", "`{}` i", "$${}$$ at most", "minus ({})", "-**{}**", "-({})",
    "from 100 to {}", "from 100 km to {}", "between 1 and {}", "100 or {}", "3 : {}",
]  # fmt: skip
HEDGES = [
    "more than", "less than", "fewer than", "greater than or equal to", "no more than",
    "other than", "rather than", "at least", "at most", "at the very least", "up to", "close to",
    "nearly", "almost", "over", "under", "above", "below", "within", "exceeds", "beyond", "maximum",
    "a minimum of", "in excess of", "short of", "upwards of", "half", "half of", "double", "twice",
    "triple", "a quarter of", "two thirds of", "two-thirds of", "75% of", "75 percent of", "3 of",
    "one of", "3 out of", "none of", "multiples of", "the root of", "the square root of", "root",
    "the square of", "sin", "cos", "log", "ln", "sine of", "log of", "the cube of", "sqrt", "abs",
    "not", "isn't", "isn’t", "is not", "is not equal to", "does not equal", "cannot be", "never",
    "neither", "no longer", "I don't think it is", "is definitely not", "I would not say",
    "not even",
    "far from", "different from", "all but", "anything but", "as many as",
    "nowhere near", "half past", "until", "f of",
    "negative of",
    "instead of", "without", "the opposite of", "the reciprocal of",
]  # fmt: skip
FILLERS = ["", "exactly", "just", "about", "approximately", "just about", "the", "a", "approx."]
MARKS = [
    "{}",
    "**{}**",
    "`{}`",
    "_{}_",
    "({})",
    '"{}"',
    "${}$",
    "\\boxed{{{}}}",
    "“{}”",
    "$\\boxed{{{}}}$",
]
FRAMES = [
    "{}", "{}.", "{}!", "The answer is {}.", "Answer: {}", "So, it's {}!", "It's {}.",
    "That’s {} in total.", "= {}", "x = {}", "x: {}", "Therefore, the total is {}.", "#### {}",
    "<answer>{}</answer>", "<b>{}</b>", "Total (in dollars): {}", "Answer (c): {}", "Step 3: {}",
    "- Total: {}", "> The answer is {}", "In total, {}", "a total of {}", "It adds up to {}",
    "That makes {}.", "{} is the answer.", "I get {}", "about {}", "The answer is:\n\n{}", "-> {}",
    "=> {}", "→ {}", "Not 6 but {}.", "No, it is {}.", "Half of that is {}.", "Twice that is {}",
    "It is not 6. It is {}.", "2 + 2 comes to {}", "at a speed of {}", "the remainder of {}",
    "by a factor of {}", "There are {} of them.", "I have {} left", "{}, I think", "equal to {}",
    "the answer to question 3 is {}", "The largest is {}", "They meet after {} days",
    "for the past {} days", "1. {}",
    "The minimum is {}.", "$x = {}$", "\\(x = {}\\)", "\\text{{Answer: }}{}", "so {} i guess",
    "The number of students that did not pass is {}.", "At least, I think it is {}.", "Sure! {}",
]  # fmt: skip


def passes(text: str, answer: object, **config: object) -> bool:
    """Whether a text passes for an answer."""
    grader = build({"type": "numeric", **config})
    return grader.grade(Sample(output_text=text), {"answer": answer}).passed


@given(NUMBERS, st.sampled_from(HEDGES), st.sampled_from(FILLERS), st.sampled_from(MARKS))
def test_a_number_that_words_change_never_passes(
    number: object, hedge: str, filler: str, mark: str
) -> None:
    marked = mark.format(number)
    for text in (f"{hedge} {filler} {marked}", f"It is {hedge} {filler}  {marked} in total."):
        assert not passes(text, str(number)), text
        assert not passes(text.replace(marked, f"{marked} km"), f"{number} km"), text


@given(NUMBERS, st.sampled_from(CHANGED))
def test_a_number_that_is_a_part_of_something_never_passes(number: object, form: str) -> None:
    text = form.format(number)
    for one in (text, f"It is {text}", f"Answer: {text}."):
        assert not passes(one, str(number)), one


@given(SIGNED, st.sampled_from(FRAMES), st.sampled_from(MARKS), st.booleans())
def test_a_right_answer_passes_in_any_frame(
    number: object, frame: str, mark: str, real_minus: bool
) -> None:
    shown = str(number).replace("-", "\u2212") if real_minus else str(number)
    if "\\" in frame or "$" in frame:
        mark = "{}"
    text = frame.format(mark.format(shown))
    assert passes(text, str(number)), text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7_000", 7), ("7_0", 7), ("7_x", 7), ("7°", 7), ("7 degrees", 7), ("4!", 24), ("7 2", 7),
        ("7\\sqrt3", 7), ("2\\cdot\\frac{3}{4}", "3/4"), ("x\\frac{3}{4}", "3/4"), ("b_7", 7),
        ("at least 5 km", "5 km"), ("half of 5 km", "5 km"), ("< 5 km", "5 km"),
        ("5 km max", "5 km"),
        ("not 5 km", "5 km"), ("5 in total parsecs", "5 km"), ("5 more parsecs", "5 km"),
        ("5 km per trip", "5 km"), ("5 km or more", "5 km"), ("5 Mm", "5 mm"), ("5 MW", "5 mW"),
        ("8 GB", "8 Gb"), ("5 km squared", "5 km"), ("5 squared", 5), ("1h30", "1 h"),
        ("In May 2024", 2024),
        ("On May 5 we met", 5), ("15 (= 3 * 4)", 15), ("Question 7 (3 * 5)", 7),
        ("24 (3 * 8) x", 24),
        ("1h30min", 30), ("a1h30min", "30 min"), ("3/4/5.", "3/4"), ("3/4.5", "3/4"),
        ("x - 1 h 30 min", "30 min"),
        ("2 × 1 h 30 min", "30 min"),
        ("5 ft, 12 in", "6 ft"),
    ],
)  # fmt: skip
def test_what_does_not_say_the_answer_fails(text: str, answer: object) -> None:
    for one in (text, f"It is {text}"):
        assert not passes(one, answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 3/4.", 0.75), ("The answer is 3/4.", "3/4"), ("\\frac{3}{4}", "3/4"),
        ("$\\dfrac{3}{4}$", 0.75), ("-\\frac{3}{4}", -0.75), ("$1\\frac{3}{4}$", 1.75),
        ("It's -5.", -5), ("That's −5 outside", -5), ("It's cold! -5 outside.", -5),
        ("1{,}500", 1500), ("1\\,500", 1500), ("$1\\,500\\text{ km}$", "1500 km"),
        ("\\$1500", 1500),
        ("In January 24 were sold", 24), ("The answer - 24", 24), ("- 24 apples", 24), ("_24_", 24),
        ("<|answer|>24", 24), ("24 (= 4 * 6)", 24), ("**24** (4 × 6).", 24),
        ("24 (= (1 + 5) * 4)", 24),
        ("24 km (4 x 6)", "24 km"),
        ("1h30min", "1.5 h"), ("1h 30m", "1.5 h"), ("1 h 30 m", "90 min"), ("1d2h30m", "26.5 h"),
        ("$12\\text{ m}^2$", "12 m^2"), ("$12\\text{m}^{2}$", "12 m^2"),
        ("12 meters squared", "12 m^2"),
        ("12 m squared", "12 m^2"), ("42 kwh", "42 kWh"), ("5 KM", "5 km"), ("50 kmph", "50 km/h"),
        ("50 KM/H", "50 km/h"), ("21.5 ºC", "21.5 °C"), ("21.5 ˚C", "21.5 °C"),
        ("$21^\\circ$C", "21 °C"),
        ("4 feet 12 inches", "5 feet"), ("5ft3in", "63 in"), ("5 more km", "5 km"),
        ("5 in total", "5 km"),
        ("2 km (that is 2000 m)", "2 km"), ("5 in total.", "5 km"),
    ],
)  # fmt: skip
def test_a_right_answer_passes(text: str, answer: object) -> None:
    assert passes(text, answer)


@given(st.integers(2, 99), st.integers(2, 99), st.sampled_from("+-*"), st.sampled_from(["= ", ""]))
def test_a_bracket_that_reckons_the_answer_out_is_passed_over_where_it_is_right(
    one: int, two: int, sign: str, equals: str
) -> None:
    value = {"+": one + two, "-": one - two, "*": one * two}[sign]
    assert passes(f"So it is {value} ({equals}{one} {sign} {two}).", value)
    assert not passes(f"So it is {value + 1} ({equals}{one} {sign} {two}).", value + 1)


@given(st.integers(1, 99), st.integers(0, 200))
def test_minutes_after_hours_are_added_however_they_are_written(hours: int, minutes: int) -> None:
    wanted = f"{Fraction(60 * hours + minutes)} min"
    for text in ("{}h{}min", "{}h {}m", "{} h {} min", "{}hrs{}m", "{} hours {} minutes"):
        assert passes(text.format(hours, minutes), wanted), text
