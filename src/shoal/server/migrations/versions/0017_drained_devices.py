"""Devices that take no new jobs"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table(
        "drained_devices",
        sa.Column("machine", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("machine", "device", name=op.f("pk_drained_devices")),
    )


def downgrade() -> None:
    op.drop_table("drained_devices")
