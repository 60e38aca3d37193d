"""Quotas of workspaces for models of GPUs"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("workspaces", sa.Column("model_quotas", sa.JSON(), server_default="{}", nullable=False))


def downgrade() -> None:
    op.drop_column("workspaces", "model_quotas")
