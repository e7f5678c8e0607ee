"""Reading results as a user would: plain SQL."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def read_rows(url: str, table: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            query: sa.Select[Any]
            if connection.dialect.name == "sqlite":
                # SQLite keeps types in the declaration alone: without it a decimal comes back as a number.
                query = sa.select(sa.Table(table, sa.MetaData(), autoload_with=connection))
            else:
                query = sa.select(sa.literal_column("*")).select_from(sa.table(table))
            return [dict(row._mapping) for row in connection.execute(query)]
    finally:
        engine.dispose()


def read_counts(url: str, table: str) -> dict[str, int]:
    """A word count's totals."""
    return {row["word"]: row["n"] for row in read_rows(url, table)}


def table_exists(url: str, table: str) -> bool:
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).has_table(table)
    finally:
        engine.dispose()
