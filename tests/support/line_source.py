"""A correct source that is small enough to be made wrong: a folder of text files, a row for each line, a
partition for each file. The sources in tests/support/wrong_spouts each break one of its promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from support.inmemory import Range
from txstream.api.schema import parse_schema
from txstream.api.spouts import (
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
    Unavailable,
)
from txstream.core.errors import DataLostError, PartitionUnavailableError
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.proof.spout_suite import Row, Rows, SpoutHarness


class LineLog:
    """The files. A file `NAME.hidden` beside one is an outage; `NAME.first` says which lines are lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def partitions(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.lines"))

    def append(self, partition: str, lines: Iterable[str]) -> None:
        with (self.folder / f"{partition}.lines").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def lines(self, partition: str) -> list[str]:
        """Return the partition's lines. Raises OSError in an outage."""
        if (self.folder / f"{partition}.hidden").exists():
            raise OSError(f"{partition}.lines: the disk does not answer")
        return (self.folder / f"{partition}.lines").read_text().splitlines()

    def first(self, partition: str) -> int:
        first = self.folder / f"{partition}.first"
        return int(first.read_text()) if first.exists() else 0


@dataclass(frozen=True)
class LineRange(Range):
    """Lines `start` to `end` - 1."""


def place(partition: str, last: Mapping[str, LineRange]) -> int:
    """Return the number of the next line."""
    return last[partition].end if partition in last else 0


class LineCoordinator(PartitionCoordinator[LineRange]):
    def __init__(self, source: LineSource) -> None:
        self.source = source
        self.log = LineLog(source.folder)

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return place(partition, last)

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Mapping[str, LineRange | Unavailable]:
        plan: dict[str, LineRange | Unavailable] = {}
        for partition in self.log.partitions():
            try:
                length = len(self.log.lines(partition))
            except OSError as error:
                plan[partition] = Unavailable(str(error))
                continue
            start = self.start(partition, last)
            if start < self.log.first(partition):
                raise DataLostError(f"{partition}: line {start} is gone")
            end = min(length, start + limit)
            if start < end:
                plan[partition] = LineRange(start, end)
                limit -= end - start
        return plan

    def unreadable(self, metas: Mapping[str, LineRange]) -> Mapping[str, Unavailable]:
        found = {}
        for partition in metas:
            try:
                self.log.lines(partition)
            except OSError as error:
                found[partition] = Unavailable(str(error))
        return found

    def targets(self) -> Mapping[str, Any]:
        return {partition: len(self.log.lines(partition)) for partition in self.log.partitions()}

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return all(place(partition, last) >= end for partition, end in targets.items())

    def lag_records(self, last: Mapping[str, LineRange], targets: Mapping[str, int]) -> int | None:
        return sum(max(0, end - place(partition, last)) for partition, end in targets.items())


class LineEmitter(PartitionEmitter[LineRange]):
    def __init__(self, source: LineSource) -> None:
        self.source = source
        self.log = LineLog(source.folder)
        self.schema = parse_schema(source.output)

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        """Return the lines of a range, or raise what a source must raise."""
        try:
            lines = self.log.lines(partition)
        except OSError as error:
            raise PartitionUnavailableError(str(error)) from error
        first = self.log.first(partition)
        if meta.start < first or meta.end > len(lines):
            raise DataLostError(f"{partition}: {meta} is gone, lines {first} to {len(lines)} are left")
        return lines[meta.start : meta.end]

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        for line in self.read(attempt, partition, meta):
            yield self.batch([line])

    def batch(self, lines: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], schema=self.schema)


class LineSource(PartitionedSpout[LineRange]):
    """Reads with the coordinator and the emitter that its class names."""

    meta_type: ClassVar[type[Any]] = LineRange
    output = "line string"
    coordinator_type: ClassVar[type[LineCoordinator]] = LineCoordinator
    emitter_type: ClassVar[type[LineEmitter]] = LineEmitter

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def coordinator(self, context: SpoutContext) -> LineCoordinator:
        return self.coordinator_type(self)

    def emitter(self, context: SpoutContext) -> LineEmitter:
        return self.emitter_type(self)

    def identity(self) -> Mapping[str, Any]:
        return {"folder": str(self.folder)}


class LineHarness(SpoutHarness):
    """Two files in the harness's folder, read by a source of the given class."""

    settle_seconds = 0.0
    deadline_seconds = 10.0

    def __init__(self, folder: Path, source_type: type[LineSource] = LineSource) -> None:
        folder.mkdir()
        self.log = LineLog(folder)
        self.source_type = source_type
        self.names = ["a", "b"]
        self.written = 0

    def create(self) -> LineSource:
        return self.source_type(self.log.folder)

    def append(self, count: int) -> Rows | None:
        return {name: self._write(name, count) for name in self.names}

    def add_partition(self, count: int) -> Rows | None:
        self.names.append(f"new{len(self.names)}")
        return {self.names[-1]: self._write(self.names[-1], count)}

    def hide(self, partition: str) -> None:
        (self.log.folder / f"{partition}.hidden").touch()

    def show(self, partition: str) -> None:
        (self.log.folder / f"{partition}.hidden").unlink()

    def lose(self, partition: str) -> None:
        (self.log.folder / f"{partition}.first").write_text(str(len(self.log.lines(partition))))

    def _write(self, name: str, count: int) -> list[Row]:
        lines = [f"{name} line {self.written + number}" for number in range(count)]
        self.written += count
        self.log.append(name, lines)
        return [{"line": line} for line in lines]
