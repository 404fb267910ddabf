"""One example of every grader type: a completion that passes, one that fails, an item that errs.

The table in `docs/graders.md` is what these examples do when they are run:

    python -m verifiers.examples
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verifiers.base import Grade, GraderConfigError, Sample, errored_grade
from verifiers.registry import build

Json = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A grader type in use.

    Attributes:
        summary: what the type compares, in one line.
        config, item: its configuration, and the item of an episode.
        passes, fails: completions for that item.
        broken_item: an item that no completion can be graded with.
        broken_config: the configuration that goes with it, None for the same.
    """

    summary: str
    config: Json
    item: Json
    passes: str
    fails: str
    broken_item: Json
    broken_config: Json | None = None

    @property
    def type(self) -> str:
        """The grader's type."""
        name: str = self.config["type"]
        return name


@dataclass(frozen=True)
class Shown:
    """An example and the grades it got: of the right completion, the wrong one, the broken item."""

    example: Example
    passed: Grade
    failed: Grade
    errored: Grade


EXAMPLES: tuple[Example, ...] = (
    Example(
        summary="The completion's text against a reference text: equal, different, contained.",
        config={"type": "string_check", "reference": "{{item.answer}}", "operation": "eq"},
        item={"answer": "Paris"},
        passes="Paris",
        fails="Lyon",
        broken_item={"question": "The capital of France?"},
    ),
    Example(
        summary="A regular expression (RE2), found in the completion's text or matching all of it.",
        config={"type": "regex", "pattern": r"\b{{item.city}}\b", "ignore_case": True},
        item={"city": "Paris"},
        passes="It is Paris.",
        fails="A comparison.",
        broken_item={"country": "France"},
    ),
    Example(
        summary="How alike the text is to a reference: characters, words, BLEU, GLEU, ROUGE.",
        config={
            "type": "text_similarity",
            "evaluation_metric": "rouge_l",
            "pass_threshold": 0.8,
        },
        item={"answer": "the light in the hall is on"},
        passes="The light in the hall is now on.",
        fails="It is on.",
        broken_item={"answer": ""},
    ),
    Example(
        summary="A JSON value against a JSON Schema (draft 2020-12).",
        config={
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"room": {"type": "string"}, "level": {"maximum": 100}},
                "required": ["room", "level"],
            },
        },
        item={},
        passes='{"room": "hall", "level": 50}',
        fails='{"room": "hall", "level": 500}',
        broken_item={},
        broken_config={"type": "json_schema", "schema": {"$ref": "https://example.org/light"}},
    ),
    Example(
        summary="A JSON object, field by field against the item's object.",
        config={"type": "json_match", "reference": "order", "fields": {"item": 2, "count": 1}},
        item={"order": {"item": "milk", "count": 2}},
        passes='{"item": "Milk", "count": 2}',
        fails='{"item": "milk", "count": 3}',
        broken_item={"order": "two milk"},
    ),
    Example(
        summary="The last number of the text, with its unit, against the item's number.",
        config={"type": "numeric", "relative": 0.01},
        item={"answer": "2.5 km"},
        passes="That is about 2,490 m.",
        fails="That is 2.5 miles.",
        broken_item={"answer": "far"},
    ),
    Example(
        summary="The answer of a mathematical text, equal to the item's by computer algebra.",
        config={"type": "math"},
        item={"answer": "\\frac{3}{4}"},
        passes="So it is \\boxed{0.75}.",
        fails="So it is \\boxed{\\frac{4}{3}}.",
        broken_item={"answer": "10^{10^{10}}"},
    ),
    Example(
        summary="An expression made of given numbers that comes to a target, in exact fractions.",
        config={"type": "arithmetic"},
        item={"numbers": [3, 5, 7], "target": 22},
        passes="3 * 5 + 7 = 22",
        fails="3 * 7 + 1",
        broken_item={"numbers": [3, 5, 7]},
    ),
    Example(
        summary="Function calls: names and arguments against allowed values; or no call at all.",
        config={"type": "function_call", "syntax": "call"},
        item={"call": {"name": "turn_on", "arguments": {"area": ["kitchen", "cooking area"]}}},
        passes="turn_on(area=kitchen)",
        fails="turn_on(area=cellar)",
        broken_item={"call": "turn_on(area=kitchen)"},
    ),
    Example(
        summary="Constraints a program can check: length, words, format, how numbers are written.",
        config={
            "type": "instruction",
            "constraints": {
                "short": {"kind": "length", "unit": "words", "maximum": 6},
                "polite": {"kind": "must_contain", "texts": ["please"]},
            },
            "reference": "rules",
        },
        item={"rules": {"digits": {"kind": "numbers", "written": "digits"}}},
        passes="Set it to 21 degrees, please.",
        fails="Set it to twenty-one degrees, please.",
        broken_item={"rules": {"digits": {"kind": "numbers", "written": "roman"}}},
    ),
    Example(
        summary="Calls are carried out on a declared model of devices; the end state counts.",
        config={
            "type": "state",
            "start": {"lights": {"hall": False, "attic": True}},
            "actions": {
                "flip": {
                    "parameters": {"area": {}},
                    "effects": [{"op": "toggle", "path": "lights.{area}"}],
                },
                "all_off": {"effects": [{"op": "set", "path": "lights.*", "value": False}]},
            },
            "syntax": "call",
        },
        item={"state": {"lights": {"attic": False}}},
        passes="all_off()",
        fails="flip(area=hall)",
        broken_item={"state": {"lights": {"cellar": False}}},
    ),
    Example(
        summary="A function of your own, in a sandbox: grade(sample, item) returns the score.",
        config={
            "type": "python",
            "source": "def grade(sample, item):\n"
            "    words = sample['output_text'].split()\n"
            "    return len(words) / item['words'] if len(words) < item['words'] else 1",
        },
        item={"words": 3},
        passes="turn it on",
        fails="on",
        broken_item={"words": "three"},
    ),
    Example(
        summary="The completion is code: tests in a sandbox say whether it does what it should.",
        config={"type": "unit_tests"},
        item={
            "tests": [{"call": "double(3)", "equals": 6}, {"call": "double('a')", "equals": "aa"}]
        },
        passes="def double(x):\n    return 2 * x",
        fails="def double(x):\n    return x + 3",
        broken_item={"tests": "double(3) == 6"},
    ),
    Example(
        summary="Several graders on the same completion; all must pass.",
        config={
            "type": "multi",
            "graders": {
                "polite": {"type": "string_check", "operation": "ilike", "reference": "please"},
                "city": {"type": "string_check", "operation": "like"},
            },
            "calculate_output": "0.3 * polite + 0.7 * city",
        },
        item={"answer": "Paris"},
        passes="To Paris, please",
        fails="To Paris",
        broken_item={"answer": None},
    ),
)


def run(example: Example) -> Shown:
    """Grade an example's completions."""
    return Shown(
        example,
        passed=_grade(example.config, example.passes, example.item),
        failed=_grade(example.config, example.fails, example.item),
        errored=_grade(
            example.broken_config or example.config, example.passes, example.broken_item
        ),
    )


def _grade(config: Json, completion: str, item: Json) -> Grade:
    """Grade as the service does: a configuration that cannot be built is an errored grade."""
    try:
        grader = build(config)
    except GraderConfigError as error:
        return errored_grade("config", str(error), 0.0)
    return grader.grade(Sample(output_text=completion), item)


def table() -> str:
    """A Markdown table of all examples, made by running them."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield "| grader | configuration | item | passes | fails | errs |"
    yield "|---|---|---|---|---|---|"
    for example in EXAMPLES:
        shown = run(example)
        cells = (
            f"**{example.type}** {_cell(example.summary)}",
            _code(_text(example.config)),
            _code(_text(example.item)),
            f"{_code(example.passes)} {_said(shown.passed)}",
            f"{_code(example.fails)} {_said(shown.failed)}",
            f"{_broken(example)} {_said(shown.errored)}",
        )
        yield f"| {' | '.join(cells)} |"


def _broken(example: Example) -> str:
    item = _code(_text(example.broken_item))
    if example.broken_config is None:
        return item
    return f"{item} under {_code(_text(example.broken_config))}"


def _said(grade: Grade) -> str:
    """What a grade says, in words."""
    if grade.score is None:
        return f"{grade.status} ({grade.error_kind}): {_cell(str(grade.error))}"
    return f"{grade.status}, score {grade.score:.3g}"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _code(text: str) -> str:
    """A text as code on one line of a table: as JSON where it cannot be shown as it is."""
    shown = text if text.isprintable() and text.strip() else _text(text)
    return f"`` {_cell(shown)} ``" if "`" in shown else f"`{_cell(shown)}`"


def _cell(text: str) -> str:
    """A text that does not end a table's cell; so it is written inside code, too."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(table())
