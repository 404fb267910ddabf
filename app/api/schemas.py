"""The wire: what endpoints take (unknown fields are refused) and what they answer with.

Light on purpose: `app.client` uses these models too, without the engine.
"""

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from app.api.grading_schemas import DryRun, GradeCounts, GraderExample
from app.api.wire import (
    MAX_LISTED,
    MAX_SEED,
    Completion,
    Incoming,
    Json,
    Label,
    Messages,
    Outgoing,
    Text,
    Tools,
    misfit,
)
from app.config import ClockTime
from app.security import Name
from verifiers import Status

# Tasks


class TaskCreate(Incoming):
    """A new task. `training` overrides the trainer's defaults for this task.

    Answers fit `response_schema`, if it has one: in chat, in training and at the gate.
    """

    name: Name
    grader: Json
    system_prompt: Text = ""
    tools: Tools | None = None
    response_schema: Json | None = None
    base_model: str | None = None
    training: Json = Field(default_factory=dict)


class TaskUpdate(Incoming):
    """Changes to a task; what is not named stays.

    `tools` and `response_schema` may be null, the rest may not.

    `base_model` moves a task of another base model to the one that is being served.
    """

    grader: Json | None = None
    system_prompt: Text | None = None
    tools: Tools | None = None
    response_schema: Json | None = None
    base_model: str | None = None
    training: Json | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("name at least one field to change")
        for name in sorted(self.model_fields_set - {"tools", "response_schema"}):
            if getattr(self, name) is None:
                raise misfit(name, "cannot be null")
        return self


class TaskPublic(Outgoing):
    """A task. `active` is the model name of its active version, None while the base answers."""

    object: Literal["task"] = "task"
    name: str
    system_prompt: str
    tools: list[Json] | None
    response_schema: Json | None
    grader: Json
    grader_hash: str
    base_model: str
    training: Json
    active: str | None
    active_version_id: str | None
    episodes: int
    grades: GradeCounts
    created_at: datetime
    updated_at: datetime


# Episodes and grades


class EpisodeCreate(Incoming):
    """One attempt at a task: what was asked, what was answered, what would have been right.

    `completion` is a text, or an assistant's message with `tool_calls` as chat answers have them.
    """

    task: Name
    messages: Messages
    completion: Completion
    item: Json
    group: Label | None = None
    model: Label | None = None
    client_id: Label | None = None
    idempotency_key: Label | None = None


EpisodeBatch = Annotated[list[EpisodeCreate], Field(min_length=1, max_length=MAX_LISTED)]
EpisodeBody = Annotated[
    Annotated[EpisodeCreate, Tag("one episode")] | Annotated[EpisodeBatch, Tag("many episodes")],
    Discriminator(lambda body: "many episodes" if isinstance(body, list) else "one episode"),
]


class GradePublic(Outgoing):
    """What a grader said: `score` is trained on, `passed` is reported, errored has no score."""

    object: Literal["grade"] = "grade"
    status: Status
    passed: bool
    score: float | None
    subscores: dict[str, float]
    error_kind: str | None
    error: str | None
    seconds: float
    grader_hash: str


class EpisodePublic(Outgoing):
    """A stored episode with what the task's current grader says (None: not yet asked)."""

    id: str
    object: Literal["episode"] = "episode"
    task: str
    messages: list[Json]
    completion: str
    tool_calls: list[Json] | None
    item: Json
    group: str | None
    model: str | None
    client_id: str | None
    idempotency_key: str | None
    created_at: datetime
    grade: GradePublic | None


# Graders


class GraderInfo(Outgoing):
    """A grader type: what it compares, the JSON schema of its configuration, an example."""

    id: str
    object: Literal["grader"] = "grader"
    description: str
    config_schema: Json
    example: GraderExample


class GraderValidate(Incoming):
    """A grader's configuration to be checked, and tried on the last episodes of a task if named."""

    grader: Json
    task: Name | None = None
    episodes: Annotated[int, Field(ge=1, le=1000)] = 100


class GraderRun(Incoming):
    """A grader to be tried on one answer."""

    grader: Json
    item: Json
    model_sample: Completion


class GraderValid(Outgoing):
    """A valid configuration with its defaults filled in, its identity, and its dry run."""

    grader: Json
    grader_hash: str
    dry_run: DryRun | None = None


# Training


class JobCreate(Incoming):
    """A training run. `config` overrides the task's and the trainer's settings."""

    task: Name
    config: Json = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    trigger: Literal["api", "cli"] = "api"


class JobPublic(Outgoing):
    """A training run. `outcome` holds the gate's numbers once there are any."""

    id: str
    object: Literal["training.job"] = "training.job"
    task: str
    status: Literal[
        "queued",
        "running",
        "paused",
        "succeeded",
        "rejected",
        "failed",
        "cancelled",
        "interrupted",
    ]
    trainer: str
    config: Json
    seed: int
    trigger: str
    progress: Json
    outcome: Json | None
    error: Json | None
    version_id: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class JobEventPublic(Outgoing):
    """One thing that happened in a job; `seq` counts from 1."""

    object: Literal["training.job.event"] = "training.job.event"
    seq: int
    type: str
    data: Json
    created_at: datetime


# Experts


class ExpertPublic(Outgoing):
    """A version of a task's expert; `name` is what a chat request asks for."""

    id: str
    object: Literal["expert"] = "expert"
    name: str
    task: str
    version: int
    kind: str
    state: Literal["candidate", "active", "retired", "rejected"]
    parent_id: str | None
    base_model: str
    base_hash: str
    basis_hash: str | None
    bytes: int
    gate: Json | None
    job_id: str | None
    created_at: datetime
    activated_at: datetime | None


class ExpertDetail(ExpertPublic):
    """A version with its whole manifest."""

    manifest: Json


# Schedule and health


class SchedulePut(Incoming):
    """When nights are run: every day at a local time of day, "HH:MM"."""

    enabled: bool
    at: ClockTime


class SchedulePublic(Outgoing):
    """The schedule in force: `at` is in `timezone`; nights due by `settled_until` are settled."""

    object: Literal["schedule"] = "schedule"
    enabled: bool
    at: ClockTime
    timezone: str
    next_run_at: datetime | None
    settled_until: datetime | None


class Health(Outgoing):
    """Whether the service can answer, and what its engine is doing."""

    status: str
    engine: Json
