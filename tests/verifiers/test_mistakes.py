"""The place of a mistake is one in the configuration, whatever pydantic calls it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tests.verifiers.strategies import JSON
from verifiers import GraderConfigError, build
from verifiers.mistakes import first_mistake


class Call(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    call: str
    equals: int


class Red(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["red"]
    depth: int = Field(ge=0)


class Blue(BaseModel):
    kind: Literal["blue"]


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tests: str | list[str | Call] = ""
    colours: dict[str, Annotated[Red | Blue, Field(discriminator="kind")]] = {}
    words: dict[Annotated[str, Field(pattern="^[a-z]+$")], int] = {}
    number: int = Field(0, alias="count")

    @field_validator("tests")
    @classmethod
    def _no_shouting(cls, tests: Any) -> Any:
        if tests == "LOUD":
            raise ValueError("is too loud")
        return tests


def mistake(config: Any) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(config)
    return first_mistake(caught.value, config)


@pytest.mark.parametrize(
    ("config", "path", "told"),
    [
        ({"surprise": 1}, "surprise", "Extra inputs are not permitted"),
        ({"tests": "LOUD"}, "tests", "is too loud"),
        ({"tests": 5}, "tests", "Input should be a valid string or Input should be a valid list"),
        ({"tests": [{"call": 1, "equals": 2}]}, "tests.0.call", "Input should be a valid string"),
        ({"tests": ["a", {"call": "f()"}]}, "tests.1.equals", "Field required"),
        ({"tests": ["a", {"call": "f()", "equals": 1, "x": 2}]}, "tests.1.x", "Extra inputs"),
        ({"colours": {"a": {"kind": "red", "depth": -1}}}, "colours.a.depth", "greater"),
        ({"colours": {"a": {"kind": "red"}}}, "colours.a.depth", "Field required"),
        ({"colours": {"red": {"kind": "red"}}}, "colours.red.depth", "Field required"),
        ({"colours": {"a": {"kind": "pink"}}}, "colours.a.kind", "pink"),
        ({"colours": {"a": {}}}, "colours.a.kind", "kind"),
        ({"colours": {"a": 5}}, "colours.a", "Input should be a valid dictionary"),
        ({"words": {"A B": 1}}, "words.A B", "pattern"),
        ({"words": {"a": "1"}}, "words.a", "integer"),
        ({"count": "x"}, "count", "integer"),
        ([], "", "Input should be a valid dictionary"),
    ],
)
def test_a_mistake_has_a_place_in_the_configuration(config: Any, path: str, told: str) -> None:
    found, message = mistake(config)
    assert found == path
    assert told in message


@given(JSON)
def test_every_step_but_a_missing_one_leads_somewhere(value: Any) -> None:
    config = {"tests": value, "colours": value, "words": value, "count": value}
    try:
        Config.model_validate(config)
    except ValidationError as error:
        path, message = first_mistake(error, config)
        assert message
        place: Any = config
        *steps, last = path.split(".")
        for step in steps:
            place = place[int(step)] if isinstance(place, list) else place[step]
        assert last in place or last.isdigit() or last in ("call", "equals", "kind", "depth")


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"type": "unit_tests", "tests": [{"call": "f()"}]}, "tests.0.equals"),
        ({"type": "instruction", "constraints": {"a": {"kind": "length"}}}, "constraints.a.unit"),
        ({"type": "instruction", "constraints": {"a": {"kind": "?"}}}, "constraints.a.kind"),
        (
            {"type": "multi", "graders": {"b": {"type": "unit_tests", "tests": [{"call": "f()"}]}}},
            "graders.b.tests.0.equals",
        ),
    ],
)
def test_a_graders_mistake_is_named_by_its_place(config: dict[str, Any], path: str) -> None:
    with pytest.raises(GraderConfigError) as caught:
        build(config)
    assert caught.value.path == path
