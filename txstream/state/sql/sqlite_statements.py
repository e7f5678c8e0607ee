"""SQLite's statements over many rows, as lists of VALUES.

A list costs two thirds of what the driver's `executemany` takes for an upsert, and three quarters of what IN
takes for a look-up. The text of a full list is the same for all of a batch, so it is parsed once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Final

import pyarrow as pa
from sqlalchemy import Connection, Table, literal_column
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from txstream.state.sql import sqlite_values
from txstream.state.sql.dialect import Found, Lookup, Upsert

_MOST_PARAMETERS: Final = 999  # what every SQLite allows
_MOST_ROWS: Final = 250  # longer lists are slower again
_HERE: Final = "\0"  # in no name and in no other text of a statement


class RowsUpsert(Upsert):
    """INSERT ... VALUES (...), (...) ON CONFLICT."""

    chunk_rows: ClassVar[int] = 50_000

    def __init__(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> None:
        row: dict[str, Any] = {column.name: literal_column(_HERE) for column in table.c}
        # Inline: or SQLAlchemy would have the database return the keys that these seem to make up.
        insert: Any = sqlite.insert(table).values(row).inline()
        changes, condition = update(insert.excluded)
        insert = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=changes, where=condition
        )
        sql = str(
            insert.compile(dialect=sqlite.dialect(paramstyle="qmark"), compile_kwargs={"literal_binds": True})
        )
        # What is around the row, parentheses included.
        self._before, self._after = sql[: sql.index(_HERE) - 1], sql[sql.rindex(_HERE) + 2 :]
        self._names = [column.name for column in table.c if {"key", "delta"} & column.info.keys()]
        self._row = [_place(column.info) for column in table.c]

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        columns = [sqlite_values.to_driver(deltas.column(name)) for name in self._names]
        row = f"({', '.join(place.format(txid=txid) for place in self._row)})"
        return sum(
            cursor.rowcount for cursor in _in_lists(connection, self._before, row, self._after, columns)
        )


class RowsLookup(Lookup):
    """A join with the keys."""

    def __init__(self, table: Table, columns: Mapping[str, pa.DataType]) -> None:
        quoted = sqlite.dialect().identifier_preparer.quote
        self._keys = [column.name for column in table.primary_key.columns]
        self._columns = dict(columns)
        names = [f"key{place}" for place in range(len(self._keys))]
        same = [f"t.{quoted(key)} = k.{name}" for key, name in zip(self._keys, names, strict=True)]
        # CROSS JOIN: the keys come first, each looked up in the tree of the table.
        # Called as no state table can be: a name of WITH hides the table of that name.
        self._before = f"WITH txstream_key(place, {', '.join(names)}) AS (VALUES "
        self._row = f"({', '.join('?' * (len(names) + 1))})"
        self._after = (
            f") SELECT k.place, {', '.join(f't.{quoted(name)}' for name in columns)} "  # noqa: S608
            f"FROM txstream_key AS k CROSS JOIN {quoted(table.name)} AS t WHERE {' AND '.join(same)}"
        )

    def find(self, connection: Connection, keys: pa.Table) -> Found:
        columns = [sqlite_values.to_driver(keys.column(name)) for name in self._keys]
        wanted = [list(range(keys.num_rows)), *columns]
        found: list[tuple[Any, ...]] = []
        for cursor in _in_lists(connection, self._before, self._row, self._after, wanted):
            found += cursor.fetchall()
        places, *values = zip(*found, strict=True) if found else [()] * (len(self._columns) + 1)
        return list(places), {
            name: sqlite_values.from_driver(list(column), data_type)
            for (name, data_type), column in zip(self._columns.items(), values, strict=True)
        }


def _place(info: Mapping[str, Any]) -> str:
    if "txid" in info:
        return "{txid}"
    return "NULL" if "prev" in info else "?"


def _in_lists(
    connection: Connection, before: str, row: str, after: str, columns: Sequence[list[Any]]
) -> Iterator[sqlite3.Cursor]:
    """Execute a statement over rows given by column, so many at a time as it takes. Raises DBAPIError."""
    driver: Any = connection.connection.driver_connection
    width, count = len(columns), len(columns[0])
    values = list(chain.from_iterable(zip(*columns, strict=True)))
    rows = min(_MOST_ROWS, _MOST_PARAMETERS // width)
    for start in range(0, count, rows):
        sql = f"{before}{', '.join([row] * min(rows, count - start))}{after}"
        try:
            yield driver.execute(sql, values[start * width : (start + rows) * width])
        except sqlite3.Error as error:
            raise DBAPIError(sql, None, error) from error
