"""The rows behind a `MemorySpout`: partitions that grow at their end, in the process that made them.

Invariant: positions of a partition count from 0. Each holds a row or a marker, and never changes.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.schema import format_schema, format_type
from txstream.core.errors import DataLostError, TupleError, UsageError
from txstream.spouts.memory.failure_markers import Marker


@dataclass(frozen=True, slots=True)
class Frame:
    """Positions `first` to `end` - 1: that many rows, or one marker."""

    first: int
    count: int
    rows: pa.RecordBatch | None
    marker: Marker | None

    @property
    def end(self) -> int:
        return self.first + self.count


@dataclass
class _Partition:
    frames: list[Frame] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    end: int = 0


class MemoryLog:
    """The rows behind a `MemorySpout`. Safe to use from several threads."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.closed = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._partitions: dict[str, _Partition] = {}
        self._hidden: dict[str, str] = {}
        self._taken: Counter[tuple[str, int]] = Counter()

    # --- written by the user --------------------------------------------------------------------------

    def append(self, partition: str, rows: Sequence[Any]) -> None:
        """Append all of the rows or none. Raises TupleError."""
        with self._lock:
            self.check_open()
            known = self._partitions.get(partition, _Partition())
            frames = list(self._frames(partition, known.end, rows))
            known.frames += frames
            known.firsts += [frame.first for frame in frames]
            known.end += len(rows)
            self._partitions[partition] = known

    def hide(self, partition: str, reason: str) -> None:
        with self._lock:
            self._check_known(partition)
            self._hidden[partition] = reason

    def show(self, partition: str) -> None:
        with self._lock:
            self._check_known(partition)
            self._hidden.pop(partition, None)

    def close(self) -> None:
        with self._lock:
            self.closed = True
            self._partitions.clear()

    # --- read by the coordinator and by emitters -------------------------------------------------------

    def ends(self) -> Mapping[str, int]:
        """For each partition, the position after its last."""
        with self._lock:
            self.check_open()
            return {name: partition.end for name, partition in self._partitions.items()}

    def frames(self, partition: str, start: int, end: int) -> Iterator[Frame]:
        """The frames that hold positions `start` to `end` - 1. Raises DataLostError."""
        with self._lock:
            self.check_open()
            known = self._partitions.get(partition)
            if known is None or end > known.end:
                raise DataLostError(
                    f"partition {partition!r} has {0 if known is None else known.end} positions, but {start} "
                    f"to {end} are planned: this MemorySpout does not hold what an earlier one did"
                )
            first = bisect_right(known.firsts, start) - 1
            last = bisect_right(known.firsts, end - 1)
            found = known.frames[max(first, 0) : last]
        return iter(found)

    def hidden(self, partition: str) -> str | None:
        """Why the partition cannot be read now."""
        with self._lock:
            return self._hidden.get(partition)

    def take(self, partition: str, position: int, times: int) -> bool:
        """Is the marker at `position` still due? If so, this time is counted."""
        with self._lock:
            if self._taken[partition, position] >= times:
                return False
            self._taken[partition, position] += 1
            return True

    # --- checks -----------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed:
            raise UsageError("this MemorySpout was closed; its rows are gone")
        if os.getpid() != self._owner:
            raise UsageError("a MemorySpout takes rows only in the process that made it, not in a fork of it")

    def _check_known(self, partition: str) -> None:
        self.check_open()
        if partition not in self._partitions:
            raise UsageError(
                f"this MemorySpout has no partition {partition!r}; it has "
                f"{', '.join(map(repr, self._partitions)) or 'none'}"
            )

    def _frames(self, partition: str, first: int, rows: Sequence[Any]) -> Iterator[Frame]:
        """The rows as frames. Each marker gets a frame of its own."""
        _check_name(partition)
        pending: list[Sequence[Any]] = []
        for position, row in enumerate(rows, first):
            if isinstance(row, Marker):
                if pending:
                    yield self._rows_frame(partition, position - len(pending), pending)
                    pending = []
                yield Frame(position, 1, None, row)
            else:
                pending.append(self._values(partition, position, row))
        if pending:
            yield self._rows_frame(partition, first + len(rows) - len(pending), pending)

    def _values(self, partition: str, position: int, row: Any) -> Sequence[Any]:
        width = len(self.schema)
        if width == 1 and not isinstance(row, tuple):
            return (row,)
        if not isinstance(row, Sequence) or isinstance(row, (str, bytes, Set)) or len(row) != width:
            raise TupleError(
                f"partition {partition!r}, row {position}: {row!r:.200} is no tuple of {width} value(s): "
                f"{format_schema(self.schema)}"
            )
        return row

    def _rows_frame(self, partition: str, first: int, rows: list[Sequence[Any]]) -> Frame:
        try:
            return Frame(first, len(rows), to_record_batch(rows, self.schema), None)
        except UnfitValueError as error:
            raise TupleError(
                f"partition {partition!r}, row {first + error.row}: {error.value!r:.200} "
                f"({type(error.value).__name__}) cannot be held by field {error.field.name!r}, which is "
                f"declared as {format_type(error.field.type)}"
            ) from error


def _check_name(partition: str) -> None:
    if not isinstance(partition, str) or not partition:
        raise UsageError(f"a partition is named by a string that is not empty, not by {partition!r}")
    try:
        partition.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the partition name {partition!r} is not valid text: {error.reason}") from error
