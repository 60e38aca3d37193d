"""Alembic's entry: runs on the connection `upgrade` hands in."""

from alembic import context

from shoal.server.models import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection, target_metadata=Base.metadata, render_as_batch=True, transaction_per_migration=False
)
context.run_migrations()
