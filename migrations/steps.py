"""What the scripts do, so that a database in which each step is committed by itself can be taken up again.

MySQL and MariaDB are such: a crash between two steps leaves the first. Then, and only then, a step that has
been done is left out (`txstream.state.sql.framework_revisions` knows). Elsewhere a script is done wholly or
not at all.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

RESUMING = "resuming"
"""In the configuration's attributes: does this run continue one that was broken off?"""

_STORED: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("row_format", "DYNAMIC"),  # which alone has keys as long as these
        ("default_charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}


def document() -> sa.types.TypeEngine[str]:
    """Text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def instant() -> sa.types.TypeEngine[Any]:
    """A time to the microsecond, in UTC."""
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def create_table(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table, unless an earlier try has created it with these columns."""
    if _columns(name) != {column.name for column in columns}:
        op.create_table(name, *columns, **_STORED)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column, unless an earlier try has."""
    if column.name not in _columns(table):
        op.add_column(table, column)


def _columns(table: str) -> set[str]:
    """The columns that an earlier try has left; none when there was no such try."""
    config = op.get_context().config
    if config is None or not config.attributes.get(RESUMING, False):
        return set()
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table):
        return set()
    return {column["name"] for column in inspector.get_columns(table)}
