"""How good candidates are: the engine answers a task's prompts as each of them, the grader judges.

The trainer asks through this (it is a `trainers.fura_s.Evaluator`), and so does the gate, with the
same decoding. A candidate is a flat vector of the engine's coordinates.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from app.engine.sampling import Sampling
from app.engine.text import Completion
from app.night.context import Night, NoExpert
from app.night.data import Prompt
from app.night.grading import GradeMany
from trainers.fura_s import Scores
from verifiers import Sample

FloatArray = npt.NDArray[np.float32]


class Answering(Protocol):
    """What of the engine an evaluation uses; `flat` is (P, coordinates), None the base alone."""

    def generate(
        self, flat: FloatArray | None, prompts: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """Completions [candidate][prompt]."""
        ...

    def energies(self, flat: FloatArray | None, texts: Sequence[Sequence[int]]) -> FloatArray:
        """(coordinates,) relative energies on the texts under one expert (1, coordinates)."""
        ...

    def likelihood(
        self,
        flat: FloatArray,
        prompts: Sequence[Sequence[int]],
        references: Sequence[Sequence[int]],
        centre: FloatArray,
        first: int = 0,
    ) -> FloatArray:
        """(P, N) mean log-likelihood per token of each reference, NaN where not finite."""
        ...


ENERGY_TEXTS = 16
"""Training texts on which the coordinates' energies are measured: hundreds of positions."""


class Evaluator:
    """Scores candidates on prompts, named by their numbers in `prompts`.

    Attributes:
        graded, errored: completions judged so far, and how many of them had no grade.
        last_error: why the last of those had none.
        compared, told_apart: prompts to which candidates gave different answers, and those of them
            whose answers differed in score.
    """

    def __init__(
        self,
        engine: Answering,
        grade_many: GradeMany,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`sampling` decodes every answer (greedily, so that scores are those of the candidates).

        `check` is called before each use of the engine; what it raises ends the evaluation.
        """
        self._engine = engine
        self._grade_many = grade_many
        self._prompts = prompts
        self._sampling = sampling
        self._check = check
        self.graded = 0
        self.errored = 0
        self.last_error: str | None = None
        self.compared: set[int] = set()
        self.told_apart: set[int] = set()

    def scores(self, candidates: FloatArray | None, prompts: Sequence[int]) -> Scores:
        """Score and pass of every candidate's answer: (P, N), NaN and False if errored."""
        self._check()
        asked = [self._prompts[index] for index in prompts]
        answers = self._engine.generate(candidates, [p.tokens for p in asked], self._sampling)
        score = np.full((len(answers), len(asked)), np.nan, dtype=np.float32)
        passed = np.zeros(score.shape, dtype=np.bool_)
        graded: list[tuple[int, int]] = []
        for row, line in enumerate(answers):
            for column, answer in enumerate(line):
                if answer.error is None:
                    graded.append((row, column))
                else:  # the engine could not finish it
                    self._count_error(answer.error)
        grades = self._grade_many(
            [(Sample(output_text=answers[r][c].text), asked[c].item) for r, c in graded]
        )
        for place, grade in zip(graded, grades, strict=True):
            if grade.score is None:
                self._count_error(grade.error)
            else:
                score[place], passed[place] = grade.score, grade.passed
        self.graded += score.size
        self._compare(prompts, answers, score)
        tokens = sum(len(answer.tokens) for line in answers for answer in line)
        return Scores(score=score, passed=passed, tokens=tokens)

    def energies(self, theta: FloatArray) -> FloatArray:
        """Relative energy of each coordinate, (D,), on the first training prompts and answers.

        Raises NoExpert if they are not finite.
        """
        self._check()
        texts = [p.tokens + (p.reference or ()) for p in self._prompts[:ENERGY_TEXTS]]
        energies = self._engine.energies(theta[None], texts)
        if not np.isfinite(energies).all():
            raise NoExpert(
                "diverged",
                "With the active version, from which training goes on, the model's hidden states"
                " are not finite. Activate another version.",
                {},
            )
        return energies

    def likelihood(
        self,
        candidates: FloatArray,
        prompts: Sequence[int],
        centre: FloatArray,
        first: int = 0,
    ) -> tuple[FloatArray, int]:
        """Mean log-likelihood per token of the references (P, N), NaN where there is none.

        Also the number of tokens scored.  ``centre`` and ``first`` as in ``Answering.likelihood``.
        """
        self._check()
        values = np.full((len(candidates), len(prompts)), np.nan, dtype=np.float32)
        known = [
            (column, self._prompts[index].tokens, reference)
            for column, index in enumerate(prompts)
            if (reference := self._prompts[index].reference) is not None
        ]
        if not known:
            return values, 0
        columns, asked, references = zip(*known, strict=True)
        values[:, list(columns)] = self._engine.likelihood(
            candidates, asked, references, centre, first
        )
        return values, len(candidates) * sum(len(reference) for reference in references)

    def _compare(
        self, prompts: Sequence[int], answers: list[list[Completion]], score: FloatArray
    ) -> None:
        """Notes which prompts had different answers, and to which of them the grader said so."""
        for column, prompt in enumerate(prompts):
            graded = np.flatnonzero(np.isfinite(score[:, column]))
            by_text = {answers[row][column].text: score[row, column] for row in graded}
            if len(by_text) > 1:
                self.compared.add(prompt)
                if max(by_text.values()) > min(by_text.values()):
                    self.told_apart.add(prompt)

    def _count_error(self, error: str | None) -> None:
        self.errored += 1
        self.last_error = error


def evaluator_of(night: Night, prompts: Sequence[Prompt]) -> Evaluator:
    """An evaluator of some of a night's prompts."""
    return Evaluator(night.house.engine, night.grade_many, prompts, night.sampling, night.check)
