"""The owner of each state table, so that two topologies never share one by accident."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from txstream.migrations.steps import create_table, document, instant

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_table(
        "txstream_table",
        sa.Column("table_name", sa.String(255), primary_key=True, nullable=False),
        sa.Column("topology", sa.String(255), nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("declaration", document(), nullable=False),
        sa.Column("created_at", instant(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("txstream_table")
