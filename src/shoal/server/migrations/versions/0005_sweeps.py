"""Sweeps and trials"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("source_id", sa.String(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("best", sa.Integer(), nullable=True),
        sa.Column("forgiven", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("stop_requested_at", sa.DateTime(), nullable=True),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name=op.f("fk_sweeps_source_id")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_sweeps_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sweeps")),
        sa.UniqueConstraint("workspace_id", "name", name=op.f("uq_sweeps_workspace_id_name")),
    )
    op.create_index("ix_sweeps_open", "sweeps", ["state"], sqlite_where=sa.text("ended_at IS NULL"))
    op.create_table(
        "trials",
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("job_name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("result", sa.Double(), nullable=True),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("curve", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("ended_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweeps.id"], name=op.f("fk_trials_sweep_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("sweep_id", "number", name=op.f("pk_trials")),
    )
    for name, columns in (("state", ["sweep_id", "state"]), ("result", ["sweep_id", "result"])):
        op.create_index(f"ix_trials_{name}", "trials", columns)
    op.create_index("ix_trials_key", "trials", ["key"])
    op.create_index("ix_trials_job", "trials", ["job_id"])


def downgrade() -> None:
    op.drop_table("trials")
    op.drop_table("sweeps")
