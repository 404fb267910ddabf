"""The tables. Rows are read and written through the modules named after them; JSON columns are
replaced whole, never mutated in place (changes inside them are not tracked)."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from storage.values import utcnow


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware time as fixed-width ISO 8601 text in UTC: text order is time order."""

    impl = sa.String(27)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002
        """Text for the database; a naive time is a bug of the caller and raises ValueError."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a stored time needs a timezone")
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """A timezone-aware datetime in UTC."""
        return None if value is None else datetime.fromisoformat(value)


class JobStatus(StrEnum):
    """Where a training job is; `storage.jobs.TRANSITIONS` says what may follow what."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class VersionState(StrEnum):
    """Where a version is in its life; at most one version of a task is active."""

    CANDIDATE = "candidate"
    ACTIVE = "active"
    RETIRED = "retired"
    REJECTED = "rejected"


class GradeStatus(StrEnum):
    """What a grader said; errored is never a zero."""

    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"


def _words(kind: type[StrEnum]) -> sa.Enum:
    """An enum kept as its own words, without a CHECK (SQLite cannot alter one later)."""
    return sa.Enum(
        kind, native_enum=False, length=16, values_callable=lambda k: [member.value for member in k]
    )


# A JSON column that may be absent: None is SQL NULL, not the JSON text `null`.
_OPTIONAL_JSON = sa.JSON(none_as_null=True)


class Row(SQLModel):
    """Base of all tables: own metadata, named constraints (an unnamed one cannot be altered)."""

    metadata: ClassVar[sa.MetaData] = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Task(Row, table=True):
    """A named kind of work: its prompt, its grader, the version that answers (None: the base)."""

    __tablename__ = "tasks"

    name: str = Field(primary_key=True)
    system_prompt: str = ""
    tools: Any = Field(default=None, sa_type=_OPTIONAL_JSON, nullable=True)
    response_schema: Any = Field(default=None, sa_type=_OPTIONAL_JSON, nullable=True)
    grader: dict[str, Any] = Field(sa_type=sa.JSON)
    grader_hash: str
    base_model: str
    training: dict[str, Any] = Field(default_factory=dict, sa_type=sa.JSON)
    active_version_id: str | None = Field(
        default=None,
        # use_alter: tasks and versions point at each other, which no table order can satisfy.
        sa_column=sa.Column(
            sa.String,
            sa.ForeignKey(
                "versions.id",
                name="fk_tasks_active_version_id",
                ondelete="SET NULL",
                use_alter=True,
            ),
            nullable=True,
        ),
    )
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)
    updated_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)


class Episode(Row, table=True):
    """One attempt at a task. Immutable once stored; `seq` is the order of arrival."""

    __tablename__ = "episodes"
    __table_args__ = (
        sa.UniqueConstraint("task", "idempotency_key"),
        sa.Index("ix_episodes_task_seq", "task", "seq"),
    )

    id: str = Field(primary_key=True)
    seq: int = Field(unique=True)
    task: str = Field(foreign_key="tasks.name", ondelete="CASCADE")
    messages: list[dict[str, Any]] = Field(sa_type=sa.JSON)
    completion: str
    item: dict[str, Any] = Field(sa_type=sa.JSON)
    group_key: str | None = None
    model: str | None = None
    client_id: str | None = None
    idempotency_key: str | None = None
    content_hash: str
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)
    # The calls of an answer that was given as a message; None where it was given as text.
    tool_calls: Any = Field(default=None, sa_type=_OPTIONAL_JSON, nullable=True)


class GradeRow(Row, table=True):
    """What one grader (by hash) said of one episode. `score`: [0, 1], None exactly when errored."""

    __tablename__ = "grades"
    __table_args__ = (sa.UniqueConstraint("episode_id", "grader_hash"),)

    id: int | None = Field(default=None, primary_key=True)
    episode_id: str = Field(foreign_key="episodes.id", ondelete="CASCADE")
    grader_hash: str
    status: GradeStatus = Field(sa_type=_words(GradeStatus))
    score: float | None = None
    subscores: dict[str, float] = Field(default_factory=dict, sa_type=sa.JSON)
    error_kind: str | None = None
    error: str | None = None
    seconds: float
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)


class Job(Row, table=True):
    """One training run. `seq` is the order of arrival."""

    __tablename__ = "jobs"

    id: str = Field(primary_key=True)
    seq: int = Field(unique=True)
    task: str = Field(foreign_key="tasks.name", ondelete="CASCADE", index=True)
    status: JobStatus = Field(default=JobStatus.QUEUED, sa_type=_words(JobStatus), index=True)
    trainer: str
    config: dict[str, Any] = Field(sa_type=sa.JSON)
    seed: int
    trigger: str
    progress: dict[str, Any] = Field(default_factory=dict, sa_type=sa.JSON)
    outcome: dict[str, Any] | None = Field(default=None, sa_type=_OPTIONAL_JSON, nullable=True)
    error: dict[str, Any] | None = Field(default=None, sa_type=_OPTIONAL_JSON, nullable=True)
    version_id: str | None = Field(
        default=None,
        # use_alter: a job names its version and a version names its job.
        sa_column=sa.Column(
            sa.String,
            sa.ForeignKey(
                "versions.id", name="fk_jobs_version_id", ondelete="SET NULL", use_alter=True
            ),
            nullable=True,
        ),
    )
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class JobEvent(Row, table=True):
    """One thing that happened in a job; `seq` counts from 1 within the job."""

    __tablename__ = "job_events"
    __table_args__ = (sa.UniqueConstraint("job_id", "seq"),)

    id: int | None = Field(default=None, primary_key=True)
    job_id: str = Field(foreign_key="jobs.id", ondelete="CASCADE")
    seq: int
    type: str
    data: dict[str, Any] = Field(sa_type=sa.JSON)
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)


class Expert(Row, table=True):
    """A task's adapter: the kind of its newest version, the last version number ever given out."""

    __tablename__ = "experts"

    task: str = Field(primary_key=True, foreign_key="tasks.name", ondelete="CASCADE")
    kind: str
    last_number: int = 0
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)


class Version(Row, table=True):
    """An immutable expert: `id` is the sha256 of its files and the name of its folder."""

    __tablename__ = "versions"
    __table_args__ = (sa.UniqueConstraint("task", "number"),)

    id: str = Field(primary_key=True)
    task: str = Field(foreign_key="tasks.name", ondelete="CASCADE")
    number: int
    state: VersionState = Field(default=VersionState.CANDIDATE, sa_type=_words(VersionState))
    # Not a foreign key: the parent is part of the content and may have been deleted since.
    parent_id: str | None = None
    base_model: str
    base_hash: str
    basis_hash: str | None = None
    bytes: int
    manifest: dict[str, Any] = Field(sa_type=sa.JSON)
    job_id: str | None = Field(default=None, foreign_key="jobs.id", ondelete="SET NULL")
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)
    activated_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class Activation(Row, table=True):
    """The stack of what was active: activating pushes, rolling back pops, the top is active now."""

    __tablename__ = "activations"

    id: int | None = Field(default=None, primary_key=True)
    task: str = Field(foreign_key="tasks.name", ondelete="CASCADE", index=True)
    version_id: str = Field(foreign_key="versions.id", ondelete="CASCADE")
    created_at: datetime = Field(default_factory=utcnow, sa_type=UtcDateTime)


class Setting(Row, table=True):
    """A named JSON value of the service: the schedule, the last night's run."""

    __tablename__ = "settings"

    key: str = Field(primary_key=True)
    value: Any = Field(sa_type=sa.JSON, nullable=True)
