"""The fence, and the ledger of batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from txstream.migrations.steps import create_table, document, instant

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_table(
        "txstream_fence",
        sa.Column("topology", sa.String(255), primary_key=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
    )
    create_table(
        "txstream_batch",
        sa.Column("topology", sa.String(255), primary_key=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("txid", sa.BigInteger, primary_key=True, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("semantics", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("metas", document(), nullable=False),
        sa.Column("tuples", sa.BigInteger, nullable=False),
        sa.Column("keys", sa.BigInteger, nullable=False),
        sa.Column("planned_at", instant(), nullable=False),
        sa.Column("processed_at", instant(), nullable=False),
        sa.Column("committed_at", instant(), nullable=True),
        sa.Column("error", document(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("txstream_batch")
    op.drop_table("txstream_fence")
