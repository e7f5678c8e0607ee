"""Decoded records on their way to Arrow: blocks of rows, and the columns that a range collects from them.

Keys and values become Arrow arrays only where a source emits them: until then a block knows where their bytes
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Headers = list[tuple[bytes, bytes | None]]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in the order of their offsets. `keys` and `values` make binary arrays; `headers` has the rows that
    have some."""

    offsets: Integers
    timestamps: Integers
    log_append: npt.NDArray[np.bool_]
    keys: Callable[[], pa.Array]
    values: Callable[[], pa.Array]
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
        return _chained([block.keys() for block in self.blocks])

    @property
    def values(self) -> pa.Array:
        return _chained([block.values() for block in self.blocks])

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


def _chained(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays([pa.nulls(0, pa.binary()), *parts])
