"""PostgreSQL's statements over many rows: unnest(arrays), one statement and one answer for a whole chunk.

The arrays are literals, which is twice as fast as lists that the driver formats.

Invariant: PostgreSQL reads back exactly what was written, for every value that `values.check_value` accepts.
Text elements are always quoted, with backslash and quote escaped, so that the array parser gives no special
meaning to `NULL`, braces or commas in a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BigInteger, Column, Connection, Table, Text, and_, bindparam, cast, func, null, select
from sqlalchemy.dialects import postgresql

from txstream.api.state import TXID_COLUMN
from txstream.state.sql.dialect import Found, Lookup, Upsert, halved

BYTE_ORDER = "C"
"""The collation that compares bytes, which in UTF-8 is the order of the code points."""

_SEPARATOR = "\0"  # cannot occur in text: PostgreSQL does not store it, and `values.check_text` refuses it
_PLACE = TXID_COLUMN  # no key column can have this name
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
        for part in halved(deltas, lambda rows: bool(rows.nbytes <= _STATEMENT_BYTES)):
            parameters = _array_parameters(part, self._names)
            if self._has_txid:
                parameters["txid"] = txid
            written += connection.exec_driver_sql(self._sql, parameters).rowcount
        return written


def _unnested(columns: Sequence[Column[Any]], name: str, with_ordinality: str | None = None) -> Any:
    """Return the rows made from one array per column; the arrays are bound as `array_0` and so on."""
    arrays = [
        cast(bindparam(f"array_{place}", type_=Text), postgresql.ARRAY(plain_type(column.type)))
        for place, column in enumerate(columns)
    ]
    rows = (Column(column.name, column.type) for column in columns)
    return func.unnest(*arrays).table_valued(*rows, with_ordinality=with_ordinality).render_derived(name=name)


def plain_type(column_type: Any) -> Any:
    """Return a column's type; for text in byte order, without the collation."""
    return Text() if isinstance(column_type, Text) and column_type.collation == BYTE_ORDER else column_type


def _array_parameters(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    return {f"array_{place}": array_literal(rows.column(name)) for place, name in enumerate(names)}


def _compiled(statement: Any) -> str:
    """Return a statement's text. Made once: SQLAlchemy would look it up and convert values each time."""
    dialect: Any = postgresql.dialect
    return str(statement.compile(dialect=dialect(paramstyle="pyformat")))


def array_literal(column: pa.ChunkedArray) -> str:
    """Return a column as an array literal such as {"a","b",NULL}."""
    data_type = column.type
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return _quoted(column.to_pylist())
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        values = column.to_pylist()
        return "{" + ",".join("NULL" if v is None else f'"\\\\x{v.hex()}"' for v in values) + "}"
    if pa.types.is_temporal(data_type):
        return _quoted(column.cast(pa.string()).to_pylist())
    if pa.types.is_boolean(data_type):
        column = pc.if_else(column, "t", "f")
        return "{" + ",".join(v or "NULL" for v in column.to_pylist()) + "}"
    # PostgreSQL reads repr of a float back exactly: it is the shortest text that means that float.
    values = column.to_pylist()
    if pa.types.is_floating(data_type):
        return "{" + ",".join("NULL" if v is None else repr(v) for v in values) + "}"
    return "{" + ",".join("NULL" if v is None else str(v) for v in values) + "}"


def _quoted(values: list[str | None]) -> str:
    if not values:
        return "{}"
    if None in values:
        return "{" + ",".join("NULL" if v is None else f'"{_escaped(v)}"' for v in values) + "}"
    # Replace in the whole string, not per element: the loop then runs in C.
    joined = _escaped(_SEPARATOR.join(values))  # type: ignore[arg-type]  # no None in it
    return '{"' + joined.replace(_SEPARATOR, '","') + '"}'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
