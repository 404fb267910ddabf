"""`instruction`: constraints of the configuration and of the item together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers import Grade, GraderConfigError, Sample, Status, build

SHORT = {"kind": "length", "unit": "words", "maximum": 4}
POLITE = {"kind": "ends_with", "texts": ["please", "thanks"]}
LOWER = {"kind": "format", "form": "lowercase"}


def grade(text: str, item: dict[str, Any] | None = None, **config: Any) -> Grade:
    """Grade a text."""
    return build({"type": "instruction", **config}).grade(Sample(output_text=text), item or {})


@given(st.sets(st.sampled_from(["short", "polite", "lower"]), min_size=1), st.integers(0, 3))
def test_the_score_is_the_mean_of_the_shares_wherever_the_constraints_stand(
    names: set[str], split: int
) -> None:
    every = {"short": SHORT, "polite": POLITE, "lower": LOWER}
    used = {name: every[name] for name in sorted(names)}
    here, there = dict(list(used.items())[:split]), dict(list(used.items())[split:])
    source = {"constraints": here} | ({"reference": "rules"} if there else {})
    shares = {"short": 0.8, "polite": 1.0, "lower": 0.0}
    result = grade("Turn it all off, please", {"rules": there}, **source)
    assert result.subscores == {name: shares[name] for name in used}
    assert result.score == pytest.approx(sum(shares[n] for n in used) / len(used), abs=2e-6)
    assert result.passed == (names == {"polite"})


@pytest.mark.parametrize("blank", ["", " \n\t", "\u2003", "\u200b \u3164"])
def test_a_blank_completion_fails_even_where_everything_is_forbidden(blank: str) -> None:
    nothing = {"kind": "must_not_contain", "texts": ["sorry"]}
    result = grade(blank, constraints={"short": SHORT, "calm": nothing})
    assert (result.status, result.score) == (Status.FAILED, 0.0)


def test_texts_of_the_configuration_are_templates_and_those_of_the_item_are_not() -> None:
    wanted = {"name": {"kind": "must_contain", "texts": ["{{item.who}}", "room {{item.room}}"]}}
    assert grade("Ann is in room 12", {"who": "Ann", "room": 12}, constraints=wanted).passed
    assert not grade("Ann is in room 1", {"who": "Ann", "room": 12}, constraints=wanted).passed
    plain = {"rules": {"braces": {"kind": "must_contain", "texts": ["{{item.who}}"]}}}
    assert grade("{{item.who}}", plain, reference="rules").passed


@pytest.mark.parametrize("item", [{}, {"who": None}, {"who": " "}, {"who": "\u200b"}])
def test_an_item_without_the_text_that_is_looked_for_is_errored(item: dict[str, Any]) -> None:
    wanted = {"name": {"kind": "must_contain", "texts": ["{{item.who}}"]}}
    result = grade("x", item, constraints=wanted)
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        (None, "rules"),
        ({}, "rules"),
        ([], "rules"),
        ({"a": {"kind": "rhyme"}}, "rules.a"),
        ({"a": {**SHORT, "unit": "feet"}}, "rules.a.unit"),
        ({"a.b": SHORT}, "rules.a.b"),
        ({"short": SHORT}, "rules.short"),
        ({f"r{n}": SHORT for n in range(65)}, "rules"),
    ],
)
def test_wrong_constraints_of_an_item_are_errored_with_their_place(rules: Any, place: str) -> None:
    result = grade("x", {"rules": rules}, constraints={"short": SHORT}, reference="rules")
    assert (result.status, result.error_kind) == (Status.ERRORED, "item")
    assert result.error is not None and f"'{place}" in result.error


def test_the_reference_is_the_example_if_it_passes() -> None:
    config = {"type": "instruction", "constraints": {"short": SHORT}, "example": "{{item.answer}}"}
    grader = build(config)
    assert grader.reference({"answer": "off, please"}) == "off, please"
    assert grader.reference({"answer": "turn it all off now, please"}) is None
    assert grader.reference({}) is None
    assert build({**config, "example": None}).reference({"answer": "off"}) is None


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({}, "constraints"),
        ({"constraints": {}}, "constraints"),
        ({"constraints": {"a": {"kind": "rhyme"}}}, "constraints.a.kind"),
        ({"constraints": {"a": {**SHORT, "minimum": 9}}}, "constraints.a"),
        ({"constraints": {"a": {**SHORT, "least": 9}}}, "constraints.a.least"),
        ({"constraints": {"A": SHORT}}, "constraints.A"),
        ({"constraints": {"a": {**POLITE, "texts": ["{{who}}"]}}}, "constraints.a.texts.0"),
        (
            {"constraints": {"a": {**POLITE, "texts": ["a", "{{sample.output_text}}"]}}},
            "constraints.a.texts.1",
        ),
        ({"reference": "a b"}, "reference"),
        ({"constraints": {"a": SHORT}, "example": "{{sample.output_text}}"}, "example"),
        ({"constraints": {"a": SHORT}, "example": "{{item}}"}, "example"),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build({"type": "instruction", **config})
    assert caught.value.path == path
