"""Accounts at sign-in services, codes sent by mail, and the time an address was verified"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("users", sa.Column("email_verified_at", sa.DateTime(), nullable=True))
    op.create_table(
        "identities",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("issuer", "subject", "user_id", "email")),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_identities_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("issuer", "subject", name=op.f("pk_identities")),
    )
    op.create_index(op.f("ix_identities_user_id"), "identities", ["user_id"])
    op.create_table(
        "mail_codes",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "user_id", "purpose", "email")),
        sa.Column("code_hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("expires_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_mail_codes_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mail_codes")),
        sa.UniqueConstraint("code_hash", name=op.f("uq_mail_codes_code_hash")),
    )
    op.create_index(op.f("ix_mail_codes_user_id"), "mail_codes", ["user_id"])


def downgrade() -> None:
    op.drop_table("mail_codes")
    op.drop_table("identities")
    op.drop_column("users", "email_verified_at")
