"""Sources that read wrongly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from support.line_source import LineCoordinator, LineEmitter, LineRange, LineSource
from support.wrong_spouts.registry import Plan, breaks
from txstream.api.spouts import SpoutContext, Unfit
from txstream.core.transaction import TransactionAttempt, sequence_of


@breaks("rows-as-declared")
class LargeStrings(LineEmitter):
    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.schema = pa.schema([pa.field("line", pa.large_string())])

    def batch(self, lines: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_string())], schema=self.schema)


@breaks("rows-as-declared")
class Renaming(LineEmitter):
    def batch(self, lines: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"text": lines})


@breaks("rows-as-declared")
class Tables(LineEmitter):
    def batch(self, lines: list[str]) -> Any:
        return pa.Table.from_batches([super().batch(lines)])


@breaks("same-rows-again")
class Alternating(LineEmitter):
    """Keeps the result of its last read, and spoils it in the next one."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.asked: Any = None
        self.lines: list[str] = []

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        if self.asked == (attempt, partition, meta):
            self.lines.reverse()
        else:
            self.asked, self.lines = None, lines
        return list(self.lines)

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        yield from super().emit(attempt, partition, meta)
        self.asked = (attempt, partition, meta)


@breaks("same-rows-in-another-attempt")
class ByAttempt(LineEmitter):
    """Derives the order of rows from the attempt."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        turn = (sequence_of(attempt.attempt) - 1) % max(1, meta.records)
        lines = super().read(attempt, partition, meta)
        return lines[turn:] + lines[:turn]


class NumberedEmitter(LineEmitter):
    number = 1

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        return lines[::-1] if self.number == 2 else lines


@breaks("same-rows-from-any-emitter")
class NumberingSource(LineSource):
    """Numbers its emitters, and an emitter's number shows in its rows."""

    emitter_type = NumberedEmitter

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.count = 0

    def emitter(self, context: SpoutContext) -> LineEmitter:
        self.count += 1
        emitter = NumberedEmitter(self)
        emitter.number = self.count
        return emitter

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "count": 0}


@dataclass(frozen=True, slots=True)
class OpenRange(LineRange):
    to_the_end: bool = False


class OpenCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: OpenRange(meta.start, meta.end, meta.end == len(self.log.lines(name)))
            if isinstance(meta, LineRange)
            else meta
            for name, meta in super().plan(last, limit).items()
        }


class OpenEmitter(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        if isinstance(meta, OpenRange) and meta.to_the_end:
            return self.log.lines(partition)[meta.start :]
        return lines


@breaks("same-rows-after-append")
class OpenSource(LineSource):
    """Its plan says "to the end", whatever the end is at the time of reading."""

    meta_type = OpenRange
    coordinator_type = OpenCoordinator
    emitter_type = OpenEmitter


@breaks("ships-to-workers")
class Locked(LineSource):
    """Opens something in itself that cannot be pickled."""

    def coordinator(self, context: SpoutContext) -> LineCoordinator:
        self.lock = threading.Lock()
        return super().coordinator(context)


class HereEmitter(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        here = isinstance(self.source, ProcessSource) and self.source.pid == os.getpid()
        return lines if here else [line.upper() for line in lines]


@breaks("same-rows-in-another-process")
class ProcessSource(LineSource):
    """Reads differently in any process but the one that made it."""

    emitter_type = HereEmitter

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.pid = os.getpid()


@breaks("seeks-back")
class Prefetching(LineEmitter):
    """When asked for something earlier, it hands out what it has prefetched."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.before: dict[str, tuple[LineRange, list[str]]] = {}

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        before, prefetched = self.before.get(partition, (meta, lines))
        self.before[partition] = (meta, lines)
        return prefetched if meta.end <= before.start else lines


@breaks("emitters-do-not-disturb-each-other")
class SharedCursor(LineEmitter):
    """Keeps its position in the class, for all emitters."""

    cursors: ClassVar[dict[Any, int]] = {}

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        lines = self.read(attempt, partition, meta)
        at = (self.log.folder, partition)
        self.cursors[at] = meta.start
        while meta.start <= self.cursors[at] < meta.end:
            yield self.batch([lines[self.cursors[at] - meta.start]])
            self.cursors[at] += 1


@breaks("a-read-may-be-given-up")
class Leftovers(LineEmitter):
    """Begins with what the read before did not get to."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.pending: list[str] = []

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        self.pending += self.read(attempt, partition, meta)
        while self.pending:
            yield self.batch([self.pending.pop(0)])


@breaks("emit-many-equals-emit")
class Mixing(LineEmitter):
    """Reads partitions together, and gives the last line of each first."""

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for partition, meta in metas.items():
            for line in reversed(self.read(attempt, partition, meta)):
                yield partition, self.batch([line])


@breaks("emit-many-equals-emit")
class Generous(LineEmitter):
    """Gives rows of partitions that nobody asked for."""

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from super().emit_many(attempt, metas)
        yield "surplus", self.batch(["from elsewhere"])


@breaks("emit-many-equals-emit")
class Misjoining(LineEmitter):
    """Says that all rows come from the first partition."""

    def emit_joined(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange]
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
        for _, batch in super().emit_many(attempt, metas):
            yield {next(iter(metas)): batch.num_rows}, batch


@breaks("emit-many-equals-emit")
class Unfitting(LineEmitter):
    """Leaves out a line that can be decoded, and says nothing of it."""

    def emit_fitting(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange], unfit: Unfit
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch, None]]:
        for counts, batch, _ in super().emit_fitting(attempt, metas, unfit):
            yield {name: max(0, count - 1) for name, count in counts.items()}, batch.slice(1), None


class MiscountedRange(LineRange):
    @property
    def records(self) -> int:
        return self.end - self.start - 1


class MiscountingCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: MiscountedRange(meta.start, meta.end) if isinstance(meta, LineRange) else meta
            for name, meta in super().plan(last, limit).items()
        }


@breaks("records-is-not-too-small")
class MiscountingSource(LineSource):
    meta_type = MiscountedRange
    coordinator_type = MiscountingCoordinator
