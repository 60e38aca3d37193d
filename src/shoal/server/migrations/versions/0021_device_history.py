"""Accelerators of the machines, with their history"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.create_table(
        "device_records",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("machine", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("until", sa.DateTime(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_records")),
    )
    op.create_index(op.f("ix_device_records_machine"), "device_records", ["machine"])


def downgrade() -> None:
    op.drop_table("device_records")
