"""Turns records, also those of dead letters, into the columns that a source emits.
Errors name topic, partition and offset.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import DecodeError
from txstream.spouts.formats.unfit_values import BadValueError
from txstream.spouts.formats.value_formats import (
    ValueFormat,
    ValueReader,
    ValueService,
    know,
    read_fit,
    take_fetched,
)
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka.framings import framing_of
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import Headers, Integers, RecordColumns, Records
from txstream.spouts.kafka.record_times import record_times

_SHOWN_BYTES = 200
_MOST_RECOGNISED = 100  # of one read: when more are bad, the first ones tell


Read = Callable[[Sequence[bytes | None]], tuple[list[pa.Array], Mapping[int, str]]]


class Readers(NamedTuple):
    """What turns the values and the keys of a source into columns, where they have schemas. What cannot be
    read is null there; why it cannot comes with it, by row. They raise BadValueError if a bad one may be read
    later, and ServiceUnavailableError while the schema registry is away."""

    value: Read | None = None
    key: Read | None = None
    used: tuple[ValueReader, ...] = ()

    def know(self, known: Mapping[str, str]) -> None:
        """Tell the readers what was fetched before; they refuse another fingerprint."""
        for one in self.used:
            know(one, known)

    def take_fetched(self) -> dict[str, str]:
        """Return what the readers have fetched and used since the last call (`take_fetched`)."""
        return {name: found for one in self.used for name, found in take_fetched(one).items()}


def readers(source: KafkaSource, context: SpoutContext) -> Readers:
    """Return the readers of a source's values and keys."""

    def of_key(read: ValueReader, keys: Sequence[bytes | None]) -> Any:
        array, unfit = read_fit(read, keys)
        return [array], unfit

    def of_value(read: ValueReader, values: Sequence[bytes | None]) -> Any:
        array, unfit = read_fit(read, values)
        return array.flatten(), unfit

    value, key = (
        None if one is None else one.reader(context) for one in (source.value_schema, source.key_schema)
    )
    return Readers(
        None if value is None else partial(of_value, value),
        None if key is None else partial(of_key, key),
        tuple(one for one in (value, key) if one is not None),
    )


def services(source: KafkaSource, context: SpoutContext) -> list[ValueService]:
    """Return the services that the readers of a source ask, each once."""
    formats = [one for one in (source.value_schema, source.key_schema) if one is not None]
    asked = [service for one in formats if (service := one.service(context)) is not None]
    return list({service.shown: service for service in asked}.values())


Part = tuple[Partition, RecordColumns]


def joined_batch(source: KafkaSource, read: Readers, parts: Sequence[Part]) -> pa.RecordBatch:
    """Return the records of several partitions, one after the other, as a source emits them. `read` are its
    `readers`. They are made together, since every array has a fixed cost. Raises DecodeError."""
    batch, unfit = _made(source, read, parts)
    if unfit:
        raise unfit[min(unfit)]
    return batch


class Fitting(NamedTuple):
    """Records without those that cannot be decoded: how many are left of each part, and their offsets."""

    batch: pa.RecordBatch
    counts: list[int]
    offsets: Integers
    unfit: list[tuple[Partition, int, DecodeError]]


def fitting_batch(source: KafkaSource, read: Readers, parts: Sequence[Part]) -> Fitting:
    """As `joined_batch`, without the records that cannot be decoded. Each of these was tried twice, the
    second time by itself; raises DecodeError for one that failed only once."""
    batch, unfit = _made(source, read, parts)
    offsets = _joined([columns for _, columns in parts]).offsets
    counts = [len(columns) for _, columns in parts]
    if not unfit:
        return Fitting(batch, counts, offsets, [])
    rows = sorted(unfit)
    for row in rows:
        part = _part_of(parts, row)
        if not _is_unfit(source, read, (part[0], part[1].at(int(offsets[row])))):
            raise unfit[row]
    found = [(_part_of(parts, row)[0], int(offsets[row]), unfit[row]) for row in rows]
    fits = np.ones(len(offsets), np.bool_)
    fits[rows] = False
    ends = np.cumsum(counts)
    left = [int(fits[end - count : end].sum()) for end, count in zip(ends, counts, strict=True)]
    return Fitting(batch.filter(pa.array(fits)), left, offsets[fits], found)


def _is_unfit(source: KafkaSource, read: Readers, alone: Part) -> bool:
    """Whether a record cannot be decoded by itself."""
    for reader, payloads in ((read.value, alone[1].values), (read.key, alone[1].keys)):
        try:
            if reader is not None and reader(payloads.to_pylist())[1]:
                return True
        except BadValueError:
            return True
    return bool(_made(source, read, [alone])[1])


def _part_of(parts: Sequence[Part], row: int) -> Part:
    for part in parts:
        if row < len(part[1]):
            return part
        row -= len(part[1])
    raise IndexError(row)


def _joined(columns: Sequence[RecordColumns]) -> RecordColumns:
    return columns[0] if len(columns) == 1 else RecordColumns.joined(columns)


def _made(
    source: KafkaSource, read: Readers, parts: Sequence[Part]
) -> tuple[pa.RecordBatch, Mapping[int, DecodeError]]:
    """Return the records of the parts, and the errors of those that cannot be decoded, by row: what they have
    in the batch means nothing."""
    columns = _joined([columns for _, columns in parts])
    arrays: list[pa.Array] = []
    unfit: dict[int, DecodeError] = {}

    def read_by_schema(what: str, read_as: ValueFormat | None, reader: Read, payloads: pa.Array) -> None:
        raw = payloads.to_pylist()

        def error(row: int, reason: str) -> DecodeError:
            looks = None
            if len(unfit) < _MOST_RECOGNISED:
                looks = _looks_like(source, what, columns.row(row))
            return _misfit(
                what,
                read_as,
                raw[row],
                _place(parts, columns, row),
                f"{looks}; {reason}" if looks else reason,
            )

        try:
            found, reasons = reader(raw)
        except BadValueError as bad:
            raise error(bad.row, bad.reason) from bad
        arrays.extend(found)
        for row, reason in reasons.items():
            unfit.setdefault(row, error(row, reason))
        if what == "value" and source.tombstones == "refuse" and payloads.null_count:
            for row in np.flatnonzero(payloads.is_null().to_numpy(zero_copy_only=False)).tolist():
                unfit[row] = DecodeError(
                    f"a record without a value (tombstone) is at {_place(parts, columns, row)}: it has no "
                    f"fields, and deletes its key from a compacted topic; Decode(tombstones='null') reads "
                    f"such records as rows of nulls"
                )

    if read.value is not None:
        read_by_schema("value", source.value_schema, read.value, columns.values)
    for name in source.kafka_columns:
        if name == "key" and read.key is not None:
            read_by_schema("key", source.key_schema, read.key, columns.keys)
            continue
        data_type = source.output.field(name).type
        if name in ("topic", "partition"):
            arrays.append(_places(name, data_type, parts))
            continue
        replace = source.errors == "replace"
        array, refused = _kafka_column(name, data_type, columns, replace, source.takes_any_time)
        arrays.append(array)
        for row, error in refused.items():
            unfit.setdefault(row, error(_place(parts, columns, row)))
    return pa.RecordBatch.from_arrays(arrays, schema=source.output), unfit


def _looks_like(source: KafkaSource, what: str, record: RecordColumns) -> str | None:
    (key,), (value,) = record.keys.to_pylist(), record.values.to_pylist()
    read_as, own, other = source.value_schema, value, key
    if what == "key":
        read_as, own, other = source.key_schema, key, value
    has_ids = read_as is not None and read_as.takes_registry and source.wire_format == "confluent"
    return None if own is None else framing_of(own, other, record.headers.get(0, ()), has_ids=has_ids)


def _place(parts: Sequence[Part], columns: RecordColumns, row: int) -> str:
    partition, offset = _part_of(parts, row)[0], columns.row(row).offsets[0]
    return f"offset {offset} of topic {partition.topic!r}, partition {partition.number}"


def _places(name: str, data_type: pa.DataType, parts: Sequence[tuple[Partition, RecordColumns]]) -> pa.Array:
    """Return the column "topic" or "partition"."""
    values = [partition.topic if name == "topic" else partition.number for partition, _ in parts]
    rows = [len(columns) for _, columns in parts]
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], data_type), sum(rows))
    return pa.array(np.repeat(np.array(values, object if name == "topic" else None), rows), data_type)


def _misfit(
    what: str, read_as: ValueFormat | None, raw: bytes | None, place: str, reason: str
) -> DecodeError:
    """Return the error of a bad value or key, which shows its beginning."""
    value = raw or b""
    shown = repr(value[:_SHOWN_BYTES].decode(errors="backslashreplace"))
    if len(value) > _SHOWN_BYTES:
        shown = f"{shown}... ({len(value):,} bytes)"
    instead = "string" if read_as is not None and read_as.is_text else "binary"
    return DecodeError(
        f"the {what} of the record at {place}, does not fit the schema: {reason}; the {what} is {shown}; "
        f"correct the schema, or read with {what}_format={instead!r} and decide in a bolt"
    )


Refused = Mapping[int, Callable[[str], DecodeError]]
"""By row: what makes the error of a record at a place."""


def _kafka_column(
    name: str, data_type: pa.DataType, columns: RecordColumns, replace: bool, takes_any_time: bool
) -> tuple[pa.Array, Refused]:
    """Return one of Kafka's columns. What is not UTF-8 is refused unless `replace` is set, and a time that is
    no date unless any is taken."""
    match name:
        case "key":
            return _payload("key", columns.keys, data_type, replace)
        case "value":
            return _payload("value", columns.values, data_type, replace)
        case "offset":
            return pa.array(columns.offsets, data_type), {}
        case "timestamp":
            return record_times(data_type, columns, takes_any=takes_any_time)
        case "timestampType":
            return pa.array(columns.timestamp_types, data_type), {}
        case "headers":
            return _headers(columns, data_type, replace)
        case _:
            raise ValueError(f"Kafka has no column {name!r}")


def _payload(what: str, raw: pa.Array, data_type: pa.DataType, replace: bool) -> tuple[pa.Array, Refused]:
    """Keys or values. Arrow checks UTF-8 for the whole column; bad rows are looked for only if it fails."""
    if data_type == pa.binary():
        return raw, {}
    try:
        return raw.cast(data_type), {}
    except pa.ArrowInvalid:
        column = raw.to_pylist()
        invalid = dict(_invalid(column))
        if not invalid:
            raise
    if replace:
        return pa.array([v if v is None else v.decode(errors="replace") for v in column], data_type), {}
    valid = [None if row in invalid else value for row, value in enumerate(column)]
    return pa.array(valid, pa.binary()).cast(data_type), {
        row: partial(_not_utf8, what, why) for row, why in invalid.items()
    }


def _invalid(column: Iterable[bytes | None]) -> Iterator[tuple[int, UnicodeDecodeError]]:
    """Yield the rows of values that are not UTF-8, and why."""
    for row, value in enumerate(column):
        if value is not None:
            try:
                value.decode()
            except UnicodeDecodeError as error:
                yield row, error


def _headers(columns: RecordColumns, data_type: pa.DataType, replace: bool) -> tuple[pa.Array, Refused]:
    """The headers, null where a record has none, as in Spark's source."""
    rows = len(columns)
    found = columns.headers
    if not found:
        return pa.nulls(rows, data_type), {}
    shown: list[list[dict[str, Any]] | None] = [None] * rows
    invalid: dict[int, Callable[[str], DecodeError]] = {}
    for row, headers in found.items():
        try:
            shown[row] = _decoded(headers, "replace" if replace else "strict")
        except UnicodeDecodeError as error:
            invalid[row] = partial(_not_utf8, "name of a header", error)
    return pa.array(shown, data_type), invalid


def _decoded(headers: Headers, errors: str) -> list[dict[str, Any]]:
    return [{"key": key.decode(errors=errors), "value": value} for key, value in headers]


def _not_utf8(what: str, error: UnicodeDecodeError, place: str) -> DecodeError:
    return DecodeError(
        f"the {what} of the record at {place}, is not UTF-8 ({error.reason} at byte {error.start}); read it "
        f"with errors='replace' or as 'binary'"
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
