"""Kafka's record batches, from the bytes of a fetch response into Arrow columns.

Invariants:

- Only records with offsets in `[start, end)` that a consumer of the isolation level may see reach the
  columns: no control records, and under read_committed none of an aborted transaction.
- The position returned by `decode_records` is behind every batch it has read, also where compaction, a marker
  or an aborted transaction left nothing to show; it never passes a batch that it has not read.
- Every batch's checksum is compared before anything in it is believed.

This is the reader's hot path, about a microsecond for each record: the loop in `_read_records` is written out
on purpose. The format is that of Kafka's documentation, "Record Batch" (magic 2); older ones are refused.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from kafka.record.util import calc_crc32c, decode_varint

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
_MAGIC_AT = 16
_CRC_COVERS_FROM = 21
_OLD_CRC = slice(12, 16)  # formats 0 and 1: it covers the rest from the magic on
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_XERIAL_MAGIC = b"\x82SNAPPY\x00"

Headers = list[tuple[bytes, bytes | None]]


class AbortedTransaction(Protocol):
    producer_id: int
    first_offset: int


class CorruptBatchError(Exception):
    """A batch is damaged: `offset` is its first one. Another fetch may bring it whole."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


class OldFormatError(Exception):
    """The records at `offset` are in message format 0 or 1, from before Kafka 0.11."""

    def __init__(self, offset: int, magic: int) -> None:
        super().__init__(offset, magic)
        self.offset = offset
        self.magic = magic


class RecordColumns:
    """Columns under construction, as Python lists of equal length; headers only where a record has some."""

    __slots__ = ("headers", "keys", "offsets", "size_bytes", "timestamp_types", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.timestamps: list[int] = []
        self.timestamp_types = array("i")
        self.headers: dict[int, Headers] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def truncate(self, rows: int) -> None:
        """Drop all rows from `rows` on."""
        for column in (self.keys, self.values, self.offsets, self.timestamps, self.timestamp_types):
            del column[rows:]
        self.headers = {row: headers for row, headers in self.headers.items() if row < rows}

    def cut(self, first: int, start: int, end: int) -> None:
        """Of the rows from `first` on (ascending offsets), keep those in `[start, end)`."""
        high = bisect_left(self.offsets, end, first)
        low = bisect_left(self.offsets, start, first, high)
        for column in (self.keys, self.values, self.offsets, self.timestamps):
            del column[high:], column[first:low]
        if self.headers:
            kept = {}
            for row, headers in self.headers.items():
                if row < first:
                    kept[row] = headers
                elif low <= row < high:
                    kept[row - (low - first)] = headers
            self.headers = kept


def decode_records(
    data: bytes | memoryview,
    start: int,
    end: int,
    columns: RecordColumns,
    *,
    aborted: Iterable[AbortedTransaction] | None = None,
    read_committed: bool = True,
) -> tuple[int, int]:
    """Append the records of `[start, end)` in `data` to `columns`; answer where reading goes on, and how many
    bytes that took.

    A batch that is not there in full (Kafka cuts its answers at a number of bytes) is left for the next
    fetch. Raises CorruptBatchError, and then leaves `columns` as they were, or OldFormatError.
    """
    rows = len(columns)
    try:
        return _decode(memoryview(data), start, end, columns, aborted or (), read_committed)
    except CorruptBatchError:
        columns.truncate(rows)
        raise


def _decode(
    view: memoryview,
    start: int,
    end: int,
    columns: RecordColumns,
    aborted: Iterable[AbortedTransaction],
    read_committed: bool,
) -> tuple[int, int]:
    size = len(view)
    waiting = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    position = start
    at = 0
    while at + _PREFIX.size < size and position < end:
        base, length = _PREFIX.unpack_from(view, at)
        stop = at + _PREFIX.size + length
        if stop > size:
            break
        batch = view[at:stop]
        at = stop
        if len(batch) <= _MAGIC_AT:
            raise CorruptBatchError(base, f"it has only {len(batch)} bytes")
        magic = batch[_MAGIC_AT]
        if magic < 2 and int.from_bytes(batch[_OLD_CRC]) == zlib.crc32(batch[_MAGIC_AT:]):
            raise OldFormatError(base, magic)
        if magic != 2 or len(batch) < _HEADER.size:
            raise CorruptBatchError(base, f"its format {magic} with {len(batch)} bytes is unknown")
        (_, _, _, _, crc, attributes, last_delta, first_time, last_time, producer, _, _, count) = (
            _HEADER.unpack_from(batch)
        )
        if calc_crc32c(batch[_CRC_COVERS_FROM:]) != crc:
            raise CorruptBatchError(base, "its checksum does not match")
        following = base + last_delta + 1
        if following <= start:
            continue
        position = max(position, following)
        if read_committed and producer >= 0:
            while waiting and waiting[-1].first_offset < following:
                aborting.add(waiting.pop().producer_id)
        if attributes & _CONTROL:
            if read_committed and _is_abort_marker(batch, base):
                aborting.discard(producer)
            continue
        if base >= end or (attributes & _TRANSACTIONAL and producer in aborting):
            continue
        body, records_at = _body(batch, attributes & _CODEC_MASK, base)
        log_append = bool(attributes & _LOG_APPEND_TIME)
        first = len(columns)
        try:
            if start > base and count == last_delta + 1:  # no gaps: what lies before the range is counted off
                records_at = _skip_records(body, records_at, start - base)
                count -= start - base
            done = _read_records(body, records_at, count, base, first_time, end - base, columns)
        except (IndexError, ValueError) as error:
            raise CorruptBatchError(base, f"its records cannot be read: {error}") from error
        if done != len(body) and following <= end:
            raise CorruptBatchError(base, f"{len(body) - done} bytes follow its last record")
        if base < start or following > end:
            columns.cut(first, start, end)
        rows = len(columns) - first
        if log_append:
            columns.timestamps[first:] = [last_time] * rows
        columns.timestamp_types.extend([int(log_append)] * rows)
        columns.size_bytes += len(body)
    return position, at


def _skip_records(data: bytes, at: int, count: int) -> int:
    for _ in range(count):
        length, at = decode_varint(data, at)
        at += length
    return at


def _read_records(
    data: bytes, at: int, count: int, base: int, first_time: int, stop_delta: int, columns: RecordColumns
) -> int:
    """Read `count` records, or up to the first with an offset delta of `stop_delta`; answer where it ended.

    Zigzag varints: an even byte below 128 is a small number, 1 is -1 (null).
    """
    add_key, add_value = columns.keys.append, columns.values.append
    add_offset, add_time = columns.offsets.append, columns.timestamps.append
    for _ in range(count):
        begin = at
        number = data[at]
        if number < 128:
            at += 1
            stop = at + (number >> 1)
        elif data[at + 1] < 128:
            stop = at + 2 + (((number & 127) | (data[at + 1] << 7)) >> 1)
            at += 2
        else:
            length, at = decode_varint(data, at)
            stop = at + length
        at += 1  # attributes: none are defined
        number = data[at]
        if number < 128:
            at += 1
            time = first_time + ((number >> 1) ^ -(number & 1))
        else:
            delta, at = decode_varint(data, at)
            time = first_time + delta
        number = data[at]
        if number < 128:
            at += 1
            delta = number >> 1
        elif data[at + 1] < 128:
            delta = ((number & 127) | (data[at + 1] << 7)) >> 1
            at += 2
        else:
            delta, at = decode_varint(data, at)
        if delta >= stop_delta:
            return begin
        number = data[at]
        if number == 1:
            at += 1
            key = None
        else:
            if number < 128:
                at += 1
                length = number >> 1
            else:
                length, at = decode_varint(data, at)
            key = data[at : at + length]
            at += length
        number = data[at]
        if number == 1:
            at += 1
            value = None
        else:
            if number < 128:
                at += 1
                length = number >> 1
            elif data[at + 1] < 128:
                length = ((number & 127) | (data[at + 1] << 7)) >> 1
                at += 2
            else:
                length, at = decode_varint(data, at)
            value = data[at : at + length]
            at += length
        if data[at] == 0:
            at += 1
        else:
            headers, at = _read_headers(data, at)
            columns.headers[len(columns.offsets)] = headers
        if at != stop:
            raise ValueError(f"a record ends at byte {at} instead of {stop}")
        add_key(key)
        add_value(value)
        add_offset(base + delta)
        add_time(time)
    return at


def _read_headers(data: bytes, at: int) -> tuple[Headers, int]:
    headers: Headers = []
    count, at = decode_varint(data, at)
    for _ in range(count):
        length, at = decode_varint(data, at)
        key = data[at : at + length]
        at += length
        length, at = decode_varint(data, at)
        if length < 0:
            headers.append((key, None))
        else:
            headers.append((key, data[at : at + length]))
            at += length
    return headers, at


def _is_abort_marker(batch: memoryview, base: int) -> bool:
    """A control batch has one record, whose key is its version and its kind: 0 is an abort."""
    marker = RecordColumns()
    try:
        _read_records(bytes(batch), _HEADER.size, 1, base, 0, 1 << 62, marker)
    except (IndexError, ValueError) as error:
        raise CorruptBatchError(base, f"its control record cannot be read: {error}") from error
    key = marker.keys[0]
    return key is not None and len(key) >= 4 and key[2:4] == b"\x00\x00"


def _body(batch: memoryview, codec: int, base: int) -> tuple[bytes, int]:
    """The records' bytes, decompressed, and where they begin."""
    if codec == 0:
        return bytes(batch), _HEADER.size
    packed = bytes(batch[_HEADER.size :])
    try:
        if codec == 1:
            return gzip.decompress(packed), 0
        if codec == 2:
            return _snappy(packed), 0
        if codec in (3, 4):
            with pa.CompressedInputStream(pa.BufferReader(packed), {3: "lz4", 4: "zstd"}[codec]) as stream:
                return stream.read(), 0
    except (OSError, EOFError, ValueError, IndexError, struct.error) as error:
        raise CorruptBatchError(base, f"it cannot be decompressed: {error}") from error
    raise CorruptBatchError(base, f"its compression {codec} is unknown")


def _snappy(packed: bytes) -> bytes:
    """Raw snappy, or the framing that Java's snappy stream writes: a header of 16 bytes, then blocks."""
    if not packed.startswith(_XERIAL_MAGIC):
        return _snappy_block(packed)
    blocks: list[bytes] = []
    at = 16
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        at += 4
        blocks.append(_snappy_block(packed[at : at + length]))
        at += length
    return b"".join(blocks)


def _snappy_block(block: bytes) -> bytes:
    size = shift = 0
    for byte in block:  # a block begins with its uncompressed size, in groups of seven bits
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    unpacked: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return unpacked


def first_invalid(column: Sequence[Any]) -> tuple[int, UnicodeDecodeError] | None:
    """The row of the first value that is not UTF-8, and why."""
    for row, value in enumerate(column):
        if value is not None:
            try:
                value.decode()
            except UnicodeDecodeError as error:
                return row, error
    return None
