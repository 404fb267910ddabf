"""The ways of training: what a night needs to know of each, whatever goes on inside."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from app.night.checkpoint import Arrays, Trained
from app.night.configs import Config
from app.night.context import Night
from app.night.data import Prompt
from app.night.evolution import Evolution
from app.night.gradient import Gradient
from trainers.state import FuraSConfig

FloatArray = npt.NDArray[np.float32]


class Way(Protocol):
    """From training prompts to an expert, resumable through the job's folder."""

    @property
    def needs_references(self) -> str | None:
        """That right answers are needed, as the beginning of a sentence; None if they are not."""

    def usable(self, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        """The prompts it can learn from."""

    def begin(self, night: Night, theta: FloatArray) -> dict[str, Arrays]:
        """Files of the job's folder, for a run that starts from an expert (coordinates,)."""

    def train(self, night: Night, prompts: tuple[Prompt, ...]) -> Trained:
        """Trains on usable prompts from the last checkpoint to a natural end.

        Raises Stopped, NoExpert, and what a failure raises.
        """

    def made(self, night: Night, trained: Trained) -> tuple[FloatArray, dict[str, Any]]:
        """The expert (coordinates,) of a run that has ended, and how training went, for people.

        Raises NoExpert if nothing was learned.
        """


def way_of(config: Config) -> Way:
    """The way that a configuration is for."""
    return Evolution(config) if isinstance(config, FuraSConfig) else Gradient(config)
