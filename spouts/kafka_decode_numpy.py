"""The records of many batches at once, of many partitions even, by numpy: no loop per record but the one that
finds where each begins.

Invariants:

- `decode` answers what `kafka_decode_loop` would make of the same batches, or None: whatever is not certain
  to be right is left to the loop, which also has the words for what is wrong. Pieces of several partitions
  make the same blocks together as each by itself.
- A varint is read from all records together. A place that wrong bytes lead to may be outside; then the last
  byte is read instead. In the end each record must end where its length says, and no length may be negative
  but the -1 of a null: so no place was outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from kafka.record.util import decode_varint

from txstream.spouts.kafka_decode_loop import read_headers
from txstream.spouts.kafka_record_blocks import Block, Headers, Integers, Payload, Records

_RUN_WORTH_TRYING = 16
_MOST_VARINT_BYTES = 5
_MOST_DATA_BYTES = 2**31 - 1  # Arrow's offsets of 32 bits
_SAFE_TIME = 2**62

Octets = npt.NDArray[np.uint8]


class RecordBatch(NamedTuple):
    """A batch that has passed its checksum. `body` has its records, unpacked, from `records_at` on;
    `following` is the offset behind it. `append_time` is the broker's time, where it counts instead of the
    producers'."""

    base: int
    following: int
    records: int
    first_time: int
    append_time: int | None
    body: bytes | memoryview
    records_at: int

    @property
    def is_dense(self) -> bool:
        """Has it a record for each of its offsets?"""
        return self.records == self.following - self.base


class _UnfitError(ValueError):
    """These batches are for the loop."""


class Piece(NamedTuple):
    """Consecutive batches of one partition, whose records of `[start, end)` are wanted: only the first may
    begin before `start`, and only the last may end behind `end`."""

    batches: Sequence[RecordBatch]
    start: int
    end: int


def decode(pieces: Sequence[Piece]) -> list[Block] | None:
    """The records of each piece. None when they must be read one by one, or each piece by itself."""
    data = b"".join([batch.body for piece in pieces for batch in piece.batches])
    if len(data) > _MOST_DATA_BYTES:
        return None
    try:
        return _decode(data, pieces)
    except (IndexError, ValueError):
        return None


def _decode(data: bytes, pieces: Sequence[Piece]) -> list[Block]:
    octets = np.frombuffer(data, np.uint8)
    batches = [batch for piece in pieces for batch in piece.batches]
    at, counts = _record_starts(data, octets, pieces)
    length, at = _varints(octets, at)
    stops = at + length
    time_deltas, at = _varints(octets, at + 1)  # behind the attributes, of which none are defined
    offset_deltas, at = _varints(octets, at)
    if (offset_deltas < 0).any():
        raise _UnfitError
    (key_starts, key_lengths), at = _payload(octets, at)
    (value_starts, value_lengths), at = _payload(octets, at)
    headers = _headers(data, octets, at, stops)
    offsets = np.repeat(np.array([batch.base for batch in batches], np.int64), counts) + offset_deltas
    timestamps = _timestamps(batches, counts, time_deltas)
    log_append = np.repeat(np.array([batch.append_time is not None for batch in batches]), counts)
    keys = Payload(data, key_starts, key_lengths)
    values = Payload(data, value_starts, value_lengths)
    records = Records(offsets, timestamps, log_append, keys, values, headers)
    blocks = []
    first = first_batch = 0
    falling = set((np.flatnonzero(offsets[1:] < offsets[:-1]) + 1).tolist())  # but where a piece begins
    for piece in pieces:
        following_batch = first_batch + len(piece.batches)
        following = first + sum(counts[first_batch:following_batch])
        falling.discard(first)
        block = Block(records, first, following)
        if not _is_all_wanted(piece) or (following > first and offsets[following - 1] >= piece.end):
            rows = _rows_within(piece, counts[following_batch - 1], offsets[block.rows], first)
            block = Block(records, rows.start, rows.stop)
        blocks.append(block)
        first, first_batch = following, following_batch
    if falling:
        raise _UnfitError
    return blocks


# --- where records begin ---------------------------------------------------------------------------------


def _record_starts(data: bytes, octets: Octets, pieces: Sequence[Piece]) -> tuple[Integers, list[int]]:
    """Where the records begin, as far as they may be wanted, and how many there are of each batch."""
    found: list[Integers] = []
    few: list[int] = []  # of batches too small for arrays of their own
    counts = []
    first = 0
    for batches, start, end in pieces:
        for batch in batches:
            stop = first + len(batch.body)
            skipped, wanted = 0, batch.records
            if batch.is_dense:  # what lies outside the range is counted off, but for one that shows its end
                skipped = max(0, start - batch.base)
                wanted = min(batch.records, end - batch.base + 1)
            begins: Sequence[int] | Integers
            if wanted < _RUN_WORTH_TRYING:
                begins, at = _begins_one_by_one(data, first + batch.records_at, wanted)
            else:
                begins, at = _batch_starts(data, octets, first + batch.records_at, stop, wanted)
            if at > stop or (at < stop and wanted == batch.records):
                raise _UnfitError
            if skipped:
                if (octets.take(begins[:skipped]) & 1).any():  # a negative length
                    raise _UnfitError
                begins = begins[skipped:]
            counts.append(len(begins))
            if isinstance(begins, list):
                few += begins
            else:
                found += [np.array(few, np.int64), begins]
                few = []
            first = stop
    return np.concatenate([*found, np.array(few, np.int64)]), counts


def _batch_starts(data: bytes, octets: Octets, at: int, stop: int, count: int) -> tuple[Integers, int]:
    """Where `count` records begin, and where the last one ends. Records of one size are found together, until
    they come in runs that are too short for it."""
    runs: list[Integers] = []
    left = count
    while left >= _RUN_WORTH_TRYING:
        alike, size = _run_of_one_size(data, octets, at, stop, left)
        runs.append(np.arange(at, at + alike * size, size))
        at += alike * size
        left -= alike
        if alike < _RUN_WORTH_TRYING:
            break
    begins, at = _begins_one_by_one(data, at, left)
    return np.concatenate([*runs, np.array(begins, np.int64)]), at


def _begins_one_by_one(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    begins: list[int] = []
    add = begins.append
    for _ in range(count):
        add(at)
        number = data[at]
        if number < 128:
            at += 1 + (number >> 1)
        elif (high := data[at + 1]) < 128:
            at += 2 + ((number & 127 | high << 7) >> 1)
        else:
            length, at = decode_varint(data, at)
            at += max(length, 0)
    return begins, at


def _run_of_one_size(data: bytes, octets: Octets, at: int, stop: int, most: int) -> tuple[int, int]:
    """How many records from `at` on have the same length, one at least, and the bytes of each."""
    length, behind = decode_varint(data, at)
    size = behind + length - at
    if length < 0 or at + size > stop:
        raise _UnfitError
    following = data[at + size : at + size + behind - at]
    if following != data[at:behind]:
        return 1, size
    end = at + min(most, (stop - at) // size) * size
    alike = octets[at:end:size] == data[at]
    for place in range(at + 1, behind):
        alike &= octets[place:end:size] == data[place]
    return (len(alike) if alike.all() else int(alike.argmin())), size


# --- what is in them -------------------------------------------------------------------------------------


def _varints(octets: Octets, at: Integers) -> tuple[Integers, Integers]:
    """The zigzag varints at these places, and the places behind them."""
    read = octets.take(at, mode="clip").astype(np.int64)
    at = at + 1
    if read.max(initial=0) < 128:
        return (read >> 1) ^ -(read & 1), at
    number = read & 127
    more = read > 127
    for place in range(1, _MOST_VARINT_BYTES):
        byte = octets.take(at, mode="clip") * more
        number |= (byte & 127).astype(np.int64) << 7 * place
        at += more
        more = byte > 127
        if not more.any():
            return (number >> 1) ^ -(number & 1), at
    raise _UnfitError


def _payload(octets: Octets, at: Integers) -> tuple[tuple[Integers, Integers], Integers]:
    """Where the keys or values are whose lengths are at these places, and the places behind them."""
    lengths, starts = _varints(octets, at)
    nulls = lengths < 0
    if not nulls.any():
        return (starts, lengths), starts + lengths
    if (octets.take(at[nulls], mode="clip") != 1).any():  # a null is -1 in one byte
        raise _UnfitError
    return (starts, lengths), starts + np.maximum(lengths, 0)


def _headers(data: bytes, octets: Octets, at: Integers, stops: Integers) -> dict[int, Headers]:
    """The headers of the records that have some. Those that are alike are read once."""
    with_some = octets.take(at, mode="clip") != 0
    if (at + 1 != stops)[~with_some].any():
        raise _UnfitError
    found: dict[int, Headers] = {}
    known: dict[bytes, Headers] = {}
    for row in np.flatnonzero(with_some).tolist():
        packed = data[at[row] : stops[row]]
        headers = known.get(packed)
        if headers is None:
            headers, behind = read_headers(packed, 0)
            if behind != len(packed):
                raise _UnfitError
            known[packed] = headers
        found[row] = headers
    return found


def _timestamps(batches: Sequence[RecordBatch], counts: Sequence[int], deltas: Integers) -> Integers:
    if max(abs(batch.first_time) for batch in batches) > _SAFE_TIME:
        raise _UnfitError
    times = np.repeat(np.array([batch.first_time for batch in batches], np.int64), counts) + deltas
    first = 0
    for batch, count in zip(batches, counts, strict=True):
        if batch.append_time is not None:
            times[first : first + count] = batch.append_time
        first += count
    return times


def _is_all_wanted(piece: Piece) -> bool:
    return piece.batches[0].base >= piece.start and piece.batches[-1].following <= piece.end


def _rows_within(piece: Piece, last_count: int, offsets: Integers, first: int) -> slice:
    """The rows that are wanted of a piece, whose own begin at `first`, if their offsets ascend. Only a batch
    that ends behind `end` may have some there; where not all of its records were looked at, the last one
    must be."""
    last = piece.batches[-1]
    low, high = offsets.searchsorted([piece.start, piece.end]).tolist()
    beyond = len(offsets) - high
    if last.following <= piece.end:
        if beyond:
            raise _UnfitError
    elif beyond > last_count or (not beyond and last.is_dense):
        raise _UnfitError
    return slice(first + low, first + high)
