"""Invitations to workspaces"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "workspace_invitations",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "workspace_id", "email", "role")),
        sa.Column("code_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        *(sa.Column(name, sa.DateTime(), nullable=False) for name in ("created_at", "expires_at")),
        sa.Column("used_by", sa.String(), nullable=True),
        *(sa.Column(name, sa.DateTime(), nullable=True) for name in ("used_at", "revoked_at")),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_workspace_invitations_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspace_invitations")),
        sa.UniqueConstraint("code_hash", name=op.f("uq_workspace_invitations_code_hash")),
    )
    op.create_index(op.f("ix_workspace_invitations_workspace_id"), "workspace_invitations", ["workspace_id"])


def downgrade() -> None:
    op.drop_table("workspace_invitations")
