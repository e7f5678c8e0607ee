"""SQLite's statements over many rows, as lists of VALUES.

A list takes two thirds of the time of the driver's `executemany` for an upsert, and three quarters of the
time of IN for a look-up. The text of a full list never changes, so a connection parses it once.
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

_MOST_PARAMETERS: Final = 999  # every SQLite allows as many
_MOST_ROWS: Final = 100  # measured with two columns: shorter lists are as fast, longer ones slower
_LIST: Final = "txstream_list"  # no state table can have this name
_HERE: Final = "\0"  # a mark: in no name and in no other text of a statement


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
        # The condition is needed: without one SQLite's parser takes ON CONFLICT for a join's ON.
        query = select(*values.values()).where(true()).prefix_with(_HERE)
        insert: Any = sqlite.insert(table).from_select(list(values), query)
        changes, condition = update(insert.excluded)
        insert = insert.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=changes, where=condition
        )
        dialect = sqlite.dialect(paramstyle="qmark")
        sql = str(insert.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        # The driver counts rows only of statements that begin with INSERT, so the list comes after that.
        before, after = sql.split(f"SELECT {_HERE}")
        self._lists = _Lists(rows.c.keys(), f"SELECT {after}", before=before, with_last=self._has_txid)

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        columns = [sqlite_values.to_driver(deltas.column(name)) for name in self._names]
        last = (txid,) if self._has_txid else ()
        return sum(cursor.rowcount for cursor in self._lists.execute(connection, columns, last))


class RowsLookup(Lookup):
    """A join of the table with a list of the keys."""

    def __init__(self, table: Table, columns: Mapping[str, pa.DataType]) -> None:
        quoted = sqlite.dialect().identifier_preparer.quote
        self._keys = [column.name for column in table.primary_key.columns]
        self._columns = dict(columns)
        names = [f"key{place}" for place in range(len(self._keys))]
        same = [f"t.{quoted(key)} = k.{name}" for key, name in zip(self._keys, names, strict=True)]
        # CROSS JOIN keeps the keys first, so that each is looked up in the tree of the table.
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
    """A statement over a list of rows, executed as often as all rows need."""

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
        """Yield a cursor per list. Rows are given by column; the parameters `last` follow each list's. Raises
        DBAPIError."""
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
