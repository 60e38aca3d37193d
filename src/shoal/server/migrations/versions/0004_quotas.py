"""Quotas and shares of workspaces"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("workspaces", sa.Column("slot_quota", sa.Integer(), nullable=True))
    op.add_column("workspaces", sa.Column("share", sa.Double(), server_default="1", nullable=False))
    op.create_index("ix_attempts_ended_at", "attempts", ["ended_at"])
    columns, open_jobs = ["state", "id", "priority", "attempts"], sa.text("ended_at IS NULL")
    op.create_index("ix_jobs_queue", "jobs", columns, sqlite_where=open_jobs)
    op.drop_index("ix_jobs_open", "jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_open", "jobs", ["state"], sqlite_where=sa.text("ended_at IS NULL"))
    op.drop_index("ix_jobs_queue", "jobs")
    op.drop_index("ix_attempts_ended_at", "attempts")
    op.drop_column("workspaces", "share")
    op.drop_column("workspaces", "slot_quota")
