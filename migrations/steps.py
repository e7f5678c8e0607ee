"""The steps of the scripts. An interrupted upgrade can be resumed where each step is committed by itself.

MySQL and MariaDB work like that: after a crash between two steps, the first one remains done. A run that
resumes the upgrade skips the steps that are done; no other run does (`txstream.state.sql.framework_tables`
decides which it is). Elsewhere a script is done wholly or not at all.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

RESUMING = "resuming"
"""Name of the attribute of Alembic's configuration that says whether this run resumes an interrupted one."""

_STORED: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("row_format", "DYNAMIC"),  # no other format allows keys as long as these
        ("default_charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),
    )
}


def document() -> sa.types.TypeEngine[str]:
    """Return the type for text of any length."""
    return sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def binary() -> sa.types.TypeEngine[bytes]:
    """Return the type for bytes of any length."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def instant() -> sa.types.TypeEngine[Any]:
    """Return the type for a time in UTC, to the microsecond."""
    return sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def create_table(name: str, *columns: sa.Column[Any]) -> None:
    """Create a table, unless the interrupted run has created it with these columns."""
    if _columns(name) != {column.name for column in columns}:
        op.create_table(name, *columns, **_STORED)


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column, unless the interrupted run has."""
    if column.name not in _columns(table):
        op.add_column(table, column)


def _columns(table: str) -> set[str]:
    """Return the columns that the interrupted run has left; none when this run does not resume one."""
    config = op.get_context().config
    if config is None or not config.attributes.get(RESUMING, False):
        return set()
    inspector = sa.inspect(op.get_bind())
    if not inspector.has_table(table):
        return set()
    return {column["name"] for column in inspector.get_columns(table)}
