"""Arguments and effects of declared actions."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from verifiers.actions import EXACT, Effect, InvalidCall, Parameter, result, slots
from verifiers.values import Normalise

EFFECT: TypeAdapter[Any] = TypeAdapter(Effect)


def made(effect: dict[str, Any], old: Any, **arguments: Any) -> Any:
    """Apply an effect, given as in a configuration, to a value of the place `x`."""
    return result(EFFECT.validate_python({"path": "x", **effect}), old, arguments, Normalise())


@pytest.mark.parametrize(
    ("parameter", "value", "typed"),
    [
        ({"type": "string"}, "Hall", "Hall"),
        ({"type": "string"}, 5, "5"),
        ({"type": "string"}, 0.5, "0.5"),
        ({"type": "string"}, True, "true"),
        ({"type": "integer"}, 5, 5),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "integer"}, " 5 ", 5),
        ({"type": "integer"}, "5e1", 50),
        ({"type": "number"}, "0.5", 0.5),
        ({"type": "number", "minimum": 0, "maximum": 1}, 1, 1),
        ({"type": "boolean"}, False, False),
        ({"type": "boolean"}, "True", True),
    ],
)
def test_an_argument_takes_its_parameters_type(parameter: Any, value: Any, typed: Any) -> None:
    found = Parameter.model_validate(parameter).typed(value, Normalise())
    assert (type(found), found) == (type(typed), typed)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ({"type": "string"}, None),
        ({"type": "integer"}, 5.5),
        ({"type": "integer"}, True),
        ({"type": "integer"}, "five"),
        ({"type": "integer"}, "٥"),
        ({"type": "number"}, "1_0"),
        ({"type": "number"}, "NaN"),
        ({"type": "number"}, "1e999"),
        ({"type": "number", "minimum": 0}, -1),
        ({"type": "number", "maximum": 0.1}, 0.11),
        ({"type": "boolean"}, 1),
        ({"type": "boolean"}, "yes"),
    ],
)
def test_an_argument_of_another_type_or_out_of_bounds_is_invalid(
    parameter: Any, value: Any
) -> None:
    with pytest.raises(InvalidCall):
        Parameter.model_validate(parameter).typed(value, Normalise())


@pytest.mark.parametrize(("type_", "value"), [("string", 5), ("integer", "5"), ("boolean", "true")])
def test_texts_are_no_values_of_other_types_where_numbers_are_not_normalised(
    type_: str, value: Any
) -> None:
    with pytest.raises(InvalidCall):
        Parameter.model_validate({"type": type_}).typed(value, EXACT)


DECIMALS = st.decimals(-1000, 1000, places=3)


@given(DECIMALS, DECIMALS, st.booleans())
def test_numbers_change_as_decimal_fractions_do(old: Decimal, step: Decimal, up: bool) -> None:
    op = "increment" if up else "decrement"
    found = made({"op": op, "value": float(step)}, float(old))
    assert found == float(old + step if up else old - step)
    assert made({"op": op, "value": "{by}"}, float(old), by=float(step)) == found
    bounded = made({"op": op, "value": float(step), "minimum": -5, "maximum": 5.5}, float(old))
    assert bounded == max(-5, min(5.5, found))


def test_large_integers_stay_exact_and_what_json_cannot_hold_is_invalid() -> None:
    assert made({"op": "increment", "value": 1}, 10**400) == 10**400 + 1
    assert made({"op": "decrement", "value": 0.5}, 1) == 0.5
    with pytest.raises(InvalidCall):
        made({"op": "increment", "value": 0.5}, 10**400)


@given(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 3))
def test_lists_grow_at_the_end_and_lose_the_first_equal_element(old: list[int], value: int) -> None:
    assert made({"op": "append", "value": value}, old) == [*old, value]
    without = list(old)
    if value in without:
        without.remove(value)
    assert made({"op": "remove", "value": "{which}"}, old, which=str(value)) == without


@pytest.mark.parametrize(
    ("effect", "old"),
    [
        ({"op": "toggle"}, 1),
        ({"op": "toggle"}, "true"),
        ({"op": "increment", "value": 1}, "1"),
        ({"op": "increment", "value": 1}, True),
        ({"op": "append", "value": 1}, "list"),
        ({"op": "remove", "value": 1}, None),
    ],
)
def test_a_value_of_another_type_cannot_be_changed(effect: dict[str, Any], old: Any) -> None:
    with pytest.raises(InvalidCall):
        made(effect, old)


def test_an_effect_names_the_parameters_in_its_path_and_its_value() -> None:
    effect = EFFECT.validate_python({"op": "set", "path": "a.{b}.*.{c}", "value": "{d}"})
    assert slots(effect) == {"b", "c", "d"}
    assert slots(EFFECT.validate_python({"op": "toggle", "path": "a.{b}"})) == {"b"}
