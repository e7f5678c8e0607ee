"""COPY: rows that are new go into PostgreSQL as a stream of text, which Arrow makes a column at a time."""

from __future__ import annotations

from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from txstream.state.sql.dialect import BulkInsert
from txstream.state.sql.errors import wrapped
from txstream.state.sql.server_timeouts import driver_of

_PIECE_BYTES = 1 << 18
_TEXT = pa.large_string()
# The backslash first, or it would escape the others' escapes. COPY reads \N as NULL.
_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_NULL = "\\N"
_SAVEPOINT = "txstream_copy"


class CopyInsert(BulkInsert):
    chunk_rows: ClassVar[int] = 50_000
    least_rows: ClassVar[int] = 200  # fewer are not worth a savepoint

    def __init__(self, table: Table) -> None:
        self._names = [column.name for column in table.columns if {"key", "delta"} & column.info.keys()]
        txid = [column.name for column in table.columns if "txid" in column.info]
        self._has_txid, self._is_keyed = bool(txid), len(table.primary_key.columns) > 0
        self._sql = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier(str(table.name)), sql.SQL(", ").join(map(sql.Identifier, [*self._names, *txid]))
        )

    def execute(self, connection: Connection, rows: pa.Table, txid: int) -> int | None:
        columns = [copy_text(rows.column(name)) for name in self._names]
        body = copy_body(columns, txid if self._has_txid else None)
        if not self._is_keyed:
            return self._copy(connection, body)
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        try:
            written = self._copy(connection, body)
        except DBAPIError as error:
            if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                raise
            connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return None
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return written

    def _copy(self, connection: Connection, body: memoryview) -> int:
        driver: Any = driver_of(connection)
        try:
            with driver.cursor() as cursor:
                with cursor.copy(self._sql) as copy:
                    for start in range(0, len(body), _PIECE_BYTES):
                        copy.write(body[start : start + _PIECE_BYTES])
                return int(cursor.rowcount)
        except psycopg.Error as error:
            raise wrapped(error, connection) from error


def copy_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as COPY's text format has it, before the nulls are put in."""
    data_type = column.type
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        values = (None if value is None else f"\\\\x{value.hex()}" for value in column.to_pylist())
        return pa.chunked_array([pa.array(values, _TEXT)])
    if pa.types.is_timestamp(data_type) and data_type.tz is not None:
        # Arrow takes ten times as long for a text with a zone. The value itself is in UTC.
        in_utc = column.cast(pa.timestamp(data_type.unit)).cast(_TEXT)
        return pc.binary_join_element_wise(in_utc, pa.scalar("Z", _TEXT), pa.scalar("", _TEXT))
    text = column.cast(_TEXT)
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        for plain, escaped in _ESCAPES:
            if pc.any(pc.match_substring(text, plain)).as_py():
                text = pc.replace_substring(text, plain, escaped)
    return text


def copy_body(columns: list[pa.ChunkedArray], txid: int | None) -> memoryview:
    """Return the rows as COPY reads them: columns between tabs, the txid last, a line for each row."""
    tab, line, nothing = (pa.scalar(text, _TEXT) for text in ("\t", "\n", ""))
    last = [] if txid is None else [pa.scalar(str(txid), _TEXT)]
    nulls = {"null_handling": "replace", "null_replacement": _NULL}
    rows = pc.binary_join_element_wise(*columns, *last, tab, **nulls)
    lines = pc.binary_join_element_wise(rows, nothing, line)
    whole = lines.combine_chunks() if isinstance(lines, pa.ChunkedArray) else lines
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    return memoryview(whole.buffers()[2])
