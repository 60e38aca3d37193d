"""Ledger of usage"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_HELD = (
    ("workspace_id", sa.String),
    ("job_id", sa.String),
    ("job", sa.String),
    ("person", sa.String),
    ("attempt", sa.Integer),
    ("machine", sa.String),
    ("kind", sa.String),
    ("slots", sa.Integer),
    ("price", sa.BigInteger),
    ("currency", sa.String),
)


def upgrade() -> None:
    op.create_table(
        "ledger",
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("previous", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        *_held(),
        sa.Column("start_ms", sa.BigInteger(), nullable=False),
        sa.Column("end_ms", sa.BigInteger(), nullable=False),
        sa.Column("slot_ms", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_ledger")),
        sa.UniqueConstraint("attempt_id", "node", "start_ms", name=op.f("uq_ledger_attempt_id_node_start_ms")),
    )
    op.create_index("ix_ledger_workspace_id_end_ms", "ledger", ["workspace_id", "end_ms"])
    op.create_index("ix_ledger_job_id", "ledger", ["job_id"])
    op.create_table(
        "ledger_open",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        *_held(),
        sa.Column("start_ms", sa.BigInteger(), nullable=True),
        sa.Column("heard_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("attempt_id", "node", name=op.f("pk_ledger_open")),
    )
    op.create_index("ix_ledger_open_job_id", "ledger_open", ["job_id"])
    op.create_table(
        "ledger_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("boot_ms", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_head")),
    )
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER ledger_no_{verb.lower()} BEFORE {verb} ON ledger "
            "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        )


def downgrade() -> None:
    for table in ("ledger_head", "ledger_open", "ledger"):
        op.drop_table(table)


def _held() -> list[sa.Column[object]]:
    return [sa.Column(name, kind(), nullable=False) for name, kind in _HELD]
