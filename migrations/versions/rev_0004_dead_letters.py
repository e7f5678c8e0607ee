"""The records that batches left out because they failed by themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from txstream.migrations.steps import binary, create_table, document, instant

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_table(
        "txstream_dead_letter",
        sa.Column("topology", sa.String(255), primary_key=True, nullable=False),
        sa.Column("uuid", sa.String(36), primary_key=True, nullable=False),
        sa.Column("txid", sa.BigInteger, primary_key=True, autoincrement=False, nullable=False),
        sa.Column("place", sa.String(400), primary_key=True, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(64), nullable=False),
        sa.Column("when", instant(), nullable=False),
        sa.Column("topic", document(), nullable=True),
        sa.Column("partition", sa.BigInteger, nullable=True),
        sa.Column("offset", sa.BigInteger, nullable=True),
        sa.Column("timestamp", sa.BigInteger, nullable=True),
        sa.Column("component", document(), nullable=False),
        sa.Column("exception", document(), nullable=False),
        sa.Column("message", document(), nullable=False),
        sa.Column("traceback", document(), nullable=False),
        sa.Column("key", binary(), nullable=True),
        sa.Column("headers", binary(), nullable=True),
        sa.Column("value", binary(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("txstream_dead_letter")
