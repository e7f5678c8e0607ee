"""Turns records, also those of dead letters, into the columns that a source emits.
Errors name topic, partition and offset.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import DecodeError
from txstream.spouts.formats.value_formats import BadValueError, ValueFormat, ValueService
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import Headers, RecordColumns, Records
from txstream.spouts.kafka.record_times import record_times

_SHOWN_BYTES = 200


class Readers(NamedTuple):
    """What turns the values and the keys of a source into columns, where they have schemas. They raise
    BadValueError, and ServiceUnavailableError while a service that they ask is away."""

    value: Callable[[Sequence[bytes | None]], list[pa.Array]] | None = None
    key: Callable[[Sequence[bytes | None]], pa.Array] | None = None


def readers(source: KafkaSource, context: SpoutContext) -> Readers:
    """Return the readers of a source's values and keys."""
    key = None if source.key_schema is None else source.key_schema.reader(context).read
    if source.value_schema is None:
        return Readers(None, key)
    read = source.value_schema.reader(context).read
    return Readers(lambda values: read(values).flatten(), key)


def services(source: KafkaSource, context: SpoutContext) -> list[ValueService]:
    """Return the services that the readers of a source ask, each once."""
    formats = [one for one in (source.value_schema, source.key_schema) if one is not None]
    asked = [service for one in formats if (service := one.service(context)) is not None]
    return list({service.shown: service for service in asked}.values())


def record_batch(
    source: KafkaSource, read: Readers, partition: Partition, columns: RecordColumns
) -> pa.RecordBatch:
    """Return records as a source emits them. `read` are its `readers`. Raises DecodeError."""
    return _made(source, read, [(partition, columns)], columns)


def joined_batch(
    source: KafkaSource, read: Readers, parts: Sequence[tuple[Partition, RecordColumns]]
) -> pa.RecordBatch:
    """Return the records of several partitions, one after the other. They are made together, since every
    array has a fixed cost. Raises DecodeError."""
    if len(parts) > 1:
        with suppress(DecodeError):  # decoded one by one, below, the error names its partition
            return _made(source, read, parts, RecordColumns.joined(columns for _, columns in parts))
    return pa.concat_batches([record_batch(source, read, *part) for part in parts])


def _made(
    source: KafkaSource,
    read: Readers,
    parts: Sequence[tuple[Partition, RecordColumns]],
    columns: RecordColumns,
) -> pa.RecordBatch:
    """Return the records of the parts, which `columns` has all of. An error names the first partition."""
    arrays: list[pa.Array] = []
    partition = parts[0][0]
    if read.value is not None:
        raw = columns.values.to_pylist()
        try:
            arrays = read.value(raw)
        except BadValueError as bad:
            raise _misfit("value", source.value_schema, raw, partition, columns, bad) from bad
    for name in source.kafka_columns:
        if name == "key" and read.key is not None:
            raw = columns.keys.to_pylist()
            try:
                arrays.append(read.key(raw))
            except BadValueError as bad:
                raise _misfit("key", source.key_schema, raw, partition, columns, bad) from bad
            continue
        data_type = source.output.field(name).type
        if name in ("topic", "partition"):
            arrays.append(_places(name, data_type, parts))
        else:
            replace = source.errors == "replace"
            any_time = source.takes_any_time
            arrays.append(kafka_column(name, data_type, partition, columns, replace, any_time))
    return pa.RecordBatch.from_arrays(arrays, schema=source.output)


def _places(name: str, data_type: pa.DataType, parts: Sequence[tuple[Partition, RecordColumns]]) -> pa.Array:
    """Return the column "topic" or "partition"."""
    values = [partition.topic if name == "topic" else partition.number for partition, _ in parts]
    rows = [len(columns) for _, columns in parts]
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], data_type), sum(rows))
    return pa.array(np.repeat(np.array(values, object if name == "topic" else None), rows), data_type)


def _misfit(
    what: str,
    read_as: ValueFormat | None,
    raw: Sequence[bytes | None],
    partition: Partition,
    columns: RecordColumns,
    bad: BadValueError,
) -> DecodeError:
    """Return the error of a bad value or key, which shows its beginning."""
    value = raw[bad.row] or b""
    shown = repr(value[:_SHOWN_BYTES].decode(errors="backslashreplace"))
    if len(value) > _SHOWN_BYTES:
        shown = f"{shown}... ({len(value):,} bytes)"
    instead = "string" if read_as is not None and read_as.is_text else "binary"
    return DecodeError(
        f"the {what} of the record at offset {columns.offsets[bad.row]} of topic {partition.topic!r}, "
        f"partition {partition.number}, does not fit the schema: {bad.reason}; the {what} is {shown}; "
        f"correct the schema, or read with {what}_format={instead!r} and decide in a bolt"
    )


def kafka_column(
    name: str,
    data_type: pa.DataType,
    partition: Partition,
    columns: RecordColumns,
    replace: bool,
    takes_any_time: bool = False,
) -> pa.Array:
    """Return one of Kafka's columns. Raises DecodeError for invalid UTF-8, unless `replace` is set, and for a
    time that is no date, unless any is taken."""
    match name:
        case "key":
            return _payload("key", columns.keys, data_type, partition, columns, replace)
        case "value":
            return _payload("value", columns.values, data_type, partition, columns, replace)
        case "topic" | "partition":
            return _places(name, data_type, [(partition, columns)])
        case "offset":
            return pa.array(columns.offsets, data_type)
        case "timestamp":
            return record_times(data_type, partition, columns, takes_any=takes_any_time)
        case "timestampType":
            return pa.array(columns.timestamp_types, data_type)
        case "headers":
            return _headers(columns, data_type, partition, replace)
        case _:
            raise ValueError(f"Kafka has no column {name!r}")


def _payload(
    what: str,
    raw: pa.Array,
    data_type: pa.DataType,
    partition: Partition,
    columns: RecordColumns,
    replace: bool,
) -> pa.Array:
    """Keys or values. Arrow checks UTF-8 for the whole column; the bad row is looked for only if it fails."""
    if data_type == pa.binary():
        return raw
    try:
        return raw.cast(data_type)
    except pa.ArrowInvalid:
        column = raw.to_pylist()
        invalid = _first_invalid(column)
        if invalid is None:
            raise
        if replace:
            return pa.array([v if v is None else v.decode(errors="replace") for v in column], data_type)
        row, error = invalid
        raise _not_utf8(what, partition, columns.offsets[row], error) from error


def _first_invalid(column: Iterable[bytes | None]) -> tuple[int, UnicodeDecodeError] | None:
    """The row of the first value that is not UTF-8, and why."""
    for row, value in enumerate(column):
        if value is not None:
            try:
                value.decode()
            except UnicodeDecodeError as error:
                return row, error
    return None


def _headers(columns: RecordColumns, data_type: pa.DataType, partition: Partition, replace: bool) -> pa.Array:
    """The headers, null where a record has none, as in Spark's source."""
    rows = len(columns)
    found = columns.headers
    if not found:
        return pa.nulls(rows, data_type)
    shown: list[list[dict[str, Any]] | None] = [None] * rows
    for row, headers in found.items():
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


def decoded(source: KafkaSource, context: SpoutContext, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return the records as the source emits them. Raises DecodeError. The type of a timestamp is not
    kept: it counts as the producer's."""
    if not letters:
        return pa.RecordBatch.from_pylist([], schema=source.output)
    return joined_batch(source, readers(source, context), [_part(letter) for letter in letters])


def _part(letter: DeadLetter) -> tuple[Partition, RecordColumns]:
    if letter.topic is None or letter.partition is None or letter.offset is None:
        raise DecodeError(f"{letter.source} is no record of Kafka")
    headers = _stored_headers(letter)
    records = Records(
        np.array([letter.offset], np.int64),
        np.array([-1 if letter.timestamp_ms is None else letter.timestamp_ms], np.int64),
        np.zeros(1, np.bool_),
        [letter.key],
        [letter.value],
        {0: headers} if headers else {},
    )
    return Partition(letter.topic, letter.partition), RecordColumns([records.block])


def _stored_headers(letter: DeadLetter) -> Headers:
    pairs = json.loads(letter.headers or b"[]")
    return [(name.encode(), None if value is None else base64.b64decode(value)) for name, value in pairs]
