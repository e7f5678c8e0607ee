"""Reads results as a user would, by plain SQL. A store without SQL is read in a transaction of its own."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import quoted_name

from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.backend import StoreBackend
from txstream.plugins.proof.stores.merging import RowRules
from txstream.state import open_database
from txstream.state.declarations import declared_spec
from txstream.state.registry import scheme_of
from txstream.state.sql.urls import is_sql as is_sql_scheme


def is_sql(url: str) -> bool:
    """Return whether this URL means a SQL database."""
    scheme = scheme_of(url)
    return scheme is not None and is_sql_scheme(scheme)


def store_at(url: str) -> StoreBackend:
    """Open the store of a URL that means no SQL database."""
    store = open_database(url)
    assert isinstance(store, StoreBackend)
    return store


def read_rows(url: str, table: str) -> list[dict[str, Any]]:
    """Return all rows of a table."""
    if not is_sql(url):
        return _rows_in_store(url, table)
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            query: sa.Select[Any]
            if connection.dialect.name == "sqlite":
                # SQLite keeps types only in the declaration: without it, a decimal comes back as a number.
                query = sa.select(sa.Table(table, sa.MetaData(), autoload_with=connection))
            else:
                quoted = sa.table(quoted_name(table, quote=True))
                query = sa.select(sa.literal_column("*")).select_from(quoted)
            return [dict(row._mapping) for row in connection.execute(query)]
    finally:
        engine.dispose()


def read_counts(url: str, table: str) -> dict[str, int]:
    """Return the totals of a word count."""
    return {row["word"]: row["n"] for row in read_rows(url, table)}


def table_exists(url: str, table: str) -> bool:
    if not is_sql(url):
        with store_at(url).transaction() as here:
            return layout.read_owner(here, table) is not None
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).has_table(table)
    finally:
        engine.dispose()


def execute(url: str, *statements: str) -> None:
    """Do what a person could do to the database behind our back."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def _rows_in_store(url: str, table: str) -> list[dict[str, Any]]:
    with store_at(url).transaction() as here:
        owner = layout.read_owner(here, table)
        assert owner is not None, f"there is no table {table!r}"
        rules = RowRules(declared_spec(owner))
        return [rules.columns(key, row) for key, row in here.scan(layout.rows_space(table))]
