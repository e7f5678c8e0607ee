"""SQLite's statements over many rows, as lists of VALUES.

A list costs two thirds of what the driver's `executemany` takes for an upsert, and three quarters of what IN
takes for a look-up. The text of a full list never changes, so that a connection parses it once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from sqlalchemy import (
    Connection,
    Table,
    column as plain_column,
    literal_column,
    null,
    select,
    table as plain_table,
    true,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError

from txstream.state.sql import sqlite_values
from txstream.state.sql.dialect import Found, Lookup, Upsert

_MOST_PARAMETERS: Final = 999  # what every SQLite allows
_MOST_ROWS: Final = 100  # measured on two columns: shorter lists are as fast, longer ones slower again
_LIST: Final = "txstream_list"  # no state table can be called so
_HERE: Final = "\0"  # in no name and in no other text of a statement


class RowsUpsert(Upsert):
    """INSERT ... WITH list AS (VALUES ...) SELECT ... FROM list ON CONFLICT."""

    chunk_rows: ClassVar[int] = 50_000

    def __init__(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> None:
        self._names = [column.name for column in table.c if {"key", "delta"} & column.info.keys()]
        self._has_txid = any("txid" in column.info for column in table.c)
        rows = plain_table(_LIST, *(plain_column(f"v{place}") for place in range(len(self._names))))
        places = dict(zip(self._names, rows.c, strict=True))
        values: dict[str, Any] = {
            column.name: literal_column("?") if "txid" in column.info else places.get(column.name, null())
            for column in table.c
        }
        # A condition: without one SQLite's parser takes ON for that of a join.
        query = select(*values.values()).where(true()).prefix_with(_HERE)
        insert: Any = sqlite.insert(table).from_select(list(values), query)
        changes, condition = update(insert.excluded)
        insert = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=changes, where=condition
        )
        dialect = sqlite.dialect(paramstyle="qmark")
        sql = str(insert.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        # The driver counts rows only of what begins with INSERT, so the list comes after that.
        before, after = sql.split(f"SELECT {_HERE}")
        self._lists = _Lists(rows.c.keys(), f"SELECT {after}", before=before, with_last=self._has_txid)

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        columns = [sqlite_values.to_driver(deltas.column(name)) for name in self._names]
        last = (txid,) if self._has_txid else ()
        return sum(cursor.rowcount for cursor in self._lists.execute(connection, columns, last))


class RowsLookup(Lookup):
    """A join with the keys."""

    def __init__(self, table: Table, columns: Mapping[str, pa.DataType]) -> None:
        quoted = sqlite.dialect().identifier_preparer.quote
        self._keys = [column.name for column in table.primary_key.columns]
        self._columns = dict(columns)
        names = [f"key{place}" for place in range(len(self._keys))]
        same = [f"t.{quoted(key)} = k.{name}" for key, name in zip(self._keys, names, strict=True)]
        # CROSS JOIN: the keys come first, each looked up in the tree of the table.
        sql = (
            f"SELECT k.place, {', '.join(f't.{quoted(name)}' for name in columns)} "  # noqa: S608 - quoted
            f"FROM {_LIST} AS k CROSS JOIN {quoted(table.name)} AS t WHERE {' AND '.join(same)}"
        )
        self._lists = _Lists(["place", *names], sql)

    def find(self, connection: Connection, keys: pa.Table) -> Found:
        columns = [sqlite_values.to_driver(keys.column(name)) for name in self._keys]
        found: list[tuple[Any, ...]] = []
        for cursor in self._lists.execute(connection, [list(range(keys.num_rows)), *columns]):
            found += cursor.fetchall()
        places, *values = zip(*found, strict=True) if found else [()] * (len(self._columns) + 1)
        return list(places), {
            name: sqlite_values.from_driver(list(column), data_type)
            for (name, data_type), column in zip(self._columns.items(), values, strict=True)
        }


class _Lists:
    """A statement over rows of a list, executed as often as it takes for all rows."""

    def __init__(self, names: Sequence[str], sql: str, *, before: str = "", with_last: bool = False) -> None:
        self._head = f"{before}WITH {_LIST} ({', '.join(names)}) AS (VALUES "
        self._row = f"({', '.join('?' * len(names))})"
        self._tail = f") {sql}"
        self._width = len(names)
        self._rows = max(1, min(_MOST_ROWS, (_MOST_PARAMETERS - with_last) // self._width))
        self._full = self._text(self._rows)

    def execute(
        self, connection: Connection, columns: Sequence[list[Any]], last: tuple[Any, ...] = ()
    ) -> Iterator[sqlite3.Cursor]:
        """Rows are given by column; `last` are the parameters after those of each list. Raises DBAPIError."""
        driver: Any = connection.connection.driver_connection
        width, count = self._width, len(columns[0])
        values: list[Any] = [None] * (width * count)
        for place, column in enumerate(columns):
            values[place::width] = column
        for start in range(0, count, self._rows):
            rows = min(self._rows, count - start)
            sql = self._full if rows == self._rows else self._text(rows)
            try:
                yield driver.execute(sql, (*values[start * width : (start + rows) * width], *last))
            except sqlite3.Error as error:
                raise DBAPIError(sql, None, error) from error

    def _text(self, rows: int) -> str:
        return f"{self._head}{', '.join([self._row] * rows)}{self._tail}"
