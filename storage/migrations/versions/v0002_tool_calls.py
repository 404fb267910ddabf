"""Episodes keep the tool calls of an answer that was given as a message."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds a column that is NULL in every episode there is."""
    op.add_column("episodes", sa.Column("tool_calls", sa.JSON(), nullable=True))
