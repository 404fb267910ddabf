"""`function_call`: calls, their names and arguments against allowed values; or no call at all.

The item's `call` is `{"name": "turn_on", "arguments": {"area": ["kitchen", "den"], "level": 50}}`,
or the same as BFCL's `ground_truth` spells it: `{"turn_on": {"area": ["kitchen", "den"]}}`.
An argument holds a value or a list of allowed values; "" in the list means that the argument may be
left out. `verifiers/allowed.py` says how lists and objects are allowed. `null` or `[]` means that
the right answer calls nothing. `calls` says how many there are:

* one: one call;
* in_order: the item has a list of calls, and they are wanted in that order;
* any_order: a list of calls in whatever order.

Score of one call = weighted mean of three sub-scores (weights 0.1, 0.4, 0.5 unless configured):

* parseable: 1 for a whole call, 0.5 for a whole call with something else around it, 0 for a broken
  one, whose name and arguments still count as far as they could be read;
* name: 1 if right;
* arguments: F1 over key and value pairs, counted whether or not the name is right. A right key with
  a wrong value is half a pair; of duplicates the best counts once. F1 is 1 when a call needs no
  arguments and gives none.

With several, wanted and given calls are paired so that their scores add up to most (for in_order
without crossing), and every sub-score is 2 * its sum over pairs / (wanted + given calls). A fourth,
`calls`, counts the pairs that are exactly right; it is shown and does not weigh. A completion that
makes more than 64 calls fails with score 0.

Passes only for whole calls with the right names, every needed argument with an allowed value and
nothing else. When nothing is to be called, passes what calls nothing anywhere, and scores 0 or 1.

What is wanted must be in the documented form. A second call beside it counts in any form of its
syntax: wrapped in other JSON (`tool_calls`, a list), in broken JSON or with single quotes, behind
other words or signs. As `call` that is `name(` or `name (` with `key=` or `)` after it, so prose
such as "the sum (x=3)" can be taken for one; brackets alone cannot.

Where nothing is to be called, whatever looks like an attempt fails, in either syntax and in what
neither allows: `verifiers/attempts.py` lists it. There, `sin(x)` in prose is taken for a call,
too. With `functions`, the names of all functions, more of the forms of theirs are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verifiers.allowed import Allowed, example_object, parse_object
from verifiers.base import (
    BEST_FAILED_SCORE,
    NOTHING_RIGHT,
    GraderConfig,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.calls import (
    MAX_CALLS,
    attempts_more,
    read_call,
    read_calls,
    read_everything,
    write_calls,
)
from verifiers.matching import Gains, Pairs, pair_in_any_order, pair_in_order
from verifiers.readings import Reading, Shape
from verifiers.templates import ItemPath, item_value
from verifiers.values import Normalise


class CallWeights(BaseModel):
    """The share of each sub-score in the score."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    parseable: float = Field(default=0.1, ge=0, le=1e6)
    name: float = Field(default=0.4, ge=0, le=1e6)
    arguments: float = Field(default=0.5, ge=0, le=1e6)

    @model_validator(mode="after")
    def _weigh_something(self) -> Self:
        if self.parseable + self.name + self.arguments <= 0:
            raise ValueError("at least one weight must be above zero")
        return self


class FunctionCallConfig(GraderConfig):
    """Configuration of `function_call`."""

    type: Literal["function_call"]
    reference: ItemPath = Field(
        default="call", description="Path of the expected call in the item; {{item.x}} too."
    )
    calls: Literal["one", "in_order", "any_order"] = Field(
        default="one", description="Whether the item has one call or a list, and if order matters."
    )
    syntax: Literal["json", "call", "tools"] = Field(
        default="json",
        description='json: {"name": ..., "arguments": {...}}, several as an array or one after the '
        "other; call: turn_on(area=kitchen, level=50), values quoted or not, several one a line; "
        "tools: the completion's tool calls.",
    )
    surrounding: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="Text around the call. json: around the object; call: lines after the first, "
        "with several calls every line that begins none. tools: the text beside a tool call never "
        "matters. A call that is not wanted always does.",
    )
    weights: CallWeights = CallWeights()
    normalise: Normalise = Normalise()
    functions: tuple[str, ...] = Field(
        default=(),
        max_length=1000,
        strict=False,
        description="Names of the functions that a completion might call. Where nothing may be "
        "called, attempts to call these are seen in more forms.",
    )
    no_call_text: str = Field(
        default="none",
        min_length=1,
        max_length=1000,
        description="The text to learn from when nothing is to be called.",
    )


@dataclass(frozen=True)
class Call:
    """A call that the item accepts."""

    name: str
    arguments: dict[str, Allowed]


@dataclass(frozen=True)
class FunctionCall(Judge[FunctionCallConfig, tuple[Call, ...]]):
    """Compares the calls in a completion with the item's."""

    def answers(self, item: dict[str, Any], expected: tuple[Call, ...]) -> tuple[str, ...]:
        """The calls with the first allowed values and without optional arguments.

        For an item that calls nothing this is the configured `no_call_text`. None for `tools`,
        whose calls are not text.
        """
        del item
        if not expected:
            return (self.config.no_call_text,)
        examples = [(call.name, example_object(call.arguments)) for call in expected]
        text = write_calls(examples, self.config.syntax)
        return () if text is None else (text,)

    def expect(self, item: dict[str, Any]) -> tuple[Call, ...]:
        """The calls that the item accepts, none where nothing may be called."""
        place = self.config.reference
        value = item_value(item, place)
        if value is None:
            return ()
        if not isinstance(value, list):
            return (_call(value, place, self.config.normalise),)
        most = 1 if self.config.calls == "one" else MAX_CALLS
        if len(value) > most:
            raise ItemError(
                f"the item's field '{place}' lists {len(value)} calls; with calls = "
                f"'{self.config.calls}' there can be {most}"
            )
        return tuple(
            _call(one, f"{place}.{index}", self.config.normalise) for index, one in enumerate(value)
        )

    def compare(self, sample: Sample, expected: tuple[Call, ...]) -> Outcome:
        """Sub-scores are `parseable`, `name` and `arguments`, and `calls` for several."""
        syntax, ignore = self.config.syntax, self.config.surrounding == "ignore"
        if not expected:
            called = read_everything(sample, syntax, ignore)
            right = not called and not attempts_more(sample, syntax, self.config.functions)
            return Outcome(right, float(right))
        if self.config.calls != "one":
            # Where other text is refused, a call in it makes things no worse.
            read = read_everything if ignore else read_calls
            return self._compare_several(read(sample, syntax, ignore), expected)
        reading = read_call(sample, syntax, ignore)
        if reading is None:
            return Outcome(False, 0.0, {"parseable": 0.0, "name": 0.0, "arguments": 0.0})
        subscores = self._subscores(reading, expected[0])
        right = _is_right(subscores)
        return Outcome(right, 1.0 if right else self._weighted(subscores), subscores)

    def _compare_several(self, readings: tuple[Reading, ...], calls: tuple[Call, ...]) -> Outcome:
        if len(readings) > MAX_CALLS:
            return NOTHING_RIGHT
        table = [[self._subscores(reading, call) for reading in readings] for call in calls]
        gains = [[self._gain(subscores) for subscores in row] for row in table]
        pairs = _PAIRING[self.config.calls](gains)
        paired = [table[i][j] for i, j in pairs]
        right = [_is_right(subscores) for subscores in paired]
        total = len(readings) + len(calls)
        shares = {
            key: 2 * sum(subscores[key] for subscores in paired) / total
            for key in ("parseable", "name", "arguments")
        }
        subscores = {**shares, "calls": 2 * sum(right) / total}
        if len(readings) == len(calls) == sum(right):
            return Outcome(True, 1.0, subscores)
        return Outcome(False, self._weighted(shares), subscores)

    def _subscores(self, reading: Reading, call: Call) -> dict[str, float]:
        return {
            "parseable": reading.shape.value,
            "name": float(reading.name == call.name),
            "arguments": _f1(reading, call, self.config.normalise),
        }

    def _gain(self, subscores: dict[str, float]) -> float:
        # A right call gains most even where the weights do not tell it from a wrong one.
        weighted = min(self._weighted(subscores), BEST_FAILED_SCORE)
        return 1.0 if _is_right(subscores) else weighted

    def _weighted(self, subscores: dict[str, float]) -> float:
        weights: dict[str, float] = self.config.weights.model_dump()
        total = sum(weights[key] * score for key, score in subscores.items())
        # min: rounding may carry the mean of ones just above one.
        return min(1.0, total / sum(weights.values()))


_PAIRING: dict[str, Callable[[Gains], Pairs]] = {
    "in_order": pair_in_order,
    "any_order": pair_in_any_order,
}


def _is_right(subscores: dict[str, float]) -> bool:
    return all(score == 1.0 for score in subscores.values())


def _call(value: Any, place: str, normalise: Normalise) -> Call:
    """Read a call in either spelling; raises ItemError."""
    if not isinstance(value, dict):
        raise ItemError(f"the item's field '{place}' is not null or {{name, arguments}}")
    if value.keys() == {"name", "arguments"}:
        name, arguments = value["name"], value["arguments"]
        arguments_place = f"{place}.arguments"
    elif len(value) == 1 and not value.keys() & {"name", "arguments"}:
        ((name, arguments),) = value.items()
        arguments_place = f"{place}.{name}"
    else:
        raise ItemError(f"the item's field '{place}' is not null or {{name, arguments}}")
    if not isinstance(name, str) or not name:
        raise ItemError(f"the item's field '{place}.name' is not a function's name")
    if not isinstance(arguments, dict):
        raise ItemError(f"the item's field '{arguments_place}' is not a JSON object")
    return Call(name, parse_object(arguments, arguments_place, normalise))


def _f1(reading: Reading, call: Call, normalise: Normalise) -> float:
    """F1 = 2 * matched / (given + wanted), where an optional argument is wanted only if given."""
    credit: dict[str, float] = {}
    for key, value in reading.arguments:
        if key in call.arguments:
            right = call.arguments[key].accept(value, normalise)
            credit[key] = max(credit.get(key, 0.0), 1.0 if right else 0.5)
    wanted = sum(key in credit or not arg.optional for key, arg in call.arguments.items())
    pairs = len(reading.arguments) + wanted
    return 1.0 if pairs == 0 and reading.shape is not Shape.BROKEN else _ratio(credit, pairs)


def _ratio(credit: dict[str, float], pairs: int) -> float:
    return 2 * sum(credit.values()) / pairs if pairs else 0.0


FUNCTION_CALL = family(FunctionCallConfig, FunctionCall)
