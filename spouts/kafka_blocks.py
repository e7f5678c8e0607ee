"""Decoded records on their way to Arrow: blocks of rows, and the columns that a range collects from them.

Keys and values become Arrow arrays only where a source emits them: until then a block knows where their bytes
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

Headers = list[tuple[bytes, bytes | None]]
Integers = npt.NDArray[np.int64]


class Payload(NamedTuple):
    """Where keys or values are in `data`; a length of -1 is a null."""

    data: bytes
    starts: Integers
    lengths: Integers

    def within(self, rows: slice) -> Payload:
        return Payload(self.data, self.starts[rows], self.lengths[rows])


Payloads = Payload | Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of their offsets; `headers` has the rows that have some."""

    offsets: Integers
    timestamps: Integers
    log_append: npt.NDArray[np.bool_]
    keys: Payloads
    values: Payloads
    headers: dict[int, Headers]

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(slots=True)
class RecordColumns:
    """Blocks as columns; `size_bytes` is what their batches take, unpacked."""

    blocks: list[Block] = field(default_factory=list)
    size_bytes: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def add(self, blocks: Iterable[Block], size_bytes: int) -> None:
        self.blocks += blocks
        self.size_bytes += size_bytes

    @property
    def offsets(self) -> Integers:
        return _joined([block.offsets for block in self.blocks])

    @property
    def timestamps(self) -> Integers:
        return _joined([block.timestamps for block in self.blocks])

    @property
    def timestamp_types(self) -> npt.NDArray[np.int32]:
        """Kafka's: 0 is the producer's time, 1 the broker's."""
        return np.concatenate([np.empty(0, np.int32), *(block.log_append for block in self.blocks)])

    @property
    def keys(self) -> pa.Array:
        return _binary([block.keys for block in self.blocks])

    @property
    def values(self) -> pa.Array:
        return _binary([block.values for block in self.blocks])

    @property
    def headers(self) -> dict[int, Headers]:
        found: dict[int, Headers] = {}
        first = 0
        for block in self.blocks:
            found.update((first + row, headers) for row, headers in block.headers.items())
            first += len(block)
        return found


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _binary(parts: Sequence[Payloads]) -> pa.Array:
    """As one binary array. Each array costs: neighbours that lie in the same bytes are made at once."""
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
    """Arrow copies the bytes: a view of all of the data has every other element one of ours, and `take` has
    those."""
    data, starts, lengths = payload
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
