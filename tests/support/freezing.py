"""Freezes processes of Spark (SIGSTOP) in the middle of a commit.

Until `Places.gate` exists, tasks of these topologies note their process in `Places.inside` and wait for it:
a reducer in the middle of its share's transaction, a committer right before its transaction.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from support.on_spark import note, notes, wait_for
from support.row_files import RowFiles
from txstream.api.bolts import BatchBolt, Committer, OutputCollector, TopologyContext, WorkerContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import custom
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.transaction import TransactionAttempt
from txstream.core.waits import wait_until
from txstream.testing import TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLDS = 1_000
"""A reducer waits before it adds to a sum of at least this; only the first batch makes one."""
AMOUNTS = {"p0": [("ash", HOLDS), ("elm", 1), ("ash", 2), ("elm", 3), ("oak", 4), ("elm", 5)]}
"""Two rows make a batch. Only the second batch adds to the sum that waits."""
TOTALS = {"ash": HOLDS + 2, "elm": 9, "oak": 4}


@dataclass(frozen=True)
class Places:
    folder: Path

    @property
    def inside(self) -> Path:
        return self.folder / "inside"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    @property
    def writes(self) -> Path:
        """How each task's transaction ended: attempt, process, and "written" or an error's name."""
        return self.folder / "writes"

    def found(self) -> psutil.Process:
        """Return the process that waits for the gate, once there is one."""
        wait_for(self.inside, 1)
        return psutil.Process(int(notes(self.inside)[0][0]))


@dataclass(frozen=True)
class AddsAndHolds:
    places: Places

    def __call__(self, one: int, other: int) -> int:
        stored = max(one, other) >= HOLDS and min(one, other) > 0
        if stored and not self.places.gate.exists():
            note(self.places.inside, os.getpid())
            wait_for(self.places.gate)
        return one + other


def holding_in_its_share(places: Places, spout: Any, **options: Any) -> Topology:
    """Return a topology of sums by word, written by executors."""
    rows = RowFiles(places.folder / "rows", "word string, n bigint", AMOUNTS, max_records_per_partition=2)
    builder = TransactionalTopologyBuilder(
        "frozen", "words", spout(rows), commit="executors", max_spout_pending=1, **options
    )
    store = SqlStateBolt(
        SqlState("sums", key="word string", value="n bigint"), n=custom(AddsAndHolds(places), 0)
    )
    builder.set_committer_bolt("store", store, 2).fields_grouping("words", "word")
    return builder.build()


@contextmanager
def frozen(*processes: psutil.Process) -> Iterator[None]:
    """Freeze these processes; at the end, let those that still exist go on."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


# --- a whole executor ----------------------------------------------------------------------------------

# Enough for one Spark task on each of two executors: both know the plan when one of them is frozen.
MANY = 2_100
TOTAL = {f"w{number}": 2 * MANY // 7 + {1: 1, 2: 2, 3: 2}.get(number, 0) for number in range(7)}


class HoldsBeforeItWrites(BatchBolt, Committer):
    """Counts words in a state of its own. The second batch is held at the end of the bolt's work."""

    output = "word string"
    states = {"counts": SqlState("held", "word string", "n bigint")}  # noqa: RUF012 - as a user writes it

    def __init__(self, places: Places) -> None:
        self.places = places

    def prepare_worker(self, context: WorkerContext) -> None:
        note_writes(self.places.writes)

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        added = [lambda old, more=more: (old or 0) + more for more in self.counts.values()]
        self.context.state("counts").multi_update(list(self.counts), added)
        if self.batch_id.txid == 2 and not self.places.gate.exists():
            note(self.places.inside, os.getpid())
            wait_for(self.places.gate)


def note_writes(file: Path) -> None:
    """Have this process note how every write ends."""
    from txstream.state import TopologyStates

    write = TopologyStates.write

    def noted(self: TopologyStates, attempt: Any, writes: Any) -> int:
        came = "written"
        try:
            return write(self, attempt, writes)
        except Exception as error:
            came = type(error).__name__
            raise
        finally:
            note(file, attempt.attempt, os.getpid(), came)

    TopologyStates.write = noted  # type: ignore[method-assign]


def freeze_an_executor(spark: SparkSession, folder: Path, url: str) -> dict[str, Any]:
    """Freeze an executor, JVM and Python, when its committer is about to write; wake it once the next batch
    is committed. Return how the batch went, how the zombie's write ended, and the table at the end."""
    places = Places(folder)
    many = [(f"w{number % 7}",) for number in range(MANY)]
    rows = RowFiles(folder / "rows", "word string", {"a": many, "b": many})
    with ThreadPoolExecutor(1) as helper:
        builder = TransactionalTopologyBuilder("zombie", "words", OpaqueSpout(rows), 2)
        builder.set_committer_bolt("counts", HoldsBeforeItWrites(places), 2).fields_grouping("words", "word")
        with TopologyTest(builder.build(), spark=spark, database=url) as test:
            test.commit(1)

            def freeze() -> tuple[psutil.Process, list[psutil.Process]]:
                worker = places.found()
                daemon = worker.parent()
                executor = None if daemon is None else daemon.parent()
                assert executor is not None
                others = [executor, *(p for p in executor.children(recursive=True) if p != worker)]
                for process in (*others, worker):
                    process.send_signal(signal.SIGSTOP)
                places.gate.touch()
                test.clock.advance(31)
                return worker, others

            freezing = helper.submit(freeze)
            rows.append("a", ("w1",), ("w2",))
            rows.append("b", ("w2",), ("w3",))
            test.commit(2)
            worker, others = freezing.result()
            rows.append("a", ("w3",))
            test.commit(3)
            # Only the worker: the executor would hear that the task was cancelled, and kill the worker.
            worker.send_signal(signal.SIGCONT)
            woken = [str(test.attempts(2)[0].id.attempt), str(worker.pid)]
            assert wait_until(lambda: any(words[:2] == woken for words in notes(places.writes)), 60)
            for process in others:
                process.send_signal(signal.SIGCONT)
            return {
                "states": [str(attempt.state) for attempt in test.attempts(2)],
                "zombie": [words[2] for words in notes(places.writes) if words[:2] == woken],
                "table": test.table("held"),
            }
