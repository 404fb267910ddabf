"""`function_call` on questions of the Berkeley Function Calling Leaderboard, beside its checker.

BFCL compares types strictly and ignores punctuation, so the grader is set to do the same.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.verifiers import bfcl
from tests.verifiers.bfcl import Arguments, Call, Question
from verifiers import Grade, Sample, ToolCall, build
from verifiers.calls import Syntax, write_calls

LIKE_BFCL = {"type": "function_call", "normalise": {"numbers": False, "punctuation": True}}
SYNTAXES: list[Syntax] = ["json", "call", "tools"]


def simple() -> list[Question]:
    """Return the 400 questions that want one call of the one function there is."""
    return bfcl.questions("simple_python")


def grade(question: Question, made: list[Call], syntax: Syntax, **config: Any) -> Grade:
    """Grade a completion that makes these calls."""
    tools = tuple(ToolCall(name=name, arguments=arguments) for name, arguments in made)
    text = write_calls(made, syntax)
    sample = Sample(output_text=text or "", output_tools=tools)
    return build({**LIKE_BFCL, "syntax": syntax, **config}).grade(sample, {"call": question.truth})


def every_value(choice: Any) -> list[Any]:
    """List values that one allowed value stands for; of an object each key's first and last."""
    if isinstance(choice, dict):
        picks = [{key: allowed[end] for key, allowed in choice.items()} for end in (0, -1)]
        return [
            {key: every_value(one)[0] for key, one in pick.items() if one != ""} for pick in picks
        ]
    return [[every_value(one)[0] for one in choice]] if isinstance(choice, list) else [choice]


def answers(possible: dict[str, list[Any]], required: list[str]) -> list[Arguments]:
    """List arguments in which each allowed value occurs, and each optional one is left out once."""
    columns: dict[str, list[list[Any]]] = {}
    for key, choices in possible.items():
        given = [[value] for choice in choices if choice != "" for value in every_value(choice)]
        columns[key] = given + ([[]] if "" in choices and key not in required else [])
    longest = max((len(column) for column in columns.values()), default=1)
    return [
        {key: value for key, column in columns.items() for value in column[turn % len(column)]}
        for turn in range(longest)
    ]


def wrong_value(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + " x"
    return [*value, *value[:1], 1] if isinstance(value, list) else {**value, "x": 1}


def wrong_type(value: Any) -> Any:
    """Return the value spelled in another type."""
    return [value] if isinstance(value, str) else json.dumps(value)


def mutants(question: Question) -> Iterator[tuple[str, Call]]:
    """Make wrong calls out of one that gives every argument: what is wrong, and the call."""
    name, possible = question.name, question.possible
    given = {key: choices for key, choices in possible.items() if choices != [""]}
    whole = answers(given, required=list(given))[0]
    yield "name", (name + "_x", whole)
    yield "name", (name.swapcase(), whole)
    yield "extra", (name, {**whole, "unexpected": 1})
    for key, value in whole.items():
        if "" not in possible[key]:
            yield "missing", (name, {other: whole[other] for other in whole if other != key})
        if wrong_value(value) not in possible[key]:
            yield "value", (name, {**whole, key: wrong_value(value)})
        yield "type", (name, {**whole, key: wrong_type(value)})


def required(question: Question) -> list[str]:
    """Return the arguments that the function's description says must be given.

    Two answers of BFCL mark one of these as optional, which its own checker then refuses.
    """
    names: list[str] = question.functions[0]["parameters"]["required"]
    return names


def test_all_400_simple_questions_are_here() -> None:
    assert len(simple()) == 400
    assert all(len(question.truth) == 1 for question in simple())


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("numbers", [True, False])
def test_every_allowed_answer_of_every_simple_question_passes(
    syntax: Syntax, numbers: bool
) -> None:
    normalise = {"numbers": numbers}
    for question in simple():
        for arguments in answers(question.possible, []):
            result = grade(question, [(question.name, arguments)], syntax, normalise=normalise)
            assert result.passed and result.score == 1.0, (question.id, arguments)


@pytest.mark.parametrize("syntax", ["json", "call"])
def test_the_reference_of_every_simple_question_passes(syntax: Syntax) -> None:
    grader = build({**LIKE_BFCL, "syntax": syntax})
    for question in simple():
        text = grader.reference({"call": question.truth})
        assert text is not None
        assert grader.grade(Sample(output_text=text), {"call": question.truth}).passed


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_every_mutated_answer_of_every_simple_question_fails(syntax: Syntax) -> None:
    kinds: set[str] = set()
    for question in simple():
        for kind, call in mutants(question):
            result = grade(question, [call], syntax)
            assert not result.passed and result.error is None, (question.id, kind, call)
            assert result.score is not None and 0 < result.score < 1
            kinds.add(kind)
        twice = [(question.name, answers(question.possible, [])[0])] * 2
        assert not grade(question, twice, syntax).passed
    assert kinds == {"name", "extra", "missing", "value", "type"}


def test_bfcls_own_checker_says_the_same_of_every_answer_and_mutant() -> None:
    verdicts = 0
    for question in simple():
        right = [(question.name, one) for one in answers(question.possible, required(question))]
        for call in [*right, *(mutant for _, mutant in mutants(question))]:
            ours = grade(question, [call], "json").passed
            assert ours == bfcl.accepts(question, *call), (question.id, call)
            verdicts += 1
    assert verdicts > 5000


def test_a_text_without_its_punctuation_is_the_same_to_both() -> None:
    for question in simple():
        arguments = {
            key: value.replace(" ", "").upper() if isinstance(value, str) else value
            for key, value in answers(question.possible, required(question))[0].items()
        }
        assert grade(question, [(question.name, arguments)], "json").passed
        assert bfcl.accepts(question, question.name, arguments)


@pytest.mark.parametrize("category", ["multiple", "parallel", "parallel_multiple"])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_several_calls_pass_in_any_order_and_fail_with_one_missing_or_twice(
    category: str, syntax: Syntax
) -> None:
    for question in bfcl.questions(category):
        calls = [
            (name, answers(possible, [])[0])
            for truth in question.truth
            for name, possible in truth.items()
        ]
        random.Random(question.id).shuffle(calls)
        assert grade(question, calls, syntax, calls="any_order").score == 1.0, question.id
        for wrong in (calls[1:], [*calls, calls[0]], [*calls[1:], ("other", {})]):
            result = grade(question, wrong, syntax, calls="any_order")
            assert not result.passed and result.error is None, (question.id, wrong)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_where_no_function_fits_any_call_fails(syntax: Syntax) -> None:
    for question in simple():
        nothing = Question(question.id, question.functions, [])
        call = (question.name, answers(question.possible, [])[0])
        assert not grade(nothing, [call], syntax).passed
        assert grade(nothing, [], syntax).passed
