"""What a simulated topology reads: rows in memory by partition, of which more and more become visible.

Invariant: a position of a partition holds the same row in every history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.spouts import (
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
    Unavailable,
)
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import a
from txstream.spouts.memory import MemoryRange, MemorySpout

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.driver import SimulatedDriver

PARTITIONS = 3
"""The number of partitions that a list of rows is dealt over."""

Rows = Mapping[str, pa.RecordBatch]


def to_rows(schema: pa.Schema, given: Mapping[str, Sequence[Any]] | Sequence[Any]) -> Rows:
    """Return rows by partition; a list is dealt over a few. Raises UsageError for a row that does not fit,
    and when there are none."""
    if not isinstance(given, Mapping):
        given = {f"p{at + 1}": given[at::PARTITIONS] for at in range(min(PARTITIONS, len(given)))}
    try:
        found = {
            name: to_record_batch([_fields(row, schema) for row in rows], schema)
            for name, rows in given.items()
        }
    except UnfitValueError as error:
        raise UsageError(f"a row does not fit the spout's output: {error}") from error
    return _some(found)


def _some(rows: Rows) -> Rows:
    if not any(batch.num_rows for batch in rows.values()):
        raise UsageError("there are no rows; a simulation needs some to work on")
    return rows


def _fields(row: Any, schema: pa.Schema) -> tuple[Any, ...]:
    """Return a row's values. A field that a mapping lacks is None. Text in a binary field becomes UTF-8."""
    if isinstance(row, Mapping):
        unknown = sorted(set(row) - set(schema.names))
        if unknown:
            raise UsageError(
                f"a row has {unknown[0]!r}, which the spout does not emit; it emits {schema.names}"
            )
        values: tuple[Any, ...] = tuple(row.get(name) for name in schema.names)
    else:
        values = row if isinstance(row, tuple) else (row,)
    if len(values) != len(schema):
        raise UsageError(f"row {row!r:.100} has {len(values)} values, the spout emits {schema.names}")
    return tuple(
        value.encode() if isinstance(value, str) and pa.types.is_binary(field.type) else value
        for value, field in zip(values, schema, strict=True)
    )


def rows_of(source: PartitionedSpout[Any]) -> Rows:
    """Return the rows that a MemorySpout was made with, without its markers. Raises UsageError for any other
    source."""
    if not isinstance(source, MemorySpout):
        raise UsageError(
            f"the topology reads {a(type(source).__name__)}, and a simulation reads nothing from outside: "
            f"give it rows (rows=[...], or --rows FILE.jsonl)"
        )
    log = source._log
    found = {}
    for name, end in log.ends().items():
        batches = [frame.rows for frame in log.frames(name, 0, end) if frame.rows is not None]
        found[name] = pa.concat_batches([to_record_batch([], source.output), *batches])
    return _some(found)


class SimulatedSource(PartitionedSpout[MemoryRange]):
    """Stands in for the topology's own source."""

    meta_type: ClassVar[type[MemoryRange]] = MemoryRange

    def __init__(self, output: pa.Schema, rows: Rows) -> None:
        self.output = output
        self._rows = rows

    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[MemoryRange]:
        raise NotImplementedError("each simulated driver opens the source of its world")

    def emitter(self, context: SpoutContext) -> PartitionEmitter[MemoryRange]:
        """Open all rows of the program: a driver reads what it keeps as dead letters."""
        return LogEmitter(self._rows)


class FirstPlace(MemoryRange):
    """Where a partition begins that was there when the topology began."""

    is_first_place = True


class Log:
    """One world's view of the rows. `ends` says how many are visible; `lost` partitions cannot be read. With
    `at_end`, a topology begins behind the rows that are visible then. `planned` has the first row of each
    partition that a batch was ever to read."""

    def __init__(self, rows: Rows, *, at_end: bool = False) -> None:
        self.rows = rows
        self.at_end = at_end
        self.ends: dict[str, int] = {}
        self.lost: set[str] = set()
        self.planned: dict[str, int] = {}

    def begins(self, batches: Sequence[BatchMetas[MemoryRange]]) -> dict[str, int]:
        """Return where each partition begins in these batches."""
        begins = dict.fromkeys(self.ends, 0)
        for metas in reversed(batches if self.at_end else ()):
            begins |= {name: taken.start for name, taken in metas.positions().items()}
        return begins

    def show_all(self) -> None:
        self.ends = {name: batch.num_rows for name, batch in self.rows.items()}

    @property
    def is_all_shown(self) -> bool:
        return all(self.ends.get(name, 0) == batch.num_rows for name, batch in self.rows.items())

    def reached(self, places: Mapping[str, MemoryRange]) -> bool:
        return all(not end or (name in places and places[name].end == end) for name, end in self.ends.items())


class LogCoordinator(PartitionCoordinator[MemoryRange]):
    """The log as a driver sees it."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._log = driver.world.log

    def plan(self, last: Mapping[str, MemoryRange], limit: int) -> Mapping[str, MemoryRange | Unavailable]:
        world = self._driver.world
        self._reach()
        low, high = world.cut
        ranges: dict[str, MemoryRange | Unavailable] = {}
        if self._log.at_end and not last:
            ranges = {partition: FirstPlace(end, end) for partition, end in self._log.ends.items()}
            world.note(f"{self._driver} begins", BatchMetas.from_plan(last, ranges))
            return ranges
        for partition, end in self._log.ends.items():
            start = last[partition].end if partition in last else 0
            if partition in self._log.lost:
                ranges[partition] = Unavailable("lost")
            elif start < end:
                ranges[partition] = MemoryRange(start, min(end, start + world.chances.between(low, high)))
                self._log.planned[partition] = min(start, self._log.planned.get(partition, start))
        world.note(f"{self._driver} plans", BatchMetas.from_plan(last, ranges))
        return ranges

    def unreadable(self, metas: Mapping[str, MemoryRange]) -> Mapping[str, Unavailable]:
        self._reach()
        return {partition: Unavailable("lost") for partition in sorted(self._log.lost & set(metas))}

    def _reach(self) -> None:
        self._driver.pass_point("before the source is asked")
        if self._driver.world.happens("source away"):
            raise ServiceUnavailableError("the source is away")


class LogEmitter(PartitionEmitter[MemoryRange]):
    """Reads the rows. `Runner.run` has refused lost partitions before."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: MemoryRange
    ) -> Iterator[pa.RecordBatch]:
        yield self._rows[partition].slice(meta.start, meta.records)

    def close(self) -> None:
        """Close nothing: nothing is open."""
