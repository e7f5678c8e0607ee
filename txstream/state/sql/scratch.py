"""A table of deltas for people to look at: `txstream replay --into`. It is nobody's state."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import BigInteger, Column, MetaData, Table, inspect
from sqlalchemy.sql import quoted_name

from txstream.api.errors import UsageError
from txstream.api.state import TXID_COLUMN, SqlState
from txstream.semantics import Semantics
from txstream.state.sql.database import StateDatabase
from txstream.state.sql.tables import build_table, read_owner


def refuse_scratch(database: StateDatabase, name: str, state: SqlState) -> None:
    """Raise UsageError when the table is there already, or is a topology's; TopologyError or StateTableError
    for a name that it cannot have."""
    _table(database, name, state)
    with database.sessions.reading(f"whether table {name!r} is there") as connection:
        owner = read_owner(connection, name)
        if owner is not None:
            raise UsageError(
                f"table {name!r} is a state table of topology {owner.topology!r}; name a new one"
            )
        if inspect(connection).has_table(name):
            raise UsageError(
                f"table {name!r} exists in {database.url_for_people}; name a new one, or drop it"
            )


def write_scratch(
    database: StateDatabase, name: str, state: SqlState, parts: Sequence[tuple[int, pa.Table]]
) -> int:
    """Make the table, `txid` and then the columns of `state`, and fill it with deltas by txid; how many rows.
    All or nothing, where the database can undo the making of a table."""
    table = _table(database, name, state)
    dialect, rows = database.sessions.dialect, 0
    with database.sessions.writing(f"table {name!r}", patient=True) as (connection, answered):
        table.create(connection)
        for txid, deltas in parts:
            columns = [dialect.to_driver(column) for column in deltas.columns]
            names = deltas.schema.names
            for start in range(0, deltas.num_rows, _CHUNK_ROWS):
                chunk = zip(*(column[start : start + _CHUNK_ROWS] for column in columns), strict=True)
                given = [{TXID_COLUMN: txid, **dict(zip(names, row, strict=True))} for row in chunk]
                connection.execute(table.insert(), given)
                answered()
            rows += deltas.num_rows
    return rows


_CHUNK_ROWS = 10_000
_NEEDS_KEY = "sqlite_with_rowid"


def _table(database: StateDatabase, name: str, state: SqlState) -> Table:
    dialect = database.sessions.dialect
    like = SqlState(name, key=state.key_schema, value=state.value_schema)
    columns = build_table(like, Semantics.NON_TRANSACTIONAL, dialect).columns
    return Table(
        quoted_name(name, quote=True),
        MetaData(),
        Column(TXID_COLUMN, BigInteger, nullable=False),
        *(Column(quoted_name(column.name, quote=True), column.type) for column in columns),
        # Without a key: a state's own may be as long as the database takes.
        **{option: value for option, value in dialect.table_options().items() if option != _NEEDS_KEY},
    )
