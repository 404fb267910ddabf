"""Run by Alembic. The connection comes from `Database.migrate`, which owns the transaction."""

from alembic import context

from storage.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
