"""A table of deltas to look at: `txstream replay --into`. It is not a topology's state table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlalchemy import Column, MetaData, Table, inspect
from sqlalchemy.sql import quoted_name

from txstream.api.state import TXID_COLUMN, SqlState
from txstream.core.errors import UsageError
from txstream.state.sql.database import StateDatabase
from txstream.state.sql.tables import read_owner


def refuse_scratch(database: StateDatabase, name: str, state: SqlState) -> None:
    """Raise UsageError when the table exists or belongs to a topology, TopologyError or StateTableError for a
    name that it cannot have."""
    _table(database, name, state)
    with database.sessions.reading(f"whether table {name!r} is there") as connection:
        owner = read_owner(connection, name)
        if owner is not None:
            raise UsageError(
                f"table {name!r} is a state table of topology {owner.topology!r}; name a new one"
            )
        if inspect(connection).has_table(name):
            raise UsageError(f"table {name!r} exists in {database.display_url}; name a new one, or drop it")


def write_scratch(
    database: StateDatabase, name: str, state: SqlState, parts: Sequence[tuple[int, pa.Table]]
) -> int:
    """Create a table of `txid` and the columns of `state`, and fill it with `parts`, the deltas by txid.
    Returns the number of rows. All or nothing, where the database can undo CREATE TABLE."""
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


def _table(database: StateDatabase, name: str, state: SqlState) -> Table:
    """Return the table. It has a primary key, because some servers accept no table without one."""
    dialect = database.sessions.dialect
    SqlState(name, key=state.key_schema, value=state.value_schema)  # refuses names that no table can have
    dialect.check_name(name, "table", name)
    keys = dialect.key_types(pa.schema([pa.field(TXID_COLUMN, pa.int64()), *state.key_schema]), name)
    values = {field.name: dialect.type_of(field, name) for field in state.value_schema}
    return Table(
        quoted_name(name, quote=True),
        MetaData(),
        *(
            Column(quoted_name(key, quote=True), kind, primary_key=True, autoincrement=False)
            for key, kind in keys.items()
        ),
        *(Column(quoted_name(value, quote=True), kind) for value, kind in values.items()),
        **dialect.table_options(),
    )
