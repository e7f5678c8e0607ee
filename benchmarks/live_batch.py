"""Where do the milliseconds of a live batch go, from the record to its row?

    python benchmarks/live_batch.py                # 1,000 records/s for 20 s, with services of its own
    python benchmarks/live_batch.py --rate 10000
    python benchmarks/live_batch.py --partitions 1000

Runs the word count of `make bench` on Spark, with a PostgreSQL that syncs every commit, and marks the time
where one part hands a batch to the next. A row of the table is the time since the mark before it: the median,
the 90th percentile, and where it is spent. The first batches are left out. Then comes the CPU time of one
batch, which other load on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from beside_peers import own_server
from peers.ours import topology
from peers.workload import PARTITIONS, make_topic, produce_live

import txstream
from txstream.core.fault_points import Point
from txstream.engine.commit.committer import BatchCommitter
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.planning import Planning
from txstream.engine.spark import spark_runner
from txstream.plugins.local.embedded import embedded
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator
from txstream.state.sql.database import SqlTransaction
from txstream.state.sql.ledger import LedgerWriter
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.writer import TableWriter

# The marks of a batch in their order: what ends at it, and where that is done.
STEPS = {
    "asked": "",
    "plan begins": "handed to the planning thread",
    "planned": "Kafka: where the logs end, and the ranges",
    "emitted": "handed to the event loop",
    "job begins": "handed to a job's thread",
    "answered": "the resident task: order, fetch, bolts, answer",
    "merged": "answer opened, deltas merged, digest",
    "processed": "handed to the event loop",
    "committing": "waiting for the commit and advance of the batch before",
    "commit begins": "handed to the committing thread",
    "connected": "rows checked and sorted, a connection taken",
    "looked": "PostgreSQL: BEGIN, the fence, the ledger's rows of this txid and the one before",
    "upserted": "PostgreSQL: the rows",
    "recorded": "PostgreSQL: the ledger's row",
    "committed": "PostgreSQL: COMMIT with its fsync",
    "wrote": "handed to the event loop",
    "advance begins": "handed to the writing thread",
    "advanced": "ZooKeeper: one write",
    "ended": "handed to the event loop",
}
WARM_BATCHES = 200


class Marks(Watcher):
    """The marks of all batches, in seconds of `time.perf_counter`, by txid."""

    def __init__(self) -> None:
        self.asked = 0
        self.by_txid: dict[int, dict[str, float]] = {}
        self.parts: dict[int, dict[str, float]] = {}
        self._txid = threading.local()

    def mark(self, name: str, txid: int | None = None) -> None:
        if txid is None:
            txid = getattr(self._txid, "now", 0)
        self._txid.now = txid
        self.by_txid.setdefault(txid, {})[name] = time.perf_counter()

    def emitting(self, emit: Any) -> None:
        self.mark("emitted", emit.attempt.txid)

    def processed(self, attempt: Any, result: Any) -> None:
        self.mark("processed", attempt.txid)
        self.parts[attempt.txid] = {
            "reading in the resident task": result.read_seconds,
            "bolts and answer in it": result.process_seconds,
            "records": result.records,
        }

    def committing(self, attempt: Any) -> None:
        self.mark("committing", attempt.txid)

    def wrote(self, attempt: Any, deltas: Any, letters: Any) -> None:
        self.mark("wrote", attempt.txid)

    def advanced(self, timing: Any) -> None:
        self.mark("ended", timing.txid)

    def listen(self, point: Point, txid: int, open_batches: Any) -> None:
        if point is Point.BEFORE_COMMIT:
            self.mark("commit begins", txid)
        elif point is Point.AFTER_COMMIT:
            self.mark("committed", txid)
        elif point is Point.BEFORE_ADVANCE:
            self.mark("advance begins", txid)
        elif point is Point.AFTER_ADVANCE:
            self.mark("advanced", txid)

    def around(
        self,
        owner: Any,
        name: str,
        before: str | None = None,
        after: str | None = None,
        txid_of: Callable[..., int | None] = lambda *_, **__: None,
    ) -> None:
        """Have a function mark its batch when it begins and when it returns."""
        call = getattr(owner, name)

        @functools.wraps(call)
        def marking(*args: Any, **options: Any) -> Any:
            txid = txid_of(*args, **options)
            if before is not None:
                self.mark(before, txid)
            try:
                return call(*args, **options)
            finally:
                if after is not None:
                    self.mark(after, txid)

        setattr(owner, name, marking)


def instrument(marks: Marks) -> None:
    """Have what a batch goes through mark it."""

    def asks(_self: Planning, plan: Any) -> int:
        marks.asked = plan.txid
        return marks.asked

    marks.around(Planning, "_ask", "asked", None, asks)
    marks.around(KafkaPartitionCoordinator, "plan", "plan begins", "planned", lambda *_: marks.asked)
    marks.around(spark_runner.SparkRunner, "run", "job begins", None, lambda _self, attempt, _: attempt.txid)
    marks.around(spark_runner, "open_answers", "answered", None, lambda attempt, _: attempt.txid)
    marks.around(BatchCommitter, "prepare", None, "merged")
    marks.around(Sessions, "_connect", None, "connected")
    marks.around(SqlTransaction, "raise_and_look", None, "looked")
    marks.around(TableWriter, "write", None, "upserted")
    marks.around(LedgerWriter, "write", None, "recorded")


def cpu_seconds() -> dict[str, float]:
    """Return the CPU seconds so far, by thread of this process and by kind of process below it."""
    mine, found = psutil.Process(), defaultdict[str, float](float)
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for thread in mine.threads():
        name = names.get(thread.id, "other threads")
        found[f"driver, {name.rstrip('_0123456789')}"] += thread.user_time + thread.system_time
    for process in mine.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[f"process {process.name()}"] += times.user + times.system
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1000, help="records a second")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of the topic")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long batches are measured")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-live-")))
        server, database = own_server(folder)
        stack.callback(server.close)
        services = stack.enter_context(embedded(folder))
        name = f"live_{uuid.uuid4().hex[:8]}"
        make_topic(services.kafka, name, 0, partitions=options.partitions)
        marks = Marks()
        instrument(marks)
        settings = txstream.Settings(
            zookeeper=services.zookeeper,
            kafka=services.kafka,
            database=database,
            data_dir=folder,
            master="local[2]",
        )
        made = topology(name, name, 100_000, "columnar")
        with txstream.start(made, settings=settings, watchers=[marks], listener=marks.listen) as running:
            while running.state != "running":
                time.sleep(0.1)
            producer = multiprocessing.get_context("spawn").Process(
                target=produce_live,
                args=(services.kafka, name, options.rate, options.seconds + 60),
                kwargs={"partitions": options.partitions},
                daemon=True,
            )
            producer.start()
            while running.is_running and running.progress.committed_txid < WARM_BATCHES:
                time.sleep(0.1)
            first, before = running.progress.committed_txid, cpu_seconds()
            time.sleep(options.seconds)
            last, after = running.progress.committed_txid, cpu_seconds()
            producer.terminate()
            running.stop()
        used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        show(marks, range(first, last), used)


def show(marks: Marks, txids: range, used: dict[str, float]) -> None:
    steps: dict[str, list[float]] = {name: [] for name in STEPS}
    parts: dict[str, list[float]] = {}
    asked: list[float] = []
    whole: list[float] = []
    for txid in txids:
        marked = marks.by_txid[txid]
        before = None
        for name in STEPS:
            if name in marked:
                if before is not None:
                    steps[name].append(marked[name] - before)
                before = marked[name]
        asked.append(marked["asked"])
        whole.append(marked["committed"] - marked["asked"])
        for name, value in marks.parts[txid].items():
            parts.setdefault(name, []).append(value)
    apart = [later - earlier for earlier, later in pairwise(asked)]
    print(f"{len(txids)} batches, one every {1000 * median(apart):.1f} ms")
    for name, taken in steps.items():
        if taken:
            print(f"{_ms(taken)}  {name:<15} {STEPS[name]}")
    print(f"{_ms(whole)}  from asked to committed")
    for name, taken in parts.items():
        print(f"{_ms(taken) if name != 'records' else f'{median(taken):6.0f}      '}  {name}")
    for name, seconds in sorted(used.items(), key=lambda one: -one[1])[:12]:
        print(f"{1000 * seconds / len(txids):6.2f} ms of CPU a batch: {name}")


def _ms(taken: list[float]) -> str:
    return f"{1000 * median(taken):6.2f} {1000 * quantiles(taken, n=10)[-1]:6.2f}"


if __name__ == "__main__":
    main()
