"""Accelerators of the pool's machines, slot by slot"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.add_column("pool_machines", sa.Column("devices", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("pool_machines", "devices")
