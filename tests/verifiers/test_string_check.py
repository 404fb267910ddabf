"""`string_check` against Python's own string operations."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import GraderConfigError, Sample, Status, build

TEXT = st.text(alphabet="aAbB ßé\n", max_size=5)
OPERATIONS = ["eq", "ne", "like", "ilike"]


def check(operation: str, **more: Any) -> Any:
    """Build a string_check."""
    return build({"type": "string_check", "operation": operation, **more})


@given(TEXT, TEXT.filter(str.strip), st.booleans())
def test_each_operation_is_the_string_operation_it_names(
    output: str, answer: str, strip: bool
) -> None:
    text, wanted = (output.strip(), answer.strip()) if strip else (output, answer)
    expected = {
        "eq": text == wanted,
        "ne": text != wanted,
        "like": text.find(wanted) >= 0,
        "ilike": text.casefold().find(wanted.casefold()) >= 0,
    }
    for operation in OPERATIONS:
        grader = check(operation, strip=strip)
        grade = grader.grade(Sample(output_text=output), {"answer": answer})
        assert grade.passed == expected[operation]
        assert grade.score == float(grade.passed)


@given(TEXT.filter(str.strip), st.sampled_from(["eq", "like", "ilike"]), st.booleans())
def test_the_reference_passes(answer: str, operation: str, strip: bool) -> None:
    grader = check(operation, strip=strip)
    text = grader.reference({"answer": answer})
    assert text is not None
    assert grader.grade(Sample(output_text=text), {"answer": answer}).passed


def test_the_reference_is_the_side_without_the_completion() -> None:
    swapped = check("eq", input="{{item.wanted}}", reference="{{sample.output_text}}")
    assert swapped.reference({"wanted": " yes "}) == "yes"
    contained = check("like", input="a yes or no", reference="{{ sample.output_text }}")
    assert contained.reference({}) == "a yes or no"


def test_there_is_no_reference_where_none_can_be_named() -> None:
    assert check("ne").reference({"answer": "a"}) is None
    assert check("eq").reference({}) is None
    assert check("eq", input="{{sample.output_text}}!").reference({"answer": "a"}) is None
    both = check("eq", reference="{{sample.output_text}}")
    assert both.reference({}) is None


@pytest.mark.parametrize("item", [{}, {"answer": None}])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_answer_is_errored(item: dict[str, Any], operation: str) -> None:
    grade = check(operation).grade(Sample(output_text=""), item)
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")


@pytest.mark.parametrize("operation", ["like", "ilike"])
@pytest.mark.parametrize("strip", [True, False])
def test_nothing_passes_by_containing_a_blank_reference(operation: str, strip: bool) -> None:
    grade = check(operation, strip=strip).grade(Sample(output_text="x"), {"answer": " "})
    assert (grade.status, grade.error_kind) == (Status.ERRORED, "item")
    swapped = check(operation, input="{{item.answer}}", reference="{{sample.output_text}}")
    assert swapped.grade(Sample(output_text=""), {"answer": "yes"}).status is Status.FAILED
    with pytest.raises(GraderConfigError) as caught:
        check(operation, reference="  ")
    assert caught.value.path == "reference"


def test_an_empty_answer_can_be_wanted_exactly() -> None:
    assert check("eq").grade(Sample(output_text=" "), {"answer": ""}).passed
    assert check("eq", reference="").grade(Sample(output_text=""), {}).passed


def test_numbers_of_the_item_compare_as_text() -> None:
    assert check("eq").grade(Sample(output_text="42"), {"answer": 42}).passed
    assert check("eq").grade(Sample(output_text="true"), {"answer": True}).passed
    assert not check("eq").grade(Sample(output_text="４２"), {"answer": 42}).passed


def test_a_check_that_ignores_the_completion_is_refused() -> None:
    with pytest.raises(GraderConfigError) as caught:
        check("eq", input="{{item.answer}}")
    assert caught.value.path == "input"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("output", ["", "Rome", '{"town": "Rome"}', '{"city": null}'])
def test_a_completion_without_the_value_that_is_read_fails_every_operation(
    operation: str, output: str
) -> None:
    grader = check(operation, input="{{sample.output_json.city}}", reference="Oslo")
    grade = grader.grade(Sample(output_text=output), {})
    assert (grade.status, grade.score) == (Status.FAILED, 0.0)


def test_values_of_a_json_completion_and_of_its_tool_calls_are_compared() -> None:
    field = check("eq", input="{{sample.output_json.places[0].city}}", reference="{{item.city}}")
    assert field.grade(
        Sample(output_text='{"places": [{"city": "Rome"}]}'), {"city": "Rome"}
    ).passed
    name = check("eq", input="f", reference="{{sample.output_tools[0].function.name}}")
    assert name.grade(Sample(output_text='{"name": "f", "arguments": {}}'), {}).passed


@pytest.mark.parametrize("operation", ["eq", "like", "ilike"])
def test_texts_that_look_the_same_are_the_same(operation: str) -> None:
    for text in ("caf\u00e9", "cafe\u0301", "ca\u200bf\u00e9"):
        for answer in ("caf\u00e9", "cafe\u0301"):
            assert check(operation).grade(Sample(output_text=text), {"answer": answer}).passed
            assert not check("ne").grade(Sample(output_text=text), {"answer": answer}).passed


@pytest.mark.parametrize("output", ['{"n": 1}', '{"n": 1.0}', '{"n": 1e0}'])
@pytest.mark.parametrize("answer", [1, 1.0, "1"])
def test_a_whole_number_is_the_same_however_json_writes_it(output: str, answer: Any) -> None:
    grader = check("eq", input="{{sample.output_json.n}}")
    assert grader.grade(Sample(output_text=output), {"answer": answer}).passed
    whole = check("eq", input="{{sample.output_json}}", reference='{"n": {{item.answer}}}')
    assert whole.grade(Sample(output_text=output), {"answer": answer}).passed


@pytest.mark.parametrize("answer", [1.0, 1, 0.5, 1e100, [1.0], {"a": 2.0}, True])
def test_a_value_of_an_item_is_the_text_that_json_writes(answer: Any) -> None:
    grader = check("eq", input="{{sample.output_text}}", reference="{{item.answer}}")
    assert grader.grade(Sample(output_text=json.dumps(answer)), {"answer": answer}).passed
    assert grader.reference({"answer": answer}) == json.dumps(answer)
