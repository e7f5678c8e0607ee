"""What tests on Spark run: a source and bolts that worker processes can make, and that note what they do.

A note is a line in a file, because files are the only place that every process shares with the test.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from support.inmemory import CONTEXT, Range, in_columns
from txstream.api.bolts import BasicBolt, BatchBolt, Committer, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.schema import parse_schema
from txstream.api.spouts import (
    OpaqueSpout,
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    SpoutContext,
)
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import PartitionUnavailableError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import BatchResult

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker

Rows = Callable[[str, int], tuple[Any, ...]]


def note(file: Path, *words: object) -> None:
    """Add a line. Each line is written at once, so that lines of several processes do not mix."""
    with file.open("ab", buffering=0) as notes:
        notes.write((" ".join(map(str, words)) + "\n").encode())


def notes(file: Path) -> list[list[str]]:
    """Return the words of each line so far."""
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def line(partition: str, number: int) -> tuple[Any, ...]:
    """Return a row of words, of which some come often and some come seldom."""
    return (f"{partition} w{number % 7} x{number % 3} n{number}",)


class NotedSource(PartitionedSpout[Range]):
    """Row i of a partition is `rows(partition, i)`. Each reading of a range is noted: txid, attempt,
    partition, start, end, pid. So is what was read ahead: "ahead", partition, bytes. While the file `away`
    exists, nothing can be read."""

    meta_type: ClassVar[type[Any]] = Range

    def __init__(
        self,
        rows: Rows = line,
        output: str = "value string",
        file: Path | None = None,
        away: Path | None = None,
    ) -> None:
        self.rows = rows
        self.output = output
        self.file = file
        self.away = away

    def coordinator(self, context: SpoutContext) -> PartitionCoordinator[Range]:
        raise NotImplementedError("tests give the ranges")

    def emitter(self, context: SpoutContext) -> PartitionEmitter[Range]:
        return NotedEmitter(self)


class NotedEmitter(PartitionEmitter[Range]):
    def __init__(self, source: NotedSource) -> None:
        self.source = source
        self.schema = parse_schema(source.output)

    def take_ahead(self, metas: Mapping[str, Range], ahead: Mapping[str, bytes]) -> None:
        for partition, data in ahead.items():
            assert partition in metas
            if self.source.file is not None:
                note(self.source.file, "ahead", partition, data.hex())

    def emit(self, attempt: TransactionAttempt, partition: str, meta: Range) -> Iterator[pa.RecordBatch]:
        if self.source.away is not None and self.source.away.exists():
            raise PartitionUnavailableError(f"partition {partition!r} is away")
        if self.source.file is not None:
            note(
                self.source.file, attempt.txid, attempt.attempt, partition, meta.start, meta.end, os.getpid()
            )
        for start in range(meta.start, meta.end, 50):
            rows = [self.source.rows(partition, i) for i in range(start, min(start + 50, meta.end))]
            yield in_columns(rows, self.schema)


def dies(partition: str, number: int) -> tuple[Any, ...]:
    """End the worker process instead of returning a row."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still there")


def ranges(**records: int) -> BatchMetas[Range]:
    """Return the metas of a batch with so many first rows of each partition."""
    return BatchMetas({partition: Range(0, end) for partition, end in records.items()})


def captured(topology: Topology, run_id: str, *, capture: bool = True) -> ExecutionPlan:
    return compile_topology(topology, CONTEXT, run_id, capture=capture)


def emissions(*results: BatchResult) -> dict[tuple[str, str, int], list[tuple[Any, ...]]]:
    """Return what each task emitted to each stream in a batch, in order."""
    found: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
    for result in results:
        for component, stream, task, tuples in result.emitted:
            assert (component, stream, task) not in found, f"{component}, {stream}, {task} came twice"
            found[component, stream, task] = [tuple(row.values()) for row in tuples.to_pylist()]
    return found


def deltas(*results: BatchResult) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each state would store, as sorted rows; parts that the driver would merge stay apart."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for result in results:
        for component, tables in result.deltas.items():
            rows.setdefault(component, []).extend(
                tuple(row.values()) for table in tables for row in table.to_pylist()
            )
    return {component: sorted(found, key=repr) for component, found in rows.items()}


def task_counts(*results: BatchResult) -> dict[tuple[str, int, int], int]:
    """Return the number of tuples by component, task and slot: a state's tasks run in several slots."""
    found: dict[tuple[str, int, int], int] = {}
    for result in results:
        for place in result.places:
            assert (place.component, place.task, place.slot) not in found, f"{place} ran twice"
            found[place.component, place.task, place.slot] = place.tuples
    return found


def noting(file: Path, name: str, gate: Path, index: int, _: Iterator[Any]) -> Iterator[int]:
    """Run as a Spark task that notes its beginning and ends when the gate exists, or after a minute."""
    note(file, name, index)
    wait_for(gate)
    yield index


def wait_for(file: Path, lines: int = 0) -> None:
    """Wait until a file exists and has so many lines."""
    tick = threading.Event()
    for _ in range(1200):
        if file.exists() and len(notes(file)) >= lines:
            return
        tick.wait(0.05)
    raise AssertionError(f"{file.name} did not have {lines} lines within a minute")


def tracker(context: SparkContext) -> StatusTracker:
    """Return Spark's tracker of jobs and stages, which then knows all that has happened so far. Spark reports
    events to it through a queue, later than to those who wait for a job."""
    context._jsc.sc().listenerBus().waitUntilEmpty(60_000)
    return context.statusTracker()


# --- bolts ---------------------------------------------------------------------------------------------


class Words(BasicBolt):
    """Emits the words of a line: seldom ones to a stream of their own, and every tenth line's directly to a
    task that it chooses. Notes each instance and each tuple."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = file

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string")
        declarer.declare("word string, length int", stream="seldom")
        declarer.declare("word string", stream="chosen", direct=True)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if self.file is not None:
            note(self.file, "execute", self.context.attempt.attempt, self.context.component, tup[0])
        first, *middle, last = tup[0].split()
        for word in (first, *middle):
            collector.emit((word,))
        collector.emit((last, len(last)), stream="seldom")
        if last.endswith("0"):
            collector.emit_direct(len(last) % 3, (last,), stream="chosen")


class Tagged(BasicBolt):
    """Emits a word and the task that it came through."""

    output = "word string, by string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["word"], f"{self.context.component}-{self.context.task_index}"))


class CountWords(BatchBolt):
    """Emits words and how often they came over all inputs, in the order in which they first came."""

    output = "word string, n bigint"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        for word, count in self.counts.items():
            self.collector.emit((word, count))


class CommitWords(CountWords, Committer):
    """`CountWords` in the commit phase."""


class Numbered(BatchBolt):
    """Numbers what it gets, so that another order gives another result."""

    output = "number bigint, word string, task int"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.number = 0

    def execute(self, tup: Tuple) -> None:
        self.number += 1
        self.collector.emit((self.number, tup["word"], tup.source_task))


class Same(BasicBolt):
    """Emits what it gets."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(tup.values)


class Slow(Same):
    """Takes its time over each tuple."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        time.sleep(0.01)
        super().execute(tup, collector)


class FailsOn(Same):
    """Raises for one word; if it is given a file, only while that file exists. If it `keeps`, an instance
    counts its tuples."""

    tuples = 0

    def __init__(
        self,
        word: str,
        file: Path | None = None,
        error: type[BaseException] = ValueError,
        *,
        keeps: bool = False,
    ) -> None:
        self.word = word
        self.file = file
        self.error = error
        self.keeps = keeps

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if self.keeps:
            self.tuples += 1
        if tup["word"] == self.word and (self.file is None or self.file.exists()):
            raise self.error(f"no {self.word} here")
        super().execute(tup, collector)


class DiesOn(Same):
    """Ends the worker process at one word."""

    def __init__(self, word: str) -> None:
        self.word = word

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == self.word:
            os.kill(os.getpid(), signal.SIGKILL)
        super().execute(tup, collector)


class CommitterFailsOn(CommitWords):
    """Raises for one word in the commit phase."""

    def __init__(self, word: str) -> None:
        self.word = word

    def execute(self, tup: Tuple) -> None:
        if tup["word"] == self.word:
            raise KeyError(self.word)
        super().execute(tup)


class Holds(Same):
    """Notes that it began, and goes on when the gate is open, or after a minute."""

    def __init__(self, began: Path, gate: Path) -> None:
        self.began = began
        self.gate = gate

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        note(self.began, os.getpid())
        wait_for(self.gate)
        super().execute(tup, collector)


class KillsWorker(Same):
    """Ends its worker process at its first tuple, unless the file exists, which it then makes."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if not self.file.exists():
            note(self.file, os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)
        super().execute(tup, collector)


class NotesPool(CountWords):
    """Notes the scheduler pool of its phase, once per task."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def finish_batch(self) -> None:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        note(self.file, self.context.component, context.getLocalProperty("spark.scheduler.pool"))
        super().finish_batch()


class Opens(Same):
    """Opens a resource per worker process, which alone may use it. Notes each opening and closing."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def prepare_worker(self, context: Any) -> int:
        note(self.file, "open", context.component, os.getpid())
        return os.getpid()

    def close_worker(self, resource: int) -> None:
        note(self.file, "close", resource, os.getpid())

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        assert self.context.resource == os.getpid()
        super().execute(tup, collector)


# --- topologies ----------------------------------------------------------------------------------------


def state(table: str) -> SqlState:
    return SqlState(table, key="word string", value="n bigint")


def diamond(file: Path | None = None, *, split: BasicBolt | None = None, source: Any = None) -> Topology:
    """A diamond with three streams, every grouping, and committers in the middle and at the end.

    split feeds four bolts; the committer's rows go to two bolts, one of which is a committer again.
    """
    builder = TransactionalTopologyBuilder("diamond", "lines", OpaqueSpout(source or NotedSource()), 4)
    builder.set_bolt("split", split or Words(file), 4).shuffle_grouping("lines")
    builder.set_bolt("left", Tagged(), 4).local_or_shuffle_grouping("split")
    builder.set_bolt("right", Tagged(), 3).partial_key_grouping("split", "word")
    both = builder.set_bolt("both", CountWords(), 4).set_num_tasks(6)
    both.fields_grouping("left", "word").fields_grouping("right", "word")
    both.fields_grouping("split", "word", stream="seldom")
    builder.set_bolt("chosen", Numbered(), 2).set_num_tasks(3).direct_grouping("split", stream="chosen")
    builder.set_bolt("spread", Numbered(), 3).shuffle_grouping("split")
    middle = builder.set_committer_bolt("middle", CommitWords(), 4)
    middle.fields_grouping("both", "word").fields_grouping("chosen", "word")
    builder.set_bolt("every", Numbered(), 2).all_grouping("middle")
    end = builder.set_committer_bolt("end", CommitWords(), 2)
    end.global_grouping("middle").none_grouping("left")
    builder.set_committer_bolt("early", SqlStateBolt(state("early"))).fields_grouping("both", "word")
    builder.set_committer_bolt("late", SqlStateBolt(state("late"))).fields_grouping("middle", "word")
    return builder.build()


def row_of(bolts: Sequence[Any], *, parallelism: int = 2, file: Path | None = None) -> Topology:
    """lines, words, then the bolts as b0, b1, ... by local_or_shuffle, then a count per word."""
    builder = TransactionalTopologyBuilder("row", "lines", OpaqueSpout(NotedSource(file=file)), parallelism)
    builder.set_bolt("words", Words(), parallelism).local_or_shuffle_grouping("lines")
    above = "words"
    for position, bolt in enumerate(bolts):
        builder.set_bolt(f"b{position}", bolt, parallelism).local_or_shuffle_grouping(above)
        above = f"b{position}"
    builder.set_committer_bolt("store", SqlStateBolt(state("words"), n=Count())).fields_grouping(
        above, "word"
    )
    return builder.build()
