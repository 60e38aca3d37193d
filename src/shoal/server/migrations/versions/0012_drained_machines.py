"""Machines outside the pool's table that are drained"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "drained_machines",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("since", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_drained_machines")),
    )


def downgrade() -> None:
    op.drop_table("drained_machines")
