"""Notifications: rules, notices of people, deliveries"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "notice_rules",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "workspace_id", "user_id")),
        sa.Column("shared", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("kind", "jobs", "metric")),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("channels", sa.JSON(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_notice_rules_workspace_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_notice_rules_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice_rules")),
    )
    op.create_index(op.f("ix_notice_rules_workspace_id"), "notice_rules", ["workspace_id"])
    op.create_table(
        "notices",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        *(
            sa.Column(name, sa.String(), nullable=False)
            for name in ("user_id", "workspace_id", "key", "kind", "title", "text", "path")
        ),
        sa.Column("at", sa.DateTime(), nullable=False),
        sa.Column("read_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_notices_user_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_notices_workspace_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notices")),
        sa.UniqueConstraint("user_id", "key", name=op.f("uq_notices_user_id_key")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_notices_unread", "notices", ["user_id"], sqlite_where=sa.text("read_at IS NULL"))
    op.create_table(
        "notice_deliveries",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("rule_id", "key", "type", "to")),
        sa.Column("notice", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.DateTime(), nullable=False),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("sent_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["rule_id"], ["notice_rules.id"], name=op.f("fk_notice_deliveries_rule_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notice_deliveries")),
        sa.UniqueConstraint("rule_id", "key", "type", "to", name=op.f("uq_notice_deliveries_rule_id_key_type_to")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_notice_deliveries_due", "notice_deliveries", ["next_at"], sqlite_where=sa.text("state = 'waiting'")
    )


def downgrade() -> None:
    op.drop_table("notice_deliveries")
    op.drop_table("notices")
    op.drop_table("notice_rules")
