"""Disabled accounts, and the program that started a session"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("users", sa.Column("disabled_at", sa.DateTime(), nullable=True))
    op.add_column("sessions", sa.Column("program", sa.String(), nullable=True))
