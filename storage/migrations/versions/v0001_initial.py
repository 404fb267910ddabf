"""The first schema: tasks, episodes, grades, jobs, job events, experts, versions, settings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates every table; SQLite resolves foreign keys to later tables when rows arrive."""
    _create_tasks_and_episodes()
    _create_jobs()
    _create_experts()


def _create_tasks_and_episodes() -> None:
    op.create_table(
        "settings",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("key", name="pk_settings"),
    )
    op.create_table(
        "tasks",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("system_prompt", sa.String(), nullable=False),
        sa.Column("tools", sa.JSON(), nullable=True),
        sa.Column("response_schema", sa.JSON(), nullable=True),
        sa.Column("grader", sa.JSON(), nullable=False),
        sa.Column("grader_hash", sa.String(), nullable=False),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("training", sa.JSON(), nullable=False),
        sa.Column("active_version_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("updated_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["active_version_id"],
            ["versions.id"],
            name="fk_tasks_active_version_id",
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("name", name="pk_tasks"),
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("completion", sa.String(), nullable=False),
        sa.Column("item", sa.JSON(), nullable=False),
        sa.Column("group_key", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=True),
        sa.Column("client_id", sa.String(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("content_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["task"], ["tasks.name"], name="fk_episodes_task", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_episodes"),
        sa.UniqueConstraint("seq", name="uq_episodes_seq"),
        sa.UniqueConstraint("task", "idempotency_key", name="uq_episodes_task_idempotency_key"),
    )
    op.create_index("ix_episodes_task_seq", "episodes", ["task", "seq"])
    op.create_table(
        "grades",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("grader_hash", sa.String(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("subscores", sa.JSON(), nullable=False),
        sa.Column("error_kind", sa.String(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_grades_episode_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_grades"),
        sa.UniqueConstraint("episode_id", "grader_hash", name="uq_grades_episode_id_grader_hash"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("trainer", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("version_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("started_at", sa.String(27), nullable=True),
        sa.Column("finished_at", sa.String(27), nullable=True),
        sa.ForeignKeyConstraint(["task"], ["tasks.name"], name="fk_jobs_task", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name="fk_jobs_version_id", ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("seq", name="uq_jobs_seq"),
    )
    op.create_index("ix_jobs_status", "jobs", ["status"])
    op.create_index("ix_jobs_task", "jobs", ["task"])
    op.create_table(
        "job_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_job_events_job_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sa.UniqueConstraint("job_id", "seq", name="uq_job_events_job_id_seq"),
    )


def _create_experts() -> None:
    op.create_table(
        "experts",
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("last_number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["task"], ["tasks.name"], name="fk_experts_task", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task", name="pk_experts"),
    )
    op.create_table(
        "versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parent_id", sa.String(), nullable=True),
        sa.Column("base_model", sa.String(), nullable=False),
        sa.Column("base_hash", sa.String(), nullable=False),
        sa.Column("basis_hash", sa.String(), nullable=True),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.Column("activated_at", sa.String(27), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_versions_job_id", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(
            ["task"], ["tasks.name"], name="fk_versions_task", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_versions"),
        sa.UniqueConstraint("task", "number", name="uq_versions_task_number"),
    )
    op.create_table(
        "activations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(), nullable=False),
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.String(27), nullable=False),
        sa.ForeignKeyConstraint(
            ["task"], ["tasks.name"], name="fk_activations_task", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["version_id"], ["versions.id"], name="fk_activations_version_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_activations"),
    )
    op.create_index("ix_activations_task", "activations", ["task"])
