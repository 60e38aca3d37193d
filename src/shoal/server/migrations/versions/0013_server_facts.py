"""Facts of the server itself: the check value of its secret key"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "server_facts",
        *(sa.Column(name, sa.String(), nullable=False) for name in ("name", "value")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_server_facts")),
    )


def downgrade() -> None:
    op.drop_table("server_facts")
