"""The ways of training a job can name, and their settings.

A task's `training` and a job's `config` are the trainer's settings, and beside them `trainer`, its
name. A job that names another trainer than its task starts from that trainer's defaults: what the
task sets is meant for its own, and `lr` of the one is not `lr` of the other.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.absignsgd import ABSignSGDConfig
from trainers.lcsb import LcsbConfig
from trainers.state import FuraSConfig

TrainerName = Literal["fura_s", "lcsb", "absignsgd"]


class ImitationConfig(BaseModel):
    """What a gradient trainer is shown: right answers, a batch of them per iteration."""

    batch: int = Field(4, ge=1, le=256, description="prompts per iteration")
    max_tokens: int = Field(48, ge=1, le=4096, description="tokens an answer may have at the gate")
    max_sequence: int = Field(
        1024, ge=2, le=131_072, description="tokens of prompt and answer; longer ones are left out"
    )


class LcsbSettings(ImitationConfig, LcsbConfig):
    """A job's with trainer lcsb."""


class ABSignSGDSettings(ImitationConfig, ABSignSGDConfig):
    """A job's with trainer absignsgd."""


GradientConfig = LcsbSettings | ABSignSGDSettings
Config = FuraSConfig | GradientConfig

_CONFIGS: dict[TrainerName, type[FuraSConfig] | type[LcsbSettings] | type[ABSignSGDSettings]] = {
    "fura_s": FuraSConfig,
    "lcsb": LcsbSettings,
    "absignsgd": ABSignSGDSettings,
}


class _Named(BaseModel):
    """Settings with the name of the trainer they are for."""

    model_config = ConfigDict(extra="allow")

    trainer: TrainerName = "fura_s"


def parse(trainer: TrainerName, config: Mapping[str, Any]) -> Config:
    """The settings of a trainer. Raises ValidationError, which names the field."""
    return _CONFIGS[trainer].model_validate(config)


def named(training: Mapping[str, Any]) -> tuple[TrainerName, dict[str, Any]]:
    """The trainer that settings are for, and the settings. Raises ValidationError."""
    found = _Named.model_validate(training)
    return found.trainer, dict(found.model_extra or {})


def parse_named(training: Mapping[str, Any]) -> Config:
    """The settings of a task. Raises ValidationError, which names the field."""
    return parse(*named(training))


def merged(
    training: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[TrainerName, dict[str, Any]]:
    """The trainer of a job, and its whole settings as JSON. Raises ValidationError.

    `config`, the job's, overrides `training`, the task's, unless it names another trainer.
    """
    trainer, own = named(training)
    wanted, settings = named({"trainer": trainer, **config})
    if wanted == trainer:
        settings = own | settings
    return wanted, parse(wanted, settings).model_dump(mode="json")
