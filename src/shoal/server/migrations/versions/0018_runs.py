"""Runs: kinds, parameters, tags, notes and titles of jobs, summaries of their metrics, saved views"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_TEXTS = ("title", "description", "note")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind", sa.String(), nullable=False, server_default="job"))
    op.add_column("jobs", sa.Column("params", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("tags", sa.JSON(), nullable=False, server_default="[]"))
    for name in _TEXTS:
        op.add_column("jobs", sa.Column(name, sa.String(), nullable=False, server_default=""))
    op.add_column("jobs", sa.Column("starred", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("archived_at", sa.DateTime(), nullable=True))
    op.execute("UPDATE jobs SET kind = 'trial' WHERE json_extract(spec, '$.env.SHOAL_SWEEP') IS NOT NULL")
    op.execute("UPDATE jobs SET kind = 'preflight' WHERE json_extract(spec, '$.env.SHOAL_PREFLIGHT') IS NOT NULL")
    op.execute("UPDATE jobs SET kind = 'lease' WHERE id IN (SELECT job_id FROM leases)")
    op.create_index("ix_jobs_list", "jobs", ["workspace_id", "kind", "id"])
    op.create_table(
        "run_metrics",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("last", "min", "max")),
        sa.Column("last_step", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_run_metrics_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_run_metrics")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_views",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("query", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_run_views_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "name", name=op.f("pk_run_views")),
    )


def downgrade() -> None:
    op.drop_table("run_views")
    op.drop_table("run_metrics")
    op.drop_index("ix_jobs_list", "jobs")
    with op.batch_alter_table("jobs") as batch:
        for name in ("kind", "params", "tags", *_TEXTS, "starred", "archived_at"):
            batch.drop_column(name)
