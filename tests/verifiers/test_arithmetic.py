"""`arithmetic` against brute force over small puzzles. The evaluator has its own tests."""

from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import Grade, Grader, GraderConfigError, Sample, Status, build, grader_hash

GIVEN = st.lists(st.integers(1, 9), min_size=1, max_size=3)


def arithmetic(**config: Any) -> Grader:
    """Build an arithmetic grader."""
    return build({"type": "arithmetic", **config})


def grade(text: str, numbers: Any, target: Any, **config: Any) -> Grade:
    """Grade an expression."""
    item = {"numbers": numbers, "target": target}
    return arithmetic(**config).grade(Sample(output_text=text), item)


def expressions(numbers: tuple[int, ...]) -> list[tuple[str, Fraction | None]]:
    """All expressions over the numbers in this order, with their values."""
    if len(numbers) == 1:
        return [(str(numbers[0]), Fraction(numbers[0]))]
    found: list[tuple[str, Fraction | None]] = []
    for cut in range(1, len(numbers)):
        for (left, x), (right, y) in product(
            expressions(numbers[:cut]), expressions(numbers[cut:])
        ):
            both = x is not None and y is not None
            values = {
                "+": x + y if x is not None and y is not None else None,
                "-": x - y if x is not None and y is not None else None,
                "*": x * y if x is not None and y is not None else None,
                "/": x / y if both and x is not None and y else None,
            }
            found += [(f"({left}){sign}({right})", value) for sign, value in values.items()]
    return found


@given(GIVEN, st.data())
def test_with_all_numbers_exactly_the_expressions_that_reach_the_target_pass(
    given_numbers: list[int], data: st.DataObject
) -> None:
    order = data.draw(st.sampled_from(sorted(permutations(given_numbers))))
    text, value = data.draw(st.sampled_from(expressions(order)))
    target = data.draw(st.sampled_from([value, 1, 24]).filter(lambda one: one is not None))
    whole = target is not None and Fraction(target).denominator == 1
    result = grade(text, given_numbers, int(target) if whole and target is not None else 10**9)
    assert result.passed == (whole and value == target)
    assert result.score == pytest.approx(1 if result.passed else 0.5)


@given(GIVEN, GIVEN)
def test_the_share_of_right_numbers_is_scored(given_numbers: list[int], used: list[int]) -> None:
    text = "+".join(map(str, used))
    right = sum((Counter(given_numbers) & Counter(used)).values())
    f1 = 2 * right / (len(given_numbers) + len(used))
    for use, share in (("all", f1), ("some", right / len(used))):
        hit = grade(text, given_numbers, sum(used), use=use)
        assert hit.subscores == {"parseable": 1, "numbers": pytest.approx(share), "value": 1}
        assert hit.passed == (share == 1)
        miss = grade(text, given_numbers, sum(used) + 1, use=use)
        assert not miss.passed
        assert miss.score == pytest.approx(0.1 + 0.4 * share)
        assert hit.passed or hit.score == miss.score
    assert grade(text, [], sum(used), use="any").passed


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("6*4", True),
        ("6*4=24", True),
        ("6 × 4 = 24", True),
        ("6*4=24.0", True),
        ("6*4=25", False),
        ("6*4=4*6", False),
        ("6*4=24=24", False),
        ("24=6*4", False),
        ("24", False),
        ("6*4*1", False),
        ("6*4 = ", False),
        ("6*4.", False),
        ("The answer is 6*4", False),
    ],
)
def test_a_claimed_result_must_be_right(text: str, passed: bool) -> None:
    assert grade(text, [4, 6], 24).passed == passed


def test_the_expression_can_be_in_the_last_line_or_in_a_tag() -> None:
    text = "First 6*3, then:\n6*4\n \n"
    assert grade(text, [4, 6], 24, find="last_line").passed
    assert not grade(text, [4, 6], 24).passed
    tagged = "<answer>6*3</answer> no: <answer> 6*4 = 24 </answer> of course"
    assert grade(tagged, [4, 6], 24, find="tag").passed
    for broken in ("6*4", "<answer>6*4", "<answer>6*4</answer><answer>1</answer>"):
        assert not grade(broken, [4, 6], 24, find="tag").passed


def test_operations_can_be_restricted() -> None:
    assert grade("6*4", [4, 6], 24, operations=["*"]).passed
    refused = grade("30-6", [30, 6], 24, operations=["+", "*"])
    assert (refused.status, refused.score) == (Status.FAILED, 0.0)


def test_negative_and_decimal_numbers_are_given_as_they_are() -> None:
    assert grade("-3+5", [-3, 5], 2).passed
    assert grade("5-3", [3, 5], 2).passed
    assert grade("0.5*4", [0.5, 4], 2).passed
    assert grade("1/3", [1, 3], 0.3333).status is Status.FAILED


def test_the_example_is_the_reference_where_it_is_right() -> None:
    item = {"numbers": [4, 6], "target": 24, "solution": "6*4"}
    assert arithmetic(example="{{item.solution}}").reference(item) == "6*4"
    tagged = arithmetic(example="solution", find="tag")
    assert tagged.reference(item) == "<answer>6*4</answer>"
    assert arithmetic(example="solution").reference({**item, "target": 25}) is None
    assert arithmetic(example="other").reference(item) is None
    assert arithmetic().reference(item) is None
    assert arithmetic(use="any").reference({"target": -24}) == "-24"


@pytest.mark.parametrize(
    "text",
    ["44**19**35", "9**9**9**9", "6*4" + "*1" * 40_000, "(" * 60_000, "9" * 1_000_000, "４*6",
     "4*٦", "__import__('os').system('x')", "4*6" + " " * 65_000 + "!", "1/0", "6*4\u2028"],
)  # fmt: skip
def test_hostile_expressions_are_graded(text: str) -> None:
    for find in ("whole", "last_line", "tag"):
        result = grade(text, [4, 6], 24, find=find)
        assert result.status is Status.FAILED or text.strip() == "6*4"


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"numbers": [1]},
        {"target": 1},
        {"numbers": [], "target": 1},
        {"numbers": 1, "target": 1},
        {"numbers": ["1"], "target": 1},
        {"numbers": [True], "target": 1},
        {"numbers": [1], "target": "1"},
        {"numbers": [1], "target": None},
        {"numbers": [1] * 101, "target": 1},
        {"numbers": [float("inf")], "target": 1},
    ],
)
def test_a_broken_item_is_errored_and_has_no_reference(item: dict[str, Any]) -> None:
    grader = arithmetic(example="numbers")
    result = grader.grade(Sample(output_text="1"), item)
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    assert grader.reference(item) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"use": "once"}, "use"),
        ({"operations": []}, "operations"),
        ({"operations": ["**"]}, "operations.0"),
        ({"numbers": "{{sample.output_text}}"}, "numbers"),
        ({"parseable_weight": 0.7}, ""),
        ({"solution": "x"}, "solution"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        arithmetic(**config)
    assert caught.value.path == path


def test_the_order_of_operations_is_no_difference() -> None:
    one = {"type": "arithmetic", "operations": ["*", "+"]}
    assert grader_hash(one) == grader_hash({**one, "operations": ["+", "*", "+"]})


@pytest.mark.parametrize(
    ("text", "numbers", "config", "passed"),
    [
        ("-3+5", [3, 5], {}, True),
        ("-3+5", [-3, 5], {}, True),
        ("5-3", [-3, 5], {}, False),
        ("-3*-3-7", [3, -3, 7], {}, True),
        ("3--3-4", [3, -3, 4], {}, True),
        ("-(3-5)", [3, 5], {}, True),
        ("-3+5", [3, 5], {"operations": ["+"]}, False),
        ("-3+5", [-3, 5], {"operations": ["+"]}, True),
        ("-3+5", [3, 5, 7], {"use": "some"}, True),
        ("-3-3+8", [3, 8], {"use": "some"}, False),
    ],
)
def test_a_minus_is_that_of_a_given_number_or_an_operation_on_it(
    text: str, numbers: list[int], config: dict[str, Any], passed: bool
) -> None:
    assert grade(text, numbers, 2, **config).passed == passed
