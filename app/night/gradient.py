"""LCSB and ABSignSGD as ways of training: right answers are imitated, in a process of their own."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from app.night import process
from app.night.checkpoint import Arrays, Trained
from app.night.configs import GradientConfig
from app.night.context import Night, NoExpert
from app.night.data import Prompt
from app.night.exchange import Example, Made, Order
from storage.values import utcnow

FloatArray = npt.NDArray[np.float32]


class Gradient:
    """A way of training (`app.night.ways`)."""

    def __init__(self, config: GradientConfig) -> None:
        self._config = config

    @property
    def needs_references(self) -> str | None:
        """Right answers are all it learns from."""
        return 'Gradient trainers imitate right answers (trainer "fura_s" needs none)'

    def usable(self, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        """The prompts with a right answer, together no longer than `max_sequence`."""
        limit = self._config.max_sequence
        return tuple(
            p for p in prompts if p.reference and len(p.tokens) + len(p.reference) <= limit
        )

    def begin(self, night: Night, theta: FloatArray) -> dict[str, Arrays]:
        """Files of a run that starts from an expert (coordinates,)."""
        return {"start": dict(night.house.engine.coordinates.split(theta))}

    def train(self, night: Night, prompts: tuple[Prompt, ...]) -> Trained:
        """Runs the trainer's process to its end. Raises Stopped, NightError, NoSpace."""
        night.folder.save_order(self._order(night, prompts))
        reason = process.run(night.folder.path, night.report, night.check)
        return Trained(reason, utcnow().isoformat())

    def made(self, night: Night, trained: Trained) -> tuple[FloatArray, dict[str, Any]]:
        """The trained expert (coordinates,), and how training went. Raises NoExpert."""
        made = night.folder.load("made", Made.unpack)
        training = {"ended": trained.reason, **made.numbers}
        done = made.numbers["iterations"]
        if made.numbers["non_finite"] + made.numbers["skipped"] == done:
            raise NoExpert(
                "diverged",
                f"The gradients of all {done} iterations were not finite: nothing was learned. If"
                " training went on from an active version, activate another one.",
                {"training": training},
            )
        return night.house.engine.coordinates.join(made.tensors), training

    def _order(self, night: Night, prompts: tuple[Prompt, ...]) -> Order:
        engine, settings = night.house.engine, night.house.settings
        return Order(
            trainer=night.trainer,
            config=json.loads(self._config.model_dump_json()),
            seed=night.job.seed,
            model=engine.info.path,
            base_hash=engine.info.base_hash,
            basis_hash=engine.basis_hash,
            memory_bytes=settings.memory_budget,
            examples=tuple(Example(prompt=p.tokens, completion=p.reference or ()) for p in prompts),
        )
