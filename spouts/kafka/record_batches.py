"""Kafka's record batches, from the bytes of a fetch response into Arrow columns.

Invariants:

- Only records with offsets in `[start, end)` that a consumer of the isolation level may see reach the
  columns: no control records, and under read_committed none of an aborted transaction.
- The position that `decode_records` reaches is past every batch it has read, even if compaction, a marker or
  an aborted transaction left nothing to show. It is never past a batch that was not read.
- Every batch's checksum is compared before its content is used.
- Damage in one partition changes nothing in the others.

Batches, also of several partitions, are decoded together if possible, otherwise record by record by
kafka-python, which finds what is wrong. A partition's error is always that of its first bad batch. The format
is described in Kafka's documentation, "Record Batch" (magic 2); older formats are refused.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import calc_crc32c

from txstream.spouts.kafka.decode_numpy import Piece, RecordBatch, decode
from txstream.spouts.kafka.record_blocks import Block, Records

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_MOST_SNAPPY_EXPANDS = 64  # snappy's longest copy makes 64 bytes from 3

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
_EPOCH_PREFIX = struct.Struct(">qii")
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_OFFSETS_UP_TO = _LAST_DELTA_AT + _LAST_DELTA.size
_MAGIC_AT = 16
_CRC_COVERS_FROM = 21
_OLD_CRC = slice(12, 16)  # formats 0 and 1: it covers everything from the magic on
_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_TOGETHER_BYTES = 1 << 20  # more at once would not fit the processor's cache


class AbortedTransaction(Protocol):
    producer_id: int
    first_offset: int


class CorruptBatchError(Exception):
    """A batch is damaged; `offset` is its first offset. Another fetch may bring it undamaged."""

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


@dataclass(slots=True, eq=False)
class Fetched:
    """What a fetch brought of a partition's log, of which the records in `[start, end)` are wanted, and what
    `decode_records` makes of it.

    `position` is where reading continues. `size` is the number of bytes up to there, in batches that cover
    `covered` offsets; `unpacked` is the size of their records. `largest` is the size of the largest batch,
    even if that one was cut off. `last_epoch` is the leader epoch in which the offset before `end` was
    written, once its batch was read and if that names one. `rest_at` is where `data` goes on behind `end`, if
    need be with the batch that `end` lies in. With an `error` the rest does not count.
    """

    data: bytes | memoryview
    start: int
    end: int
    aborted: Iterable[AbortedTransaction] | None = None
    blocks: list[Block] = field(default_factory=list)
    position: int = field(init=False)
    size: int = 0
    covered: int = 0
    unpacked: int = 0
    largest: int = 0
    last_epoch: int | None = None
    rest_at: int = 0
    error: CorruptBatchError | OldFormatError | None = None

    def __post_init__(self) -> None:
        self.position = self.start


def decode_records(parts: Iterable[Fetched], *, read_committed: bool = True) -> None:
    """Decode what was fetched of several partitions.

    An incomplete batch (Kafka cuts its answers at a number of bytes) is left for the next fetch.
    """
    together: list[tuple[Fetched, list[RecordBatch]]] = []
    size = 0
    for part in parts:
        batches: list[RecordBatch] = []
        together.append((part, batches))
        try:
            for batch in _batches(part, read_committed):
                batches.append(batch)
                part.unpacked += len(batch.body)
                size += len(batch.body)
                if size >= _TOGETHER_BYTES:
                    _decode(together)
                    batches = []
                    together, size = [(part, batches)], 0
                    if part.error is not None:
                        break
        except (CorruptBatchError, OldFormatError) as error:
            part.error = error  # replaced if an earlier batch, not decoded yet, turns out to be bad
    _decode(together)


def position_behind(data: bytes | memoryview, start: int, end: int) -> int:
    """Return the position that `decode_records` will reach, unless a batch is damaged."""
    position, at, size = start, 0, len(data)
    while at + _OFFSETS_UP_TO <= size and position < end:
        base, length = _PREFIX.unpack_from(data, at)
        (last_delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
        at += _PREFIX.size + length
        if at > size or length < 0:
            break
        position = max(position, base + last_delta + 1)
    return position


def epoch_before(data: bytes, end: int) -> int | None:
    """Return the leader epoch of the offset before `end`; None if its batch is not there as a whole, or names
    none. The batch is not checked."""
    at = 0
    while at + _OFFSETS_UP_TO <= len(data):
        base, length, epoch = _EPOCH_PREFIX.unpack_from(data, at)
        (last_delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
        at += _PREFIX.size + length
        if at > len(data) or length < 0 or base >= end:
            return None
        if end <= base + last_delta + 1:
            return epoch if epoch >= 0 else None
    return None


def _batches(part: Fetched, read_committed: bool) -> Iterator[RecordBatch]:
    """Yield the batches that may be seen. `position` and `size` advance past those that were read."""
    view, start, end = memoryview(part.data), part.start, part.end
    size = len(view)
    waiting = sorted(part.aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    while part.size + _PREFIX.size < size and part.position < end:
        base, length = _PREFIX.unpack_from(view, part.size)
        stop = part.size + _PREFIX.size + length
        part.largest = max(part.largest, _PREFIX.size + length)
        if stop > size:
            break
        batch = view[part.size : stop]
        part.size = stop
        if len(batch) <= _MAGIC_AT:
            raise CorruptBatchError(base, f"it has only {len(batch)} bytes")
        magic = batch[_MAGIC_AT]
        if magic < 2 and int.from_bytes(batch[_OLD_CRC]) == zlib.crc32(batch[_MAGIC_AT:]):
            raise OldFormatError(base, magic)
        if magic != 2 or len(batch) < _HEADER.size:
            raise CorruptBatchError(base, f"its format {magic} with {len(batch)} bytes is unknown")
        (_, _, epoch, _, crc, attributes, last_delta, first_time, last_time, producer, _, _, count) = (
            _HEADER.unpack_from(batch)
        )
        if calc_crc32c(batch[_CRC_COVERS_FROM:]) != crc:
            raise CorruptBatchError(base, "its checksum does not match")
        following = base + last_delta + 1
        part.rest_at = stop if following <= end else stop - len(batch)
        part.covered += last_delta + 1
        if following <= start:
            continue
        part.position = max(part.position, following)
        if base < end <= following and epoch >= 0:
            part.last_epoch = epoch
        if read_committed and producer >= 0:
            while waiting and waiting[-1].first_offset < following:
                aborting.add(waiting.pop().producer_id)
        if attributes & _CONTROL:
            marker = RecordBatch(base, following, count, first_time, None, batch, _HEADER.size)
            if read_committed and _is_abort_marker(marker):
                aborting.discard(producer)
            continue
        if base >= end or (attributes & _TRANSACTIONAL and producer in aborting):
            continue
        codec = attributes & _CODEC_MASK
        yield RecordBatch(
            base=base,
            following=following,
            records=count,
            first_time=first_time,
            append_time=last_time if attributes & _LOG_APPEND_TIME else None,
            body=_unpacked(batch, codec, base) if codec else batch,
            records_at=0 if codec else _HEADER.size,
        )


def _unpacked(batch: memoryview, codec: int, base: int) -> bytes:
    try:
        return unpack(bytes(batch[_HEADER.size :]), codec)
    except ValueError as error:
        raise CorruptBatchError(base, str(error)) from error


def _decode(together: Iterable[tuple[Fetched, Sequence[RecordBatch]]]) -> None:
    """Decode the batches. A part's error becomes that of its first batch whose records cannot be read."""
    parts = [(part, batches) for part, batches in together if batches]
    if not parts:
        return
    blocks = decode([Piece(batches, part.start, part.end) for part, batches in parts])
    if blocks is not None:
        for (part, _), block in zip(parts, blocks, strict=True):
            part.blocks.append(block)
    elif len(parts) > 1:
        for alone in parts:
            _decode([alone])
    else:
        ((part, batches),) = parts
        try:
            part.blocks += [_decode_one_by_one(batch, part.start, part.end) for batch in batches]
        except CorruptBatchError as error:
            part.error = error


def _decode_one_by_one(batch: RecordBatch, start: int, end: int) -> Block:
    records = _records(batch)
    offsets = [batch.base, *(record.offset for record in records), batch.following - 1]
    if records and offsets != sorted(offsets):
        raise CorruptBatchError(batch.base, f"its records have the offsets {offsets[1:-1]}")
    wanted = [record for record in records if start <= record.offset < end]
    try:
        return Records(
            np.array([record.offset for record in wanted], np.int64),
            np.array([record.timestamp for record in wanted], np.int64),
            np.full(len(wanted), batch.append_time is not None),
            [record.key for record in wanted],
            [record.value for record in wanted],
            {
                row: [(name.encode(), value) for name, value in record.headers]
                for row, record in enumerate(wanted)
                if record.headers
            },
        ).block
    except OverflowError as error:
        raise CorruptBatchError(batch.base, f"its records cannot be read: {error}") from error


def _records(batch: RecordBatch) -> list[Any]:
    """Return all records of a batch as kafka-python reads them. It is given a header of a batch that is
    neither compressed nor of a transaction, since what that header says has been seen to."""
    attributes, time = (0, 0) if batch.append_time is None else (_LOG_APPEND_TIME, batch.append_time)
    last_delta = batch.following - batch.base - 1
    header = _HEADER.pack(
        batch.base, 0, -1, 2, 0, attributes, last_delta, batch.first_time, time, -1, -1, -1, batch.records
    )  # fmt: skip
    try:
        return list(DefaultRecordBatch(header + bytes(batch.body[batch.records_at :])))
    except CorruptRecordError as error:
        raise CorruptBatchError(batch.base, f"its records cannot be read: {error}") from error


def _is_abort_marker(batch: RecordBatch) -> bool:
    """A control batch has one record, or none after a compaction; its key holds a version and a kind, of
    which 0 is an abort."""
    return any(record.key is not None and record.key[2:4] == b"\x00\x00" for record in _records(batch))


def unpack(packed: bytes, codec: int) -> bytes:
    """Return the bytes, unpacked. Raises ValueError, with the reason, when that fails."""
    if codec not in (1, 2, 3, 4):
        raise ValueError(f"its compression {codec} is unknown")
    try:
        if codec == 1:
            return gzip.decompress(packed)
        if codec == 2:
            return _snappy(packed)
        with pa.CompressedInputStream(pa.BufferReader(packed), {3: "lz4", 4: "zstd"}[codec]) as stream:
            unpacked: bytes = stream.read()
            return unpacked
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


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
    if size > _MOST_SNAPPY_EXPANDS * len(block):
        raise ValueError(f"a block of {len(block)} bytes claims to have {size}")
    unpacked: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return unpacked
