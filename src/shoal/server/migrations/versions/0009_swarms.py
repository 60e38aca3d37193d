"""Swarms"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "swarms",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "workspace_id", "name")),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("source_id", sa.String(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("created_by", "state")),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("owner_key", sa.String(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=True),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("addresses", sa.JSON(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("keeper_starts", "keeper_read")),
        sa.Column("created_at", sa.DateTime(), nullable=False),
        sa.Column("stopped_at", sa.DateTime(), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name="fk_swarms_workspace_id", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["source_id"], ["sources.id"], name="fk_swarms_source_id"),
        sa.PrimaryKeyConstraint("id", name="pk_swarms"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_swarms_workspace_id_name"),
    )
    _people()
    _history()


def _people() -> None:
    op.create_table(
        "swarm_invitations",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("id", "swarm_id", "name", "created_by")),
        *(sa.Column(name, sa.DateTime(), nullable=False) for name in ("created_at", "expires_at")),
        sa.Column("revoked_at", sa.DateTime(), nullable=True),
        sa.Column("max_peers", sa.Integer(), nullable=True),
        _swarm("swarm_invitations"),
        sa.PrimaryKeyConstraint("id", name="pk_swarm_invitations"),
    )
    op.create_index("ix_swarm_invitations_swarm_id", "swarm_invitations", ["swarm_id"])
    op.create_table(
        "swarm_peers",
        *(
            sa.Column(name, sa.String(), nullable=False)
            for name in ("id", "swarm_id", "invitation_id", "name", "public_key")
        ),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("token_expires_at", sa.DateTime(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("client_mode", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.JSON(none_as_null=True), nullable=False) for name in ("facts", "stats")),
        *(sa.Column(name, sa.DateTime(), nullable=False) for name in ("joined_at", "seen_at")),
        sa.Column("left_at", sa.DateTime(), nullable=True),
        _swarm("swarm_peers"),
        sa.ForeignKeyConstraint(
            ["invitation_id"], ["swarm_invitations.id"], name="fk_swarm_peers_invitation_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_swarm_peers"),
        sa.UniqueConstraint("token_hash", name="uq_swarm_peers_token_hash"),
        sa.UniqueConstraint("swarm_id", "public_key", name="uq_swarm_peers_swarm_id_public_key"),
    )
    op.create_index("ix_swarm_peers_invitation_id", "swarm_peers", ["invitation_id"])


def _history() -> None:
    op.create_table(
        "swarm_rounds",
        sa.Column("swarm_id", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        *(sa.Column(name, sa.Double(), nullable=True) for name in ("loss", "performance", "seconds", "averaged")),
        *(sa.Column(name, sa.Integer(), nullable=True) for name in ("samples", "alive", "bytes")),
        sa.Column("members", sa.JSON(), nullable=False),
        _swarm("swarm_rounds"),
        sa.PrimaryKeyConstraint("swarm_id", "round", name="pk_swarm_rounds"),
    )
    op.create_table(
        "swarm_checkpoints",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("checkpoint_id", "swarm_id", "hash")),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"], ["checkpoints.id"], name="fk_swarm_checkpoints_checkpoint_id", ondelete="CASCADE"
        ),
        _swarm("swarm_checkpoints"),
        sa.PrimaryKeyConstraint("checkpoint_id", name="pk_swarm_checkpoints"),
    )
    op.create_index("ix_swarm_checkpoints_swarm", "swarm_checkpoints", ["swarm_id", "checkpoint_id"])
    op.create_table(
        "swarm_events",
        sa.Column("swarm_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("kind", "message")),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        _swarm("swarm_events"),
        sa.PrimaryKeyConstraint("swarm_id", "seq", name="pk_swarm_events"),
    )


def _swarm(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["swarm_id"], ["swarms.id"], name=f"fk_{table}_swarm_id", ondelete="CASCADE")
