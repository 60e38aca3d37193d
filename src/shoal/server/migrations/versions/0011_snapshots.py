"""Snapshots of leases"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "snapshots",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "workspace_id", "lease", "manifest_id")),
        *(sa.Column(name, sa.String(), nullable=True) for name in ("job_id", "machine")),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("size", "files")),
        sa.Column("skipped", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        *(sa.Column(name, sa.DateTime(), nullable=False) for name in ("created_at", "expires_at")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_snapshots_workspace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_snapshots_job_id"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_snapshots")),
    )
    op.create_index(op.f("ix_snapshots_workspace_id"), "snapshots", ["workspace_id"])


def downgrade() -> None:
    op.drop_table("snapshots")
