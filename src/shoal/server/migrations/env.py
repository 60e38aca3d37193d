"""Entry point of Alembic: runs the migrations on the connection that `upgrade` passes in."""

from alembic import context

from shoal.server.models import Base

connection = context.config.attributes["connection"]
on_step = context.config.attributes.get("on_step", lambda step: None)
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=True,
    transaction_per_migration=False,
    on_version_apply=lambda *, step, **_: on_step(step),
)
context.run_migrations()
