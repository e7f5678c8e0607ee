"""Decoded records on their way to Arrow: blocks of rows, and the columns that a range collects from them.

Keys and values become Arrow arrays only if a source emits them. Until then a block knows where their bytes
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstream.core.readings import sum_of

Headers = list[tuple[bytes, bytes | None]]
Integers = npt.NDArray[np.int64]


_FEW_ROWS = 64  # a call of Arrow's costs as much as copying so many in Python


class Payload(NamedTuple):
    """Where keys or values lie in `data`; a length of -1 is a null."""

    data: bytes
    starts: Integers
    lengths: Integers

    def within(self, rows: slice) -> Payload:
        return Payload(self.data, self.starts[rows], self.lengths[rows])


Payloads = Payload | Sequence[bytes | None]


def _within(payloads: Payloads, rows: slice) -> Payloads:
    return payloads.within(rows) if isinstance(payloads, Payload) else payloads[rows]


@dataclass(frozen=True, slots=True)
class Records:
    """Records that were decoded together; `headers` has an entry for each row with headers."""

    offsets: Integers
    timestamps: Integers
    log_append: npt.NDArray[np.bool_]
    keys: Payloads
    values: Payloads
    headers: dict[int, Headers]

    @property
    def block(self) -> Block:
        """All of the records."""
        return Block(self, 0, len(self.offsets))


class Block(NamedTuple):
    """The rows of one partition among `records`, in the order of their offsets. If many partitions have a few
    rows each, separate arrays would cost more than the rows."""

    records: Records
    first: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.stop)


@dataclass(slots=True)
class RecordColumns:
    """Blocks as columns; `size_bytes` is the size of their batches, unpacked."""

    blocks: list[Block] = field(default_factory=list)
    size_bytes: int = 0

    @classmethod
    def joined(cls, parts: Iterable[RecordColumns]) -> RecordColumns:
        """The rows of all parts, one after the other. Neighbours in the same records become one block."""
        blocks: list[Block] = []
        for part in parts:
            for block in part.blocks:
                if blocks and block.records is blocks[-1].records and block.first == blocks[-1].stop:
                    blocks[-1] = Block(block.records, blocks[-1].first, block.stop)
                else:
                    blocks.append(block)
        return cls(blocks)

    def __len__(self) -> int:
        return sum([stop - first for _, first, stop in self.blocks])

    def at(self, offset: int) -> RecordColumns:
        """The row of the record with this offset."""
        for records, first, stop in self.blocks:
            for row in (first + np.flatnonzero(records.offsets[first:stop] == offset)).tolist():
                return RecordColumns([Block(records, row, row + 1)])
        return RecordColumns()

    def row(self, number: int) -> RecordColumns:
        """The row with this number, counted from 0."""
        for records, first, stop in self.blocks:
            if number < stop - first:
                return RecordColumns([Block(records, first + number, first + number + 1)])
            number -= stop - first
        raise IndexError(number)

    def with_values(self) -> RecordColumns:
        """The rows whose value is not null."""
        blocks = []
        for records, first, stop in self.blocks:
            has_value = _binary([_within(records.values, slice(first, stop))]).is_valid()
            edges = np.diff(has_value.to_numpy(zero_copy_only=False).astype(np.int8), prepend=0, append=0)
            begins, ends = np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
            blocks += [Block(records, first + b, first + e) for b, e in zip(begins, ends, strict=True)]
        return RecordColumns(blocks, self.size_bytes)

    def add(self, blocks: Iterable[Block], size_bytes: int) -> None:
        self.blocks += blocks
        self.size_bytes += size_bytes

    @property
    def offsets(self) -> Integers:
        return _joined([block.records.offsets[block.rows] for block in self.blocks])

    @property
    def timestamps(self) -> Integers:
        return _joined([block.records.timestamps[block.rows] for block in self.blocks])

    @property
    def timestamp_types(self) -> npt.NDArray[np.int32]:
        """Kafka's timestamp types: 0 is the producer's time, 1 the broker's."""
        parts = [block.records.log_append[block.rows] for block in self.blocks]
        return np.concatenate([np.empty(0, np.int32), *parts])

    @property
    def keys(self) -> pa.Array:
        return _binary([_within(block.records.keys, block.rows) for block in self.blocks])

    @property
    def values(self) -> pa.Array:
        return _binary([_within(block.records.values, block.rows) for block in self.blocks])

    def digest(self) -> int:
        """The sum of the records' numbers (`txstream.core.readings`)."""
        return sum_of(self.offsets, _plain(self.keys), _plain(self.values))

    @property
    def headers(self) -> dict[int, Headers]:
        found: dict[int, Headers] = {}
        behind = 0
        for records, first, stop in self.blocks:
            if records.headers:
                with_some = filter(records.headers.__contains__, range(first, stop))
                found.update((behind + row - first, records.headers[row]) for row in with_some)
            behind += stop - first
        return found


def _plain(column: pa.Array) -> list[bytes | None]:
    return [None] * len(column) if column.null_count == len(column) else column.to_pylist()


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _binary(parts: Sequence[Payloads]) -> pa.Array:
    """Join the parts into one binary array. Each array has a cost: neighbours in the same bytes share one."""
    arrays: list[pa.Array] = []
    for _, some in groupby(parts, lambda part: id(part.data) if isinstance(part, Payload) else id(part)):
        first, *others = some
        if not isinstance(first, Payload):
            arrays.append(pa.array(first, pa.binary()))
        elif not others:
            arrays.append(_array(first))
        else:
            _, starts, lengths = zip(first, *others, strict=True)
            arrays.append(_array(Payload(first.data, np.concatenate(starts), np.concatenate(lengths))))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays([pa.nulls(0, pa.binary()), *arrays])


def _array(payload: Payload) -> pa.Array:
    """Let Arrow copy the bytes, unless they are few: every other element of a view of all the data is one of
    ours, and `take` picks those."""
    data, starts, lengths = payload
    rows = len(starts)
    nulls = lengths < 0
    if nulls.all():
        return pa.nulls(rows, pa.binary())
    if rows <= _FEW_ROWS:
        places = zip(starts.tolist(), lengths.tolist(), strict=True)
        return pa.array([None if n < 0 else data[at : at + n] for at, n in places], pa.binary())
    bounds = np.empty(2 * rows, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0)
    view = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return view.take(pa.array(np.arange(0, 2 * rows, 2), mask=nulls if nulls.any() else None))
