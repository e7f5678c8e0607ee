"""The topology's identity, kept with its fence, and details of a batch, kept with its ledger row."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from txstream.migrations.steps import add_column, document

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    add_column("txstream_fence", sa.Column("identity", document(), nullable=True))
    add_column("txstream_batch", sa.Column("details", document(), nullable=True))


def downgrade() -> None:
    op.drop_column("txstream_batch", "details")
    op.drop_column("txstream_fence", "identity")
