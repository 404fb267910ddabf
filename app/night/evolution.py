"""FuRA-S as a way of training: the engine answers as every candidate, the grader judges."""

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from app.night.checkpoint import Arrays, Trained
from app.night.context import Night, NoExpert
from app.night.data import Prompt
from app.night.evaluate import evaluator_of
from app.night.trust import Discrimination
from storage.values import utcnow
from trainers import fura_s
from trainers.fura_s import Progress
from trainers.state import FuraSConfig, State

FloatArray = npt.NDArray[np.float32]

MAX_ERRORED_ANSWERS = 0.5
"""Share of answers in training that could not be graded, the engine's failures among them."""


class Evolution:
    """A way of training (`app.night.ways`)."""

    def __init__(self, config: FuraSConfig) -> None:
        self._config = config

    @property
    def needs_references(self) -> str | None:
        """Whether the fitness does."""
        fitness = self._config.fitness
        if fitness in ("likelihood", "mix"):
            return f'Fitness {fitness!r} needs right answers (fitness "score" needs none)'
        return None

    def usable(self, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        """All prompts; where only the likelihood counts, those that have a right answer."""
        if self._config.fitness != "likelihood":
            return prompts
        return tuple(prompt for prompt in prompts if prompt.reference is not None)

    def begin(self, night: Night, theta: FloatArray) -> dict[str, Arrays]:
        """Files of a run that starts from an expert (coordinates,)."""
        state = State.fresh(self._config, night.job.seed, theta.size)
        state.theta = theta
        return {"state": state.pack()}

    def train(self, night: Night, prompts: tuple[Prompt, ...]) -> Trained:
        """Runs the trainer, checkpointing every iteration. Raises Stopped, NoExpert."""
        evaluator = evaluator_of(night, prompts)

        def on_iteration(state: State, progress: Progress) -> None:
            night.folder.save("state", state.pack())
            night.report(asdict(progress))
            if evaluator.errored > MAX_ERRORED_ANSWERS * evaluator.graded:
                raise NoExpert(
                    "too_many_errored",
                    f"{evaluator.errored} of {evaluator.graded} answers could not be graded, the"
                    f" last because: {evaluator.last_error}.",
                    {"graded": evaluator.graded, "errored": evaluator.errored},
                )

        reason = fura_s.train(
            self.warmed(prompts),
            night.folder.load("state", State.unpack),
            len(prompts),
            evaluator,
            on_iteration,
            night.check,
            night.house.engine.info.layers,
        )
        told = Discrimination(len(evaluator.compared), len(evaluator.told_apart))
        return Trained(reason, utcnow().isoformat(), told.public())

    def made(self, night: Night, trained: Trained) -> tuple[FloatArray, dict[str, Any]]:
        """The trained expert (coordinates,), and how training went. Raises NoExpert."""
        state = night.folder.load("state", State.unpack)
        training = {
            "ended": trained.reason,
            "iterations": state.iteration,
            "seconds": round(state.elapsed_s, 3),
            "zero_variance": state.zero_variance,
            "discrimination": trained.discrimination,
        }
        if trained.reason == "flat" or state.zero_variance == state.iteration:
            raise NoExpert(
                "flat",
                f"All candidates were rewarded equally in each of {state.iteration} iterations:"
                " there is nothing to learn from these prompts with this grader.",
                {"training": training},
            )
        return state.theta, training

    def warmed(self, prompts: tuple[Prompt, ...]) -> FuraSConfig:
        """The configuration: `auto` cannot warm up on references if there are none."""
        if self._config.fitness != "auto" or any(prompt.reference for prompt in prompts):
            return self._config
        return self._config.model_copy(update={"fitness": "score"})
