"""A log in memory and a source over it. Tests fill and hide partitions, and watch them being read.

A source is pickled when a plan is compiled, so it holds only the log's name; the log itself stays here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.schema import parse_schema
from txstream.api.spouts import (
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
    Unavailable,
)
from txstream.core.errors import PartitionUnavailableError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid, attempt_id

_names = itertools.count()
_logs: dict[str, MemoryLog] = {}

CONTEXT = SpoutContext("test", "lines", {})


def attempt(txid: int, sequence: int = 1, epoch: int = 1) -> TransactionAttempt:
    return TransactionAttempt(Txid(txid), attempt_id(epoch, sequence))


def number(attempt_number: int) -> AttemptId:
    return AttemptId(attempt_number)


@dataclass(frozen=True)
class Range:
    """Records `start` to `end` - 1 of one partition."""

    start: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.start

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


@dataclass
class MemoryLog:
    """Rows by partition. `hidden` partitions cannot be read; `on_emit` is called before each read."""

    partitions: dict[str, list[Any]]
    hidden: set[str] = field(default_factory=set)
    on_emit: Callable[[TransactionAttempt, str], None] | None = None
    on_plan: Callable[[Mapping[str, Range]], None] | None = None
    ready: bool = True
    opened: int = 0
    closed: int = 0
    name: str = ""

    def __post_init__(self) -> None:
        self.name = f"log-{next(_names)}"
        _logs[self.name] = self

    def everything(self) -> dict[str, Range]:
        return {partition: Range(0, len(rows)) for partition, rows in self.partitions.items()}


def in_columns(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of rows."""
    columns = [
        pa.array(values, column.type) for values, column in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class MemorySource(PartitionedSpout[Range]):
    """`chunk` rows make one Arrow batch."""

    meta_type: ClassVar[type[Any]] = Range
    other_process: ClassVar[bool] = False

    def __init__(self, log: MemoryLog, output: str = "value string", chunk: int = 3) -> None:
        self.log_name = log.name
        self.output = output
        self.chunk = chunk

    def coordinator(self, context: SpoutContext) -> MemoryCoordinator:
        return MemoryCoordinator(_logs[self.log_name])

    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return MemoryEmitter(_logs[self.log_name], self)


class MemoryCoordinator(PartitionCoordinator[Range]):
    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    def is_ready(self) -> bool:
        return self.log.ready

    def plan(self, last: Mapping[str, Range], limit: int) -> Mapping[str, Range | Unavailable]:
        if self.log.on_plan is not None:
            self.log.on_plan(last)
        plan: dict[str, Range | Unavailable] = {}
        for partition, rows in self.log.partitions.items():
            start = last[partition].end if partition in last else 0
            if partition in self.log.hidden:
                plan[partition] = Unavailable("it is hidden")
            elif start < len(rows) and limit:
                end = min(len(rows), start + limit)
                limit -= end - start
                plan[partition] = Range(start, end)
        return plan

    def unreadable(self, metas: Mapping[str, Range]) -> Mapping[str, Unavailable]:
        return {name: Unavailable("it is hidden") for name in metas if name in self.log.hidden}

    def targets(self) -> Mapping[str, Any]:
        return {partition: len(rows) for partition, rows in self.log.partitions.items()}

    def reached(self, last: Mapping[str, Range], targets: Mapping[str, Any]) -> bool:
        return all(end == 0 or (name in last and last[name].end >= end) for name, end in targets.items())


class MemoryEmitter(PartitionEmitter[Range]):
    def __init__(self, log: MemoryLog, source: MemorySource) -> None:
        self.log = log
        self.schema = parse_schema(source.output)
        self.chunk = source.chunk
        log.opened += 1

    def emit(self, attempt: TransactionAttempt, partition: str, meta: Range) -> Iterator[pa.RecordBatch]:
        if self.log.on_emit is not None:
            self.log.on_emit(attempt, partition)
        if partition in self.log.hidden:
            raise PartitionUnavailableError(f"partition {partition!r} is hidden")
        rows: Sequence[Any] = self.log.partitions[partition][meta.start : meta.end]
        if len(self.schema) == 1:
            rows = [(row,) for row in rows]
        for at in range(0, len(rows), self.chunk):
            yield in_columns(rows[at : at + self.chunk], self.schema)

    def close(self) -> None:
        self.log.closed += 1
