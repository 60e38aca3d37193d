"""Machines of the pool"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "pool_machines",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "name", "via")),
        sa.Column("asked", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.JSON(none_as_null=True), nullable=True),
        *(sa.Column(name, sa.String(), nullable=True) for name in ("address", "home", "python", "url")),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("steps", sa.JSON(), nullable=False),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool_machines")),
        sa.UniqueConstraint("name", name=op.f("uq_pool_machines_name")),
    )
    op.create_table(
        "pool_joins",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("ask", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.Column("machine_id", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["pool_machines.id"],
            name=op.f("fk_pool_joins_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool_joins")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_pool_joins_token_hash")),
    )


def downgrade() -> None:
    for table in ("pool_joins", "pool_machines"):
        op.drop_table(table)
