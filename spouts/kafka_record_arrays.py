"""The records of many batches at once, by numpy: no loop per record but the one that finds where each begins.

Invariants:

- `decode` answers what `kafka_record_loop` would make of the same batches, or None: whatever is not certain
  to be right is left to the loop, which also has the words for what is wrong.
- A varint is read from all records together. A place that wrong bytes lead to may be outside; then the last
  byte is read instead. In the end each record must end where its length says, and no length may be negative
  but the -1 of a null: so no place was outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.record.util import decode_varint

from txstream.spouts.kafka_blocks import Block, Headers, Integers
from txstream.spouts.kafka_record_loop import read_headers

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


class _Payload(NamedTuple):
    """Where the keys or values are; a length of -1 is a null."""

    starts: Integers
    lengths: Integers

    def within(self, rows: slice) -> _Payload:
        return _Payload(self.starts[rows], self.lengths[rows])


def decode(batches: Sequence[RecordBatch], start: int, end: int) -> Block | None:
    """The records of `[start, end)` in consecutive batches, of which only the first may begin before `start`
    and only the last may end behind `end`. None when they must be read one by one."""
    data = b"".join([batch.body for batch in batches])
    if len(data) > _MOST_DATA_BYTES:
        return None
    try:
        return _decode(data, batches, start, end)
    except (IndexError, ValueError):
        return None


def _decode(data: bytes, batches: Sequence[RecordBatch], start: int, end: int) -> Block:
    octets = np.frombuffer(data, np.uint8)
    begins = _record_starts(data, octets, batches, start, end)
    counts = [len(found) for found in begins]
    at = np.concatenate(begins)
    length, at = _varints(octets, at)
    stops = at + length
    time_deltas, at = _varints(octets, at + 1)  # behind the attributes, of which none are defined
    offset_deltas, at = _varints(octets, at)
    keys, at = _payload(octets, at)
    values, at = _payload(octets, at)
    headers = _headers(data, octets, at, stops)
    offsets = np.repeat(np.array([batch.base for batch in batches], np.int64), counts) + offset_deltas
    rows = _rows_within(batches[-1], counts[-1], offset_deltas, offsets, start, end)
    return Block(
        offsets[rows],
        _timestamps(batches, counts, time_deltas)[rows],
        np.repeat(np.array([batch.append_time is not None for batch in batches]), counts)[rows],
        partial(_array, data, *keys.within(rows)),
        partial(_array, data, *values.within(rows)),
        {row - rows.start: found for row, found in headers.items() if rows.start <= row < rows.stop},
    )


# --- where records begin ---------------------------------------------------------------------------------


def _record_starts(
    data: bytes, octets: Octets, batches: Sequence[RecordBatch], start: int, end: int
) -> list[Integers]:
    """Where each batch's records begin, as far as they may be wanted."""
    found = []
    first = 0
    for batch in batches:
        stop = first + len(batch.body)
        skipped, wanted = 0, batch.records
        if batch.is_dense:  # what lies outside the range is counted off, but for one that shows its end
            skipped = max(0, start - batch.base)
            wanted = min(batch.records, end - batch.base + 1)
        begins, at = _batch_starts(data, octets, first + batch.records_at, stop, wanted)
        if at > stop or (at < stop and wanted == batch.records):
            raise _UnfitError
        if skipped and (octets.take(begins[:skipped]) & 1).any():  # a negative length
            raise _UnfitError
        found.append(begins[skipped:])
        first = stop
    return found


def _batch_starts(data: bytes, octets: Octets, at: int, stop: int, count: int) -> tuple[Integers, int]:
    """Where `count` records begin, and where the last one ends. Records of one size are found together, until
    they come in runs that are too short for it."""
    pieces = [np.empty(0, np.int64)]
    left = count
    while left > 0:
        alike, size = _run_of_one_size(data, octets, at, stop, left)
        pieces.append(np.arange(at, at + alike * size, size))
        at += alike * size
        left -= alike
        if alike < _RUN_WORTH_TRYING:
            break
    begins: list[int] = []
    add = begins.append
    for _ in range(left):
        add(at)
        number = data[at]
        if number < 128:
            at += 1 + (number >> 1)
        elif (high := data[at + 1]) < 128:
            at += 2 + ((number & 127 | high << 7) >> 1)
        else:
            length, at = decode_varint(data, at)
            at += max(length, 0)
    return np.concatenate([*pieces, np.array(begins, np.int64)]), at


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


def _payload(octets: Octets, at: Integers) -> tuple[_Payload, Integers]:
    """The keys or values whose lengths are at these places, and the places behind them."""
    lengths, starts = _varints(octets, at)
    nulls = lengths < 0
    if not nulls.any():
        return _Payload(starts, lengths), starts + lengths
    if (octets.take(at[nulls], mode="clip") != 1).any():  # a null is -1 in one byte
        raise _UnfitError
    return _Payload(starts, lengths), starts + np.maximum(lengths, 0)


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


def _rows_within(
    last: RecordBatch, last_count: int, deltas: Integers, offsets: Integers, start: int, end: int
) -> slice:
    """The rows of `[start, end)`. Offsets must ascend, and only a batch that ends behind `end` may have some
    there; where not all of its records were looked at, the last one must be."""
    if (deltas < 0).any() or (offsets[1:] < offsets[:-1]).any():
        raise _UnfitError
    low, high = np.searchsorted(offsets, [start, end]).tolist()
    beyond = len(offsets) - high
    if last.following <= end:
        if beyond:
            raise _UnfitError
    elif beyond > last_count or (not beyond and last.is_dense):
        raise _UnfitError
    return slice(low, high)


def _array(data: bytes, starts: Integers, lengths: Integers) -> pa.Array:
    """The bytes at these places as a binary array.

    Arrow copies them: a view of all of the data has every other element one of ours, and `take` has those.
    """
    rows = len(starts)
    nulls = lengths < 0
    if nulls.all():
        return pa.nulls(rows, pa.binary())
    bounds = np.empty(2 * rows, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    view = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return view.take(pa.array(np.arange(0, 2 * rows, 2), mask=nulls if nulls.any() else None))
