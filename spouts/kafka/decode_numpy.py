"""Decodes the records of many batches at once with numpy, even of many partitions. The only loop over records
is the one that finds where each begins.

Invariants:

- `decode` returns what kafka-python makes of the same batches, or None. Whatever is not certain to be right
  is left to kafka-python, which also finds what is wrong. Only kafka-python looks at records outside the
  range. Pieces of several partitions decoded together make the same blocks as each by itself.
- A varint is read from all records together. Damaged bytes may lead to an index outside the data; then the
  last byte is read instead. This cannot go unnoticed: in the end each record must end where its length says,
  and no length may be negative except the -1 of a null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from kafka.record.util import decode_varint

from txstream.spouts.kafka.record_blocks import Block, Headers, Integers, Payload, Records

_RUN_WORTH_TRYING = 16
_MOST_VARINT_BYTES = 9  # 63 bits
_MOST_DATA_BYTES = 2**31 - 1  # Arrow's offsets have 32 bits
_SAFE_TIME = 2**62

Octets = npt.NDArray[np.uint8]


class RecordBatch(NamedTuple):
    """A batch whose checksum is right. `body` holds its records, unpacked, from `records_at` on; `following`
    is the offset after its last. `append_time` is the broker's time, if it replaces the producers'."""

    base: int
    following: int
    records: int
    first_time: int
    append_time: int | None
    body: bytes | memoryview
    records_at: int

    @property
    def is_dense(self) -> bool:
        """Whether it has a record for each of its offsets."""
        return self.records == self.following - self.base


class _UnfitError(ValueError):
    """These batches must be left to kafka-python."""


class Piece(NamedTuple):
    """Consecutive batches of one partition. Their records in `[start, end)` are wanted: only the first batch
    may begin before `start`, and only the last may end after `end`."""

    batches: Sequence[RecordBatch]
    start: int
    end: int


def decode(pieces: Sequence[Piece]) -> list[Block] | None:
    """Return the records of each piece. None if they must be read one by one, or each piece by itself."""
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
    if (octets.take(at, mode="clip") > 127).any():  # attributes: none are defined
        raise _UnfitError
    time_deltas, at = _varints(octets, at + 1)
    offset_deltas, at = _varints(octets, at)
    if (offset_deltas < 0).any():
        raise _UnfitError
    (key_starts, key_lengths), at = _payload(octets, at)
    (value_starts, value_lengths), at = _payload(octets, at)
    headers = _headers(data, octets, at, stops)
    offsets = np.repeat(np.array([batch.base for batch in batches], np.int64), counts) + offset_deltas
    _refuse_foreign(batches, counts, offsets)
    timestamps = _timestamps(batches, counts, time_deltas)
    log_append = np.repeat(np.array([batch.append_time is not None for batch in batches]), counts)
    keys = Payload(data, key_starts, key_lengths)
    values = Payload(data, value_starts, value_lengths)
    records = Records(offsets, timestamps, log_append, keys, values, headers)
    blocks = []
    first = first_batch = 0
    falling = set((np.flatnonzero(offsets[1:] < offsets[:-1]) + 1).tolist())  # allowed where a piece begins
    for piece in pieces:
        following_batch = first_batch + len(piece.batches)
        following = first + sum(counts[first_batch:following_batch])
        falling.discard(first)
        block = Block(records, first, following)
        if not _is_all_wanted(piece):
            rows = _rows_within(piece, offsets[block.rows], first)
            block = Block(records, rows.start, rows.stop)
        blocks.append(block)
        first, first_batch = following, following_batch
    if falling:
        raise _UnfitError
    return blocks


# --- where records begin ---------------------------------------------------------------------------------


def _record_starts(data: bytes, octets: Octets, pieces: Sequence[Piece]) -> tuple[Integers, list[int]]:
    """Return where the records that may be wanted begin, and how many of them each batch has."""
    found: list[Integers] = []
    few: list[int] = []  # of batches too small for arrays of their own
    counts = []
    first = 0
    for batches, start, end in pieces:
        for batch in batches:
            stop = first + len(batch.body)
            skipped, wanted = 0, batch.records
            if batch.is_dense:  # counts off what lies outside the range, except one record that shows its end
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
    """Return where `count` records begin, and where the last one ends. Records of the same size are found
    together, until a run of them is too short for that to pay."""
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
    """Return how many records from `at` on have the same length (at least one), and the bytes of each."""
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
    """Return the zigzag varints at these indices, and the indices after them."""
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
    """Return starts and lengths of the keys or values whose lengths are at these indices, and the indices
    after them."""
    lengths, starts = _varints(octets, at)
    nulls = lengths < 0
    if not nulls.any():
        return (starts, lengths), starts + lengths
    if (octets.take(at[nulls], mode="clip") != 1).any():  # a null is -1 in one byte
        raise _UnfitError
    return (starts, lengths), starts + np.maximum(lengths, 0)


def _headers(data: bytes, octets: Octets, at: Integers, stops: Integers) -> dict[int, Headers]:
    """Return the headers of the records that have some. Equal ones are decoded once."""
    with_some = octets.take(at, mode="clip") != 0
    if (at + 1 != stops)[~with_some].any():
        raise _UnfitError
    found: dict[int, Headers] = {}
    known: dict[bytes, Headers] = {}
    for row in np.flatnonzero(with_some).tolist():
        packed = data[at[row] : stops[row]]
        headers = known.get(packed)
        if headers is None:
            headers = known[packed] = _read_headers(packed)
        found[row] = headers
    return found


def _read_headers(data: bytes) -> Headers:
    headers: Headers = []
    count, at = decode_varint(data, 0)
    if count < 0:
        raise _UnfitError
    for _ in range(count):
        length, at = decode_varint(data, at)
        if length < 0:
            raise _UnfitError
        key = data[at : at + length]
        at += length
        length, at = decode_varint(data, at)
        headers.append((key, None if length < 0 else data[at : at + length]))
        at += max(length, 0)
    if at != len(data):
        raise _UnfitError
    return headers


def _refuse_foreign(batches: Sequence[RecordBatch], counts: Sequence[int], offsets: Integers) -> None:
    """Raise if the last record of a batch lies behind the batch."""
    counted = np.array(counts)
    some = counted > 0
    lasts = offsets[counted.cumsum()[some] - 1]
    if (lasts >= np.array([batch.following for batch in batches])[some]).any():
        raise _UnfitError


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


def _rows_within(piece: Piece, offsets: Integers, first: int) -> slice:
    """Return which rows of a piece are wanted; `first` is its first row, and its offsets must ascend. If not
    all records of the last batch were looked at, the last one that was must lie past `end`."""
    last = piece.batches[-1]
    low, high = offsets.searchsorted([piece.start, piece.end]).tolist()
    if high == len(offsets) and last.following > piece.end and last.is_dense:
        raise _UnfitError
    return slice(first + low, first + high)
