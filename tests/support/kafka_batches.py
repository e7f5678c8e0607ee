"""Record batches as brokers send them: built by kafka-python, then patched."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from kafka import TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from txstream.spouts.kafka.record_batches import Fetched, decode_records
from txstream.spouts.kafka.record_blocks import RecordColumns

Headers = list[tuple[str, bytes | None]]
Record = tuple[int, int, bytes | None, bytes | None, Headers]
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
HEADER_BYTES = 61
CONTROL, TRANSACTIONAL, LOG_APPEND = 0x20, 0x10, 0x08


@dataclass
class Aborted:
    producer_id: int
    first_offset: int


def batch(
    base: int,
    records: list[Record],
    *,
    codec: int = NONE,
    attributes: int = 0,
    last_delta: int | None = None,
    producer: int = -1,
    epoch: int = -1,
) -> bytes:
    """Return a batch at offset `base`; the records' offsets are relative to it. The header is patched
    afterwards, because most of it is set by a broker, not by the builder."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=NONE,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 26,
    )
    for delta, timestamp, key, value, headers in records:
        builder.append(delta, timestamp, key, value, headers)
    plain_data = bytearray(builder.build())
    data = plain_data[:HEADER_BYTES] + packed(bytes(plain_data[HEADER_BYTES:]), codec)
    struct.pack_into(">qi", data, 0, base, len(data) - 12)
    struct.pack_into(">i", data, 12, epoch)
    struct.pack_into(">h", data, 21, codec | attributes)
    if last_delta is not None:
        struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">q", data, 43, producer)
    return sealed(data)


def packed(records: bytes, codec: int) -> bytes:
    if codec == GZIP:
        return gzip.compress(records, 1)
    name = {SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}.get(codec)
    return records if name is None else bytes(pa.compress(records, codec=name, asbytes=True))


def sealed(data: bytearray) -> bytes:
    struct.pack_into(">I", data, 17, calc_crc32c(memoryview(data)[21:]))
    return bytes(data)


def plain(base: int, *values: bytes, **options: Any) -> bytes:
    return batch(base, [(i, 1000 + i, None, value, []) for i, value in enumerate(values)], **options)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    key = struct.pack(">hh", 0, int(commit))
    return batch(offset, [(0, 5, key, b"\0" * 6, [])], attributes=CONTROL | TRANSACTIONAL, producer=producer)


def decode(data: bytes, start: int, end: int, columns: RecordColumns, **options: Any) -> tuple[int, int]:
    """Decode what was fetched of one partition; return the position and the size. Raises its error."""
    part = Fetched(data, start, end, options.pop("aborted", None))
    decode_records([part], **options)
    if part.error is not None:
        raise part.error
    columns.add(part.blocks, part.unpacked)
    return part.position, part.size


def consumed(
    data: bytes, start: int, end: int, *, aborted: list[Aborted] | None = None, read_committed: bool = True
) -> tuple[list[Any], ...]:
    """Return the columns that kafka-python's own consumer makes of batches that are not compressed: offsets,
    timestamps, their types, keys, values, headers. A broker's answer begins with the batch that holds
    `start`."""
    while data:
        base, length, last_delta = struct.unpack_from(">qi11xi", data)
        if base + last_delta >= start:
            break
        data = data[12 + length :]
    found = Fetcher.PartitionRecords(
        start,
        TopicPartition("lines", 0),
        MemoryRecords(data),
        isolation_level=IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED,
        aborted_transactions=aborted,
    )
    rows = [
        (one.offset, one.timestamp, one.timestamp_type, one.key, one.value, one.headers)
        for one in found.record_iterator
        if one.offset < end
    ]
    *columns, headers = zip(*rows, strict=True) if rows else [()] * 6
    return *map(list, columns), [[(name.encode(), value) for name, value in one] for one in headers]
