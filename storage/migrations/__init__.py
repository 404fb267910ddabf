"""Alembic migrations, shipped inside the package. Append-only and forward-only."""
