"""PostgreSQL's statements over many rows: unnest(arrays), one statement and one answer for a whole chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from sqlalchemy import BigInteger, Column, Connection, Table, Text, and_, bindparam, cast, func, null, select
from sqlalchemy.dialects import postgresql

from txstream.api.state import TXID_COLUMN
from txstream.state.sql.dialect import Found, Lookup, Upsert
from txstream.state.sql.postgresql_arrays import array_literal

BYTE_ORDER = "C"
"""The collation that compares bytes, which is the order of the characters."""

_PLACE = TXID_COLUMN  # what no key column can be called
_STATEMENT_BYTES = 64 * 2**20  # of values; escaped, they stay far below the server's limit of 1 GiB


class UnnestLookup(Lookup):
    """A join with unnest(arrays) of keys: one statement and one answer for a whole chunk."""

    chunk_rows: ClassVar[int] = 10_000

    def __init__(self, table: Table, columns: Mapping[str, pa.DataType]) -> None:
        keys = list(table.primary_key.columns)
        self._names = [key.name for key in keys]
        self._columns = dict(columns)
        wanted = _unnested(keys, "txstream_key", with_ordinality=_PLACE)
        same = and_(*(table.c[name] == wanted.c[name] for name in self._names))
        query = select(wanted.c[_PLACE], *(table.c[name] for name in columns))
        self._sql = _compiled(query.select_from(wanted.join(table, same)))

    def find(self, connection: Connection, keys: pa.Table) -> Found:
        found: list[tuple[Any, ...]] = []
        places: list[int] = []
        for start in range(0, keys.num_rows, self.chunk_rows):
            parameters = _array_parameters(keys.slice(start, self.chunk_rows), self._names)
            rows = connection.exec_driver_sql(self._sql, parameters).cursor.fetchall()
            places += [start - 1 + row[0] for row in rows]  # ordinality counts from 1
            found += rows
        columns = list(zip(*found, strict=True))[1:] if found else [()] * len(self._columns)
        return places, {
            name: pa.array(values, data_type)
            for (name, data_type), values in zip(self._columns.items(), columns, strict=True)
        }


class UnnestUpsert(Upsert):
    """INSERT ... SELECT FROM unnest(arrays) ON CONFLICT: one statement and one answer for a whole chunk."""

    chunk_rows: ClassVar[int] = 10_000

    def __init__(self, table: Table, update: Callable[[Any], tuple[dict[str, Any], Any]]) -> None:
        written = [column for column in table.columns if "delta" in column.info or "key" in column.info]
        self._names = [column.name for column in written]
        rows = _unnested(written, "txstream_delta")
        values: dict[str, Any] = {}
        for column in table.columns:
            if column.name in self._names:
                values[column.name] = rows.c[column.name]
            elif "txid" in column.info:
                values[column.name] = cast(bindparam("txid", type_=BigInteger), BigInteger)
            else:
                values[column.name] = cast(null(), column.type)
        insert: Any = postgresql.insert(table).from_select(list(values), select(*values.values()))
        changes, condition = update(insert.excluded)
        self._sql = _compiled(
            insert.on_conflict_do_update(
                index_elements=list(table.primary_key.columns), set_=changes, where=condition
            )
        )
        self._has_txid = any("txid" in column.info for column in table.columns)

    def execute(self, connection: Connection, deltas: pa.Table, txid: int) -> int:
        written = 0
        for part in _parts(deltas):
            parameters = _array_parameters(part, self._names)
            if self._has_txid:
                parameters["txid"] = txid
            written += connection.exec_driver_sql(self._sql, parameters).rowcount
        return written


def _parts(deltas: pa.Table) -> Iterator[pa.Table]:
    """Halves of halves until each is short enough for one statement, or has one row."""
    if deltas.num_rows < 2 or deltas.nbytes <= _STATEMENT_BYTES:
        yield deltas
        return
    half = deltas.num_rows // 2
    yield from _parts(deltas.slice(0, half))
    yield from _parts(deltas.slice(half))


def _unnested(columns: Sequence[Column[Any]], name: str, with_ordinality: str | None = None) -> Any:
    """Rows from one array per column, bound as `array_0` and so on."""
    arrays = [
        cast(bindparam(f"array_{place}", type_=Text), postgresql.ARRAY(plain_type(column.type)))
        for place, column in enumerate(columns)
    ]
    rows = (Column(column.name, column.type) for column in columns)
    return func.unnest(*arrays).table_valued(*rows, with_ordinality=with_ordinality).render_derived(name=name)


def plain_type(column_type: Any) -> Any:
    """A column's type without the order of its texts, where that is the one of their bytes."""
    return Text() if isinstance(column_type, Text) and column_type.collation == BYTE_ORDER else column_type


def _array_parameters(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    return {f"array_{place}": array_literal(rows.column(name)) for place, name in enumerate(names)}


def _compiled(statement: Any) -> str:
    """The text of a statement, made once: SQLAlchemy would look it up, and convert values, each time."""
    dialect: Any = postgresql.dialect
    return str(statement.compile(dialect=dialect(paramstyle="pyformat")))
