"""Leases"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "leases",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "workspace_id", "job_id", "user_id")),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("name", "login")),
        sa.Column("ssh_keys", sa.JSON(), nullable=False),
        sa.Column("password_hash", sa.String(), nullable=True),
        sa.Column("host_key", sa.LargeBinary(), nullable=False),
        sa.Column("host_public_key", sa.String(), nullable=False),
        sa.Column("time_s", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        *(sa.Column(name, sa.DateTime(), nullable=True) for name in ("expires_at", "ended_at")),
        sa.Column("end_reason", sa.String(), nullable=True),
        sa.Column("reminded_s", sa.Integer(), nullable=True),
        *(
            sa.ForeignKeyConstraint([column], [f"{table}.id"], name=op.f(f"fk_leases_{column}"), ondelete="CASCADE")
            for column, table in (("workspace_id", "workspaces"), ("job_id", "jobs"), ("user_id", "users"))
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        sa.UniqueConstraint("job_id", name=op.f("uq_leases_job_id")),
        sa.UniqueConstraint("login", name=op.f("uq_leases_login")),
    )
    op.create_index(
        "uq_leases_live_name", "leases", ["workspace_id", "name"], unique=True, sqlite_where=sa.text("ended_at IS NULL")
    )


def downgrade() -> None:
    op.drop_table("leases")
