"""The fence, and the ledger of batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "txstream_fence",
        sa.Column("topology", sa.String(255), primary_key=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "txstream_batch",
        sa.Column("topology", sa.String(255), primary_key=True, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("txid", sa.BigInteger, primary_key=True, autoincrement=False, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("semantics", sa.String(32), nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("metas", sa.Text, nullable=False),
        sa.Column("tuples", sa.BigInteger, nullable=False),
        sa.Column("keys", sa.BigInteger, nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("processed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text, nullable=True),
    )


def downgrade() -> None:
    op.drop_table("txstream_batch")
    op.drop_table("txstream_fence")
