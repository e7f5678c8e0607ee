"""Records as the columns that a source emits. What cannot be decoded is named by topic, partition and
offset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from txstream.api.errors import DecodeError
from txstream.spouts.json_values import BadValueError, JsonReader
from txstream.spouts.kafka_protocol import Partition
from txstream.spouts.kafka_records import Headers, RecordColumns, first_invalid

_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_SHOWN_BYTES = 200


def json_columns(reader: JsonReader, partition: Partition, columns: RecordColumns) -> list[pa.Array]:
    """The fields of the values. Raises DecodeError, which shows the beginning of the value that cannot be
    read."""
    try:
        return reader.read(columns.values)
    except BadValueError as bad:
        value = columns.values[bad.row] or b""
        shown = repr(value[:_SHOWN_BYTES].decode(errors="backslashreplace"))
        if len(value) > _SHOWN_BYTES:
            shown = f"{shown}... ({len(value):,} bytes)"
        raise DecodeError(
            f"the value of the record at offset {columns.offsets[bad.row]} of topic {partition.topic!r}, "
            f"partition {partition.number}, does not fit the schema: {bad.reason}; the value is {shown}; "
            f"correct the schema, or read with value_format='string' and decide in a bolt"
        ) from bad


def kafka_column(
    name: str, data_type: pa.DataType, partition: Partition, columns: RecordColumns, replace: bool
) -> pa.Array:
    """One of Kafka's columns. Raises DecodeError for invalid UTF-8, unless it is to be replaced."""
    rows = len(columns)
    match name:
        case "key":
            return _payload("key", columns.keys, data_type, partition, columns, replace)
        case "value":
            return _payload("value", columns.values, data_type, partition, columns, replace)
        case "topic":
            return pa.repeat(pa.scalar(partition.topic, data_type), rows)
        case "partition":
            return pa.repeat(pa.scalar(partition.number, data_type), rows)
        case "offset":
            return pa.array(columns.offsets, data_type)
        case "timestamp":
            return pa.array(columns.timestamps, pa.int64()).cast(_MILLISECONDS).cast(data_type)
        case "timestampType":
            return pa.Array.from_buffers(data_type, rows, [None, pa.py_buffer(columns.timestamp_types)])
        case "headers":
            return _headers(columns, data_type, partition, replace)
        case _:
            raise ValueError(f"Kafka has no column {name!r}")


def _payload(
    what: str,
    column: list[bytes | None],
    data_type: pa.DataType,
    partition: Partition,
    columns: RecordColumns,
    replace: bool,
) -> pa.Array:
    """Keys or values. Arrow checks UTF-8 for the whole column; the culprit is looked for only if there is
    one."""
    if column.count(None) == len(column):
        return pa.nulls(len(column), data_type)
    raw = pa.array(column, pa.binary())
    if data_type == pa.binary():
        return raw
    try:
        return raw.cast(data_type)
    except pa.ArrowInvalid:
        invalid = first_invalid(column)
        if invalid is None:
            raise
        if replace:
            return pa.array([v if v is None else v.decode(errors="replace") for v in column], data_type)
        row, error = invalid
        raise _not_utf8(what, partition, columns.offsets[row], error) from error


def _headers(columns: RecordColumns, data_type: pa.DataType, partition: Partition, replace: bool) -> pa.Array:
    """Null where a record has none, as Spark has it."""
    rows = len(columns)
    if not columns.headers:
        return pa.nulls(rows, data_type)
    shown: list[list[dict[str, Any]] | None] = [None] * rows
    for row, headers in columns.headers.items():
        try:
            shown[row] = _decoded(headers, "replace" if replace else "strict")
        except UnicodeDecodeError as error:
            raise _not_utf8("name of a header", partition, columns.offsets[row], error) from error
    return pa.array(shown, data_type)


def _decoded(headers: Headers, errors: str) -> list[dict[str, Any]]:
    return [{"key": key.decode(errors=errors), "value": value} for key, value in headers]


def _not_utf8(what: str, partition: Partition, offset: int, error: UnicodeDecodeError) -> DecodeError:
    return DecodeError(
        f"the {what} of the record at offset {offset} of topic {partition.topic!r}, partition "
        f"{partition.number}, is not UTF-8 ({error.reason} at byte {error.start}); read it with "
        f"errors='replace' or as 'binary'"
    )
