"""`multi`: several graders on the same completion; all must pass.

The score is their weighted mean, or what the formula `calculate_output` makes of their scores, kept
within [0, 1]. The formula must give 1 when every grader gives 1: else a right completion would not
be worth most. It is written in the graders' names, which then have no hyphen and begin with a
letter.

A grader that errors makes the whole errored: a mean over the others would be a number about
something else. A formula that has no value for a completion, as one that divides by a score of
zero, has it fail with score 0 and the sub-score `calculate_output` 0; one that has no value for a
right completion is refused.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator

from verifiers.base import (
    BEST_FAILED_SCORE,
    BuildNested,
    Family,
    Grade,
    Grader,
    GraderConfig,
    GraderConfigError,
    Sample,
    Status,
    errored_grade,
    passing,
)
from verifiers.formula import (
    FUNCTIONS,
    MAX_FORMULA_CHARS,
    Formula,
    FormulaError,
    Undefined,
    parse_formula,
)

NEARLY_ONE = 1 - 1e-9
"""What a formula of decimal fractions may give for one, as 0.1 + 0.2 + 0.7 does."""

NO_VALUE = "calculate_output"
"""The sub-score, 0, of a completion for which the formula has no value."""

# No dots: they separate a sub-grader's name from its own sub-scores.
PartName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
Weight = Annotated[float, Field(gt=0, le=1e6)]


class MultiConfig(GraderConfig):
    """Configuration of `multi`."""

    type: Literal["multi"]
    graders: dict[PartName, dict[str, Any]] = Field(
        min_length=1, max_length=32, description="A name for each grader's own configuration."
    )
    weights: dict[PartName, Weight] = Field(
        default_factory=dict, description="Weights in the score; 1 where none is given."
    )
    calculate_output: str | None = Field(
        default=None,
        max_length=MAX_FORMULA_CHARS,
        description="Instead of weights: a formula over the graders' names, such as "
        "0.5 * name + 0.5 * min(email, phone), with + - * / ^, parentheses and the functions "
        f"{', '.join(sorted(FUNCTIONS))}.",
    )

    @field_validator("weights")
    @classmethod
    def _weigh_known_parts(
        cls, weights: dict[str, float], info: ValidationInfo
    ) -> dict[str, float]:
        unknown = sorted(set(weights) - set(info.data.get("graders", weights)))
        if unknown:
            raise ValueError(f"no grader is named {unknown[0]!r}")
        return weights


@dataclass(frozen=True)
class Part:
    """One of the graders, with its weight in the score."""

    name: str
    grader: Grader
    weight: float


@dataclass(frozen=True)
class Multi:
    """Passes when every part passes."""

    config: MultiConfig
    parts: tuple[Part, ...]
    formula: Formula | None

    def grade(self, sample: Sample, item: dict[str, Any]) -> Grade:
        """Grade with every part; errored if one is, with the name of the first that is."""
        started = time.perf_counter()
        grades = [(part, part.grader.grade(sample, item)) for part in self.parts]
        for part, grade in grades:
            if grade.error is not None and grade.error_kind is not None:
                message = f"{part.name}: {grade.error}"
                return errored_grade(grade.error_kind, message, time.perf_counter() - started)
        passed, subscores = all(grade.passed for _, grade in grades), _subscores(grades)
        try:
            score = self._combined([(part, grade.score or 0.0) for part, grade in grades])
        except Undefined:
            passed, score, subscores[NO_VALUE] = False, 0.0, 0.0
        return Grade(
            status=Status.PASSED if passed else Status.FAILED,
            score=score if passed else min(score, BEST_FAILED_SCORE),
            subscores=subscores,
            seconds=time.perf_counter() - started,
        )

    def reference(self, item: dict[str, Any]) -> str | None:
        """Return the first reference of a part that all parts pass."""
        for part in self.parts:
            text = part.grader.reference(item)
            if text is not None and passing(self, text, item) is not None:
                return text
        return None

    def describe(self) -> dict[str, Any]:
        """Return the configuration with the defaults of the parts and every weight."""
        return {
            **self.config.model_dump(mode="json"),
            "graders": {part.name: part.grader.describe() for part in self.parts},
            "weights": {} if self.formula else {part.name: part.weight for part in self.parts},
        }

    def _combined(self, scores: list[tuple[Part, float]]) -> float:
        """Return the weighted mean or the formula's value in [0, 1]; raises Undefined."""
        if self.formula is None:
            return _weighted_mean([(part.weight, score) for part, score in scores])
        value = self.formula.evaluate({part.name: score for part, score in scores})
        return 1.0 if value >= NEARLY_ONE else max(0.0, value)


def _weighted_mean(weighted: list[tuple[float, float]]) -> float:
    total = math.fsum(weight for weight, _ in weighted)
    # Rounding may carry the mean of ones just above one.
    return min(1.0, math.fsum(weight * score for weight, score in weighted) / total)


def _subscores(grades: list[tuple[Part, Grade]]) -> dict[str, float]:
    result: dict[str, float] = {}
    for part, grade in grades:
        result[part.name] = grade.score or 0.0
        result.update({f"{part.name}.{key}": value for key, value in grade.subscores.items()})
    return result


def _make(config: MultiConfig, build: BuildNested) -> Grader:
    parts = tuple(
        Part(name, build(nested, ("graders", name)), config.weights.get(name, 1.0))
        for name, nested in config.graders.items()
    )
    return Multi(config, parts, _formula(config))


def _formula(config: MultiConfig) -> Formula | None:
    """Parse the formula and try it on the scores of a right completion."""
    if config.calculate_output is None:
        return None
    if config.weights:
        raise GraderConfigError("weights", "cannot be given beside calculate_output")
    for name in config.graders:
        if not name.isidentifier() or name in FUNCTIONS or name == NO_VALUE:
            raise GraderConfigError(f"graders.{name}", "is no name that a formula can use")
    try:
        formula = parse_formula(config.calculate_output)
        unknown = sorted(formula.names - config.graders.keys())
        if unknown:
            raise FormulaError(f"names no grader: {unknown[0]!r}")
        best = formula.evaluate(dict.fromkeys(config.graders, 1.0))
    except (FormulaError, Undefined) as error:
        raise GraderConfigError("calculate_output", str(error)) from error
    if best < NEARLY_ONE:
        raise GraderConfigError(
            "calculate_output", f"gives {best:g} instead of 1 when every grader gives 1"
        )
    return formula


MULTI = Family(MultiConfig, _make)
