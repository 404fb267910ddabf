"""`instruction`: constraints on the completion that can be checked without knowing the answer.

The constraints are named, in the configuration, in the item or in both, and of seven kinds:

* length: of characters, words, sentences, lines, paragraphs or list items, between bounds;
* must_contain, must_not_contain: texts, as whole words unless said otherwise;
* starts_with, ends_with: one of several texts, as whole words, too;
* format: JSON, a list with bullets or numbers, a single line, all lower or upper case;
* numbers: written in digits or in English words.

Every constraint is a sub-score by its name, the share to which it is kept, and the score is their
mean. Passes when all are kept. A blank completion fails with score 0.

Texts are looked for in the form that `verifiers/texts.py` calls plain: without what nobody sees,
with plain quotes and hyphens, and across the end of a line. Letters of other alphabets that look
the same are other letters.

Texts in the configuration's constraints are templates of item fields. In an item's constraints they
are taken as they stand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from verifiers.base import (
    NOTHING_RIGHT,
    GraderConfig,
    GraderConfigError,
    ItemError,
    Judge,
    Outcome,
    Sample,
    family,
)
from verifiers.constraints import Constraint, OfTexts
from verifiers.mistakes import first_mistake
from verifiers.multi import PartName
from verifiers.templates import ItemPath, Template, item_value, parse_template
from verifiers.texts import normal

MAX_CONSTRAINTS = 64

Constraints = dict[PartName, Constraint]
_ADAPTER: TypeAdapter[dict[str, Constraint]] = TypeAdapter(
    Annotated[Constraints, Field(min_length=1, max_length=MAX_CONSTRAINTS)]
)


class InstructionConfig(GraderConfig):
    """Configuration of `instruction`."""

    type: Literal["instruction"]
    constraints: Constraints = Field(
        default_factory=dict,
        max_length=MAX_CONSTRAINTS,
        description="A name for each constraint that holds for every item.",
    )
    reference: ItemPath | None = Field(
        default=None,
        description="Path of further constraints in the item, in the same form; {{item.x}} too. "
        "Every item must then have some.",
    )
    example: str | None = Field(
        default=None, description="Template of a completion that passes, to learn from."
    )


@dataclass(frozen=True)
class Instruction(Judge[InstructionConfig, Constraints]):
    """Checks the constraints of its configuration and of the item."""

    texts: dict[str, tuple[Template, ...]]
    example: Template | None

    def answers(self, item: dict[str, Any], expected: Constraints) -> tuple[str, ...]:
        """The configured example, if there is one: constraints do not name an answer."""
        del expected
        text = None if self.example is None else self.example.bind(item).text
        return () if text is None else (text,)

    def expect(self, item: dict[str, Any]) -> Constraints:
        """The constraints of the configuration, filled in, and the item's own."""
        constraints = {
            name: self._filled(name, constraint, item)
            for name, constraint in self.config.constraints.items()
        }
        place = self.config.reference
        if place is not None:
            further = _of_item(item_value(item, place), place)
            twice = sorted(constraints.keys() & further.keys())
            if twice:
                raise ItemError(f"the item's field '{place}.{twice[0]}' is configured already")
            constraints.update(further)
        return constraints

    def _filled(self, name: str, constraint: Constraint, item: dict[str, Any]) -> Constraint:
        if name not in self.texts:
            return constraint
        texts = tuple(template.bind(item).text or "" for template in self.texts[name])
        if not all(normal(text).strip() for text in texts):
            raise ItemError(f"a text of the constraint '{name}' is blank, and every text has it")
        return constraint.model_copy(update={"texts": texts})

    def compare(self, sample: Sample, expected: Constraints) -> Outcome:
        """The sub-scores are the shares to which the constraints are kept."""
        text = sample.output_text
        if not normal(text).strip():
            return NOTHING_RIGHT
        shares = {name: constraint.share(text) for name, constraint in expected.items()}
        passed = all(share == 1.0 for share in shares.values())
        mean = math.fsum(shares.values()) / len(shares)
        return Outcome(passed, 1.0 if passed else mean, shares)


def _of_item(value: Any, place: str) -> Constraints:
    try:
        return _ADAPTER.validate_python(value)
    except ValidationError as error:
        inside, message = first_mistake(error, value)
        path = f"{place}.{inside}" if inside else place
        raise ItemError(f"the item's field '{path}': {message}") from error


def _make(config: InstructionConfig) -> Instruction:
    if not config.constraints and config.reference is None:
        raise GraderConfigError("constraints", "there are none, here or (by reference) in the item")
    texts = {
        name: tuple(
            _template(text, f"constraints.{name}.texts.{index}")
            for index, text in enumerate(constraint.texts)
        )
        for name, constraint in config.constraints.items()
        if isinstance(constraint, OfTexts)
    }
    example = None if config.example is None else _template(config.example, "example")
    return Instruction(config, texts, example)


def _template(text: str, place: str) -> Template:
    try:
        template = parse_template(text)
    except ValueError as error:
        raise GraderConfigError(place, str(error)) from error
    if template.uses_output:
        raise GraderConfigError(place, "has a place for the completion")
    return template


INSTRUCTION = family(InstructionConfig, _make)
