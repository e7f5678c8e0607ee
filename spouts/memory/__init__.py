"""`MemorySpout`: partitions as lists that can grow while a topology runs, for tests and tutorials.

The rows live in the process that made the spout, and only there can they be read: by the local runner, by
`TopologyTest`, by a simulation. Spark's workers are other processes, so a run on Spark refuses the spout.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from txstream.api.schema import format_schema, parse_schema
from txstream.api.spouts import (
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
    Unavailable,
)
from txstream.core.errors import DataLostError, PartitionUnavailableError, TopologyError, UsageError
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.backlog import share_limit
from txstream.spouts.memory.log import MemoryLog
from txstream.spouts.ranges import RecordSpan

_CHUNK_ROWS = 10_000

# The spouts of this process by token: one that was pickled here is found again.
_spouts: weakref.WeakValueDictionary[str, MemorySpout] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class MemoryRange(RecordSpan):
    """Positions `[start, end)` of one partition. A marker takes a position but is not a row."""


class MemorySpout(PartitionedSpout[MemoryRange]):
    """Rows in memory as a source: `OpaqueSpout(MemorySpout("line string", {"p0": ["a b", "c"]}))`.

    output: the schema of the rows, as Spark DDL or as an Arrow schema.
    partitions: rows by partition. A row is a tuple with a value for each field; for a schema of one field
        anything but a tuple is that field's value. `Fail` and `Crash` of `txstream.testing` may be put among
        the rows: they take a position but are not rows.
    max_records_per_partition: upper bound, per batch, on the positions taken from one partition.

    Several runs may use it, at once or one after the other. Rows stay until `close`, which is also called at
    the end of a `with` block. A run on Spark refuses it; there, read a `FileSpout`.

    Raises TopologyError, SchemaError or TupleError for invalid arguments.
    """

    meta_type: ClassVar[type[MemoryRange]] = MemoryRange
    other_process: ClassVar[bool] = False

    def __init__(
        self,
        output: str | pa.Schema = "value string",
        partitions: Mapping[str, Sequence[Any]] | None = None,
        *,
        max_records_per_partition: int | None = None,
    ) -> None:
        if max_records_per_partition is not None and max_records_per_partition < 1:
            raise TopologyError(
                f"max_records_per_partition is {max_records_per_partition}; it must be at least 1"
            )
        if partitions is not None and not isinstance(partitions, Mapping):
            raise TopologyError(
                f"partitions must map a partition's name to its rows, as in {{'p0': [...]}}, not be a "
                f"{type(partitions).__name__}"
            )
        self.output: pa.Schema = parse_schema(output)
        self.max_records_per_partition = max_records_per_partition
        self._log = MemoryLog(self.output)
        self._token = uuid.uuid4().hex
        _spouts[self._token] = self
        for name, rows in (partitions or {}).items():
            if isinstance(rows, (str, bytes)) or not isinstance(rows, Sequence):
                raise TopologyError(f"partition {name!r} must be a list of rows, not {rows!r:.100}")
            self._log.append(name, rows)

    def __repr__(self) -> str:
        return f"MemorySpout({format_schema(self.output)!r})"

    # --- for the user, on the driver -------------------------------------------------------------------

    def append(self, partition: str, *rows: Any) -> None:
        """Add rows at the end of a partition, all of them or none; a new name makes a new partition. May be
        called from any thread, before, while and after a topology runs. Raises TupleError, which names
        partition, row, field and value, and UsageError in a fork of this process."""
        self._log.append(partition, rows)

    def hide(self, partition: str, reason: str = "it is hidden") -> None:
        """Make a partition unreadable until `show`, as an outage does."""
        self._log.hide(partition, reason)

    def show(self, partition: str) -> None:
        """End what `hide` began."""
        self._log.show(partition)

    def close(self) -> None:
        """Drop the rows. May be called again."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the engine ----------------------------------------------------------------------------------

    def coordinator(self, context: SpoutContext) -> MemoryCoordinator:
        """Open the driver's side. Raises UsageError after `close`."""
        self._log.check_open()
        return MemoryCoordinator(self._log, self.max_records_per_partition)

    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        """Open a reader of the rows. Raises UsageError after `close`."""
        self._log.check_open()
        return MemoryEmitter(self._log)

    def identity(self) -> Mapping[str, Any]:
        return {"output": format_schema(self.output)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._token,)


def _found(token: str) -> MemorySpout:
    """Return the spout that was pickled in this process."""
    spout = _spouts.get(token)
    if spout is None:
        raise UsageError(
            "the rows of a MemorySpout are in the process that made it and cannot be read in another one: "
            "there, read a FileSpout"
        )
    return spout


class MemoryCoordinator(PartitionCoordinator[MemoryRange]):
    """Plans from the log as it is now."""

    def __init__(self, log: MemoryLog, max_records_per_partition: int | None) -> None:
        self._log = log
        self._cap = max_records_per_partition

    def plan(self, last: Mapping[str, MemoryRange], limit: int) -> Mapping[str, MemoryRange | Unavailable]:
        """Raises DataLostError when a place is past the end: these are another program's rows."""
        answer: dict[str, MemoryRange | Unavailable] = {}
        backlogs: dict[str, int] = {}
        waiting = 0
        places: dict[str, int] = {}
        ends = self._log.ends()
        for name in ends.keys() | last.keys():
            reason = self._log.hidden(name)
            if reason is not None:
                answer[name] = Unavailable(reason)
                continue
            places[name] = last[name].end if name in last else 0
            self._check_end(name, places[name], ends)
            backlog = ends.get(name, 0) - places[name]
            waiting += backlog
            backlogs[name] = backlog if self._cap is None else min(backlog, self._cap)
        shares = share_limit(backlogs, limit, sum(places.values()))
        self.untaken_records = waiting - sum(shares.values())
        self.passed_over = [name for name, backlog in backlogs.items() if backlog and not shares.get(name)]
        for name, taken in shares.items():
            answer[name] = MemoryRange(places[name], places[name] + taken)
        return answer

    def unreadable(self, metas: Mapping[str, MemoryRange]) -> Mapping[str, Unavailable]:
        """Raises DataLostError when a planned range is not there."""
        ends = self._log.ends()
        reasons = {name: self._log.hidden(name) for name in metas}
        for name, meta in metas.items():
            self._check_end(name, meta.end, ends)
        return {name: Unavailable(reason) for name, reason in reasons.items() if reason is not None}

    def targets(self) -> Mapping[str, int]:
        """The ends now. Raises PartitionUnavailableError when a partition is hidden."""
        ends = self._log.ends()
        for name in ends:
            reason = self._log.hidden(name)
            if reason is not None:
                raise PartitionUnavailableError(f"cannot tell where partition {name!r} ends: {reason}")
        return ends

    def reached(self, last: Mapping[str, MemoryRange], targets: Mapping[str, Any]) -> bool:
        return self.lag_records(last, targets) == 0

    def lag_records(self, last: Mapping[str, MemoryRange], targets: Mapping[str, Any]) -> int:
        """The lag in positions, including markers."""
        return sum(max(0, end - (last[name].end if name in last else 0)) for name, end in targets.items())

    def _check_end(self, partition: str, end: int, ends: Mapping[str, int]) -> None:
        if end > ends.get(partition, 0):
            raise DataLostError(
                f"partition {partition!r} was read up to position {end}, but this MemorySpout has "
                f"{ends.get(partition, 0)}: give it at least the rows that the earlier run had, or use "
                f"another topology id"
            )


class MemoryEmitter(PartitionEmitter[MemoryRange]):
    """Reads the log."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: MemoryRange
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one range. A marker that is due strikes after the rows before it have been emitted."""
        if meta.is_empty:
            return
        pending: list[pa.RecordBatch] = []
        size = 0
        self._check_readable(partition)
        for frame in self._log.frames(partition, meta.start, meta.end):
            if frame.marker is not None:
                yield from self._chunks(partition, pending)
                pending, size = [], 0
                if self._log.take(partition, frame.first, frame.marker.times):
                    where = f"{attempt}, partition {partition!r}, position {frame.first}"
                    frame.marker.strike(where)
            elif frame.rows is not None:
                start = max(meta.start - frame.first, 0)
                part = frame.rows.slice(start, min(meta.end, frame.end) - frame.first - start)
                pending.append(part)
                size += part.num_rows
                if size >= _CHUNK_ROWS:
                    yield from self._chunks(partition, pending)
                    pending, size = [], 0
        yield from self._chunks(partition, pending)

    def _chunks(self, partition: str, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as batches of a sensible size, however they were appended."""
        if not batches:
            return
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches(max_chunksize=_CHUNK_ROWS):
            self._check_readable(partition)
            yield batch

    def _check_readable(self, partition: str) -> None:
        reason = self._log.hidden(partition)
        if reason is not None:
            raise PartitionUnavailableError(f"partition {partition!r} cannot be read: {reason}")
