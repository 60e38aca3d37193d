"""Notes at steps of runs, and layouts of charts"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "step_notes",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("text", "created_by")),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_step_notes_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_step_notes")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_step_notes_job", "step_notes", ["job_id", "id"])
    op.create_table(
        "chart_layouts",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("workspace_id", "page", "user_id")),
        sa.Column("layout", sa.JSON(), nullable=False),
        sa.Column("saved_by", sa.String(), nullable=False),
        sa.Column("saved_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_chart_layouts_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workspace_id", "page", "user_id", name=op.f("pk_chart_layouts")),
    )


def downgrade() -> None:
    op.drop_table("chart_layouts")
    op.drop_table("step_notes")
