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

from verifiers.base import Grade, Sample
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
        summary="A JSON object, field by field against the item's object.",
        config={"type": "json_match", "reference": "order", "fields": {"item": 2, "count": 1}},
        item={"order": {"item": "milk", "count": 2}},
        passes='{"item": "Milk", "count": 2}',
        fails='{"item": "milk", "count": 3}',
        broken_item={"order": "two milk"},
    ),
    Example(
        summary="A function call: its name and arguments against allowed values; or no call.",
        config={"type": "function_call", "syntax": "call"},
        item={"call": {"name": "turn_on", "arguments": {"area": ["kitchen", "cooking area"]}}},
        passes="turn_on(area=kitchen)",
        fails="turn_on(area=cellar)",
        broken_item={"call": "turn_on(area=kitchen)"},
    ),
    Example(
        summary="Several graders on the same completion; all must pass.",
        config={
            "type": "multi",
            "graders": {
                "polite": {"type": "string_check", "operation": "ilike", "reference": "please"},
                "city": {"type": "string_check", "operation": "like"},
            },
            "weights": {"city": 3},
        },
        item={"answer": "Paris"},
        passes="To Paris, please",
        fails="To Paris",
        broken_item={"answer": None},
    ),
)


def by_type() -> dict[str, Example]:
    """The examples by their grader's type."""
    return {example.type: example for example in EXAMPLES}


def run(example: Example) -> Shown:
    """Grade an example's completions."""
    grader = build(example.config)
    broken = build(example.broken_config or example.config)
    return Shown(
        example,
        passed=grader.grade(Sample(output_text=example.passes), example.item),
        failed=grader.grade(Sample(output_text=example.fails), example.item),
        errored=broken.grade(Sample(output_text=example.passes), example.broken_item),
    )


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
