"""The sources that come with txstream keep every promise of the conformance suite.

The Kafka source has a test of its own, over a real broker.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txstream.api.bolts import OutputCollector
from txstream.api.spouts import SpoutContext
from txstream.core.errors import BatchFailedError, DataLostError, PartitionUnavailableError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.plugins.proof.spout_suite import Row, Rows, SpoutHarness, check_spout
from txstream.spouts.batch_spouts import BATCH_PARTITION, BatchSpout
from txstream.spouts.files import FileSpout
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.spouts.memory.failure_markers import Fail
from txstream.spouts.rate import RateSpout

LOST = {"lost-rows-are-told", "a-lost-place-is-told"}
OUTAGES = {
    "plans-around-an-outage",
    "an-outage-keeps-the-place",
    "a-read-in-an-outage-raises",
    "reads-again-after-an-outage",
    "unreadable-names-what-cannot-be-read",
}
END = {"caught-up-in-the-end", "lag-goes-to-zero"}


class Harness(SpoutHarness):
    """The base of the harnesses below; `not_applicable` names the promises that the source cannot break."""

    settle_seconds = 0.0
    not_applicable: ClassVar[set[str]] = set()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = itertools.count()


class MemoryHarness(Harness):
    """Two partitions of a `MemorySpout`."""

    not_applicable: ClassVar[set[str]] = {"same-rows-in-another-process", *LOST}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = ["a", "b"]
        self.spout = MemorySpout("name string, n bigint", {name: [] for name in self.names})

    def create(self) -> MemorySpout:
        return self.spout

    def append(self, count: int) -> Rows:
        return {name: self.write(name, count) for name in self.names}

    def add_partition(self, count: int) -> Rows:
        self.names.append(f"new{len(self.names)}")
        return {self.names[-1]: self.write(self.names[-1], count)}

    def hide(self, partition: str) -> None:
        self.spout.hide(partition)

    def show(self, partition: str) -> None:
        self.spout.show(partition)

    def close(self) -> None:
        self.spout.close()

    def write(self, name: str, count: int) -> list[Row]:
        rows = [(f"{name}é", next(self.written)) for _ in range(count)]
        self.spout.append(name, *rows)
        return [{"name": text, "n": n} for text, n in rows]


class MarkedMemoryHarness(MemoryHarness):
    """Has a `Fail` marker before each append, which has already struck: a position without a row."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ends: Counter[str] = Counter()

    def write(self, name: str, count: int) -> list[Row]:
        end = self.ends[name]
        self.ends[name] += 1 + count
        self.spout.append(name, Fail())
        attempt = TransactionAttempt(Txid(1), AttemptId(1))
        emitter = self.spout.emitter(self.context)
        with pytest.raises(BatchFailedError, match="a Fail marker stands here"):
            list(emitter.emit(attempt, name, MemoryRange(end, end + 1)))
        return super().write(name, count)


class FilesHarness(Harness):
    """Two text files. A hidden file becomes a link to itself, which can be neither examined nor opened."""

    not_applicable: ClassVar[set[str]] = {
        "lag-goes-to-zero"
    }  # the number of lines is not known before they are read

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.names = ["a.txt", "größe.txt"]

    def create(self) -> FileSpout:
        return FileSpout(self.folder)

    def append(self, count: int) -> Rows:
        return {name: self.write(name, count) for name in self.names}

    def add_partition(self, count: int) -> Rows:
        self.names.append(f"new{len(self.names)}")
        return {self.names[-1]: self.write(self.names[-1], count)}

    def hide(self, partition: str) -> None:
        (self.folder / partition).rename(self.folder / f".{partition}")
        (self.folder / partition).symlink_to(self.folder / partition)

    def show(self, partition: str) -> None:
        (self.folder / f".{partition}").replace(self.folder / partition)

    def lose(self, partition: str) -> None:
        (self.folder / partition).unlink()

    def write(self, name: str, count: int) -> list[Row]:
        values = [f"line é {next(self.written)}" for _ in range(count)]
        self.write_lines(name, values)
        return [{"value": value} for value in values]

    def write_lines(self, name: str, lines: list[str]) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


class JsonFilesHarness(FilesHarness):
    """JSON objects with blank lines between them, which are not rows."""

    def create(self) -> FileSpout:
        return FileSpout(self.folder, "json", "n bigint, tags array<string>", with_origin=True)

    def write(self, name: str, count: int) -> list[Row]:
        rows = [{"n": next(self.written), "tags": ["ä", None]} for _ in range(count)]
        self.write_lines(name, [json.dumps(row) + "\n" for row in rows])
        return [{**row, "path": name} for row in rows]


class RateHarness(Harness):
    """Rows come due as the test moves the clock."""

    not_applicable: ClassVar[set[str]] = {"new-partitions-from-their-beginning", *LOST, *OUTAGES, *END}
    start = datetime(2026, 11, 21, 12, tzinfo=UTC)
    rate = 40

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.due = 0

    def now(self) -> float:
        return (self.start + timedelta(seconds=(self.due - 0.5) / self.rate)).timestamp()

    def create(self) -> RateSpout:
        return RateSpout(self.rate, 2, start=self.start, clock=self.now)

    def append(self, count: int) -> Rows | None:
        first, self.due = self.due, self.due + 2 * count
        rows = [
            {"n": n, "timestamp": self.start + timedelta(seconds=n / self.rate)}
            for n in range(first, self.due)
        ]
        return {"0": rows[0::2], "1": rows[1::2]}


class EndlessHarness(RateHarness):
    """Uses the real clock: rows come faster than they are read, and nobody can foresee how many."""

    endless = True
    not_applicable: ClassVar[set[str]] = {
        *RateHarness.not_applicable,
        "a-small-limit-goes-on",
        "begins-where-it-began",
        "no-busy-batches",
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.began = datetime.now(UTC) - timedelta(seconds=1)

    def create(self) -> RateSpout:
        return RateSpout(1000, 2, start=self.began)

    def append(self, count: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines `first` to `end` - 1 of a file."""

    first: int
    end: int


class LinesOfOneFile(BatchSpout[Lines]):
    """Reads a file four lines at a time, as a source without partitions might."""

    output = "line string"
    batch_meta_type = Lines

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, context: SpoutContext) -> None:
        self.context = context

    def lines(self) -> list[str]:
        if self.path.with_suffix(".hidden").exists():
            raise PartitionUnavailableError(f"{self.path} does not answer")
        return self.path.read_text().splitlines()

    def initialize_transaction(self, txid: Txid, previous_meta: Lines | None) -> Lines | None:
        first = 0 if previous_meta is None else previous_meta.end
        end = min(len(self.lines()), first + 4)
        if end < first:
            raise DataLostError(f"{self.path} ends before line {first}")
        return Lines(first, end) if first < end else None

    def emit_batch(self, attempt: TransactionAttempt, meta: Lines, collector: OutputCollector) -> None:
        lines = self.lines()
        if meta.end > len(lines):
            raise DataLostError(f"{self.path} ends before line {meta.end}")
        for line in lines[meta.first : meta.end]:
            collector.emit((line,))

    def targets(self) -> dict[str, int]:
        return {"end": len(self.lines())}

    def reached(self, previous_meta: Lines | None, targets: Any) -> bool:
        return self.lag_records(previous_meta, targets) == 0

    def lag_records(self, previous_meta: Lines | None, targets: Any) -> int:
        return max(0, int(targets["end"]) - (0 if previous_meta is None else previous_meta.end))


class BatchHarness(Harness):
    """A source without partitions, seen as one with a single partition."""

    limits = False
    not_applicable: ClassVar[set[str]] = {
        "limit-respected",
        "new-partitions-from-their-beginning",
        "records-is-not-too-small",
        "unreadable-names-what-cannot-be-read",
        *LOST,
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "log.txt"
        self.path.touch()

    def create(self) -> LinesOfOneFile:
        return LinesOfOneFile(self.path)

    def append(self, count: int) -> Rows:
        lines = [f"line {next(self.written)}" for _ in range(count)]
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return {BATCH_PARTITION: [{"line": line} for line in lines]}

    def hide(self, partition: str) -> None:
        self.path.with_suffix(".hidden").touch()

    def show(self, partition: str) -> None:
        self.path.with_suffix(".hidden").unlink()


HARNESSES: list[type[Harness]] = [
    *(MemoryHarness, MarkedMemoryHarness),
    *(FilesHarness, JsonFilesHarness),
    *(RateHarness, EndlessHarness, BatchHarness),
]


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.__name__.removesuffix("Harness"))
def test_promises(harness: type[Harness], tmp_path_factory: pytest.TempPathFactory) -> None:
    report = check_spout(lambda: harness(tmp_path_factory.mktemp("log")))
    assert dict(report.not_applicable).keys() == harness.not_applicable, report
