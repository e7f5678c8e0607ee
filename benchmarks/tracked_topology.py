"""How many tuples per second does a topology of tracked tuples process on Spark, with and without ackers?

    python benchmarks/tracked_topology.py --tuples 200000 --ackers 0 1 2 4
    python benchmarks/tracked_topology.py --latency 1000

The topology has a spout, a bolt that splits a line in two, and one that reads the words by field. `tuples`
counts what the spout emits; each is a tree of three tuples. All runs have micro-batches of the same size and
equally many tuples in flight. They take turns, and the median counts. On a busy machine, look at the CPU
seconds of all processes.

`--latency` emits that many tuples per second and prints how long their trees and the micro-batches took. It
also prints what a tuple costs the spouts' thread at full speed: emitting it, sending it, and ending its tree.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from txstream import BasicBolt, Spout, TopologyBuilder
from txstream.api.spouts import SpoutContext
from txstream.core.transaction import Epoch
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.spark.session import create_session
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.plugins.tracked.loop import Cut, TrackedLoop
from txstream.testing import InProcessRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_A_CALL = 200
BATCH = 20_000


class Numbers(Spout):
    """Emits `tuples` lines, as fast as it is asked."""

    output = "line string"

    def __init__(self, tuples: int) -> None:
        self.left = tuples

    def open(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        for _ in range(min(_A_CALL, self.left)):
            self.left -= 1
            self.collector.emit((f"left {self.left % 1000}",), self.left)


class Paced(Numbers):
    """Emits `per_second` lines per second, and records how many seconds each tree took."""

    def __init__(self, tuples: int, per_second: float) -> None:
        super().__init__(tuples)
        self.per_second = per_second
        self.emitted, self.began = 0, 0.0
        self.seconds: list[float] = []

    def next_tuple(self) -> None:
        now = time.perf_counter()
        if not self.began:
            self.began = now
        while self.emitted < min(self.left, (now - self.began) * self.per_second):
            self.emitted += 1
            self.collector.emit((f"left {self.emitted % 1000}",), now)

    def ack(self, message_id: Any) -> None:
        self.seconds.append(time.perf_counter() - message_id)


class Split(BasicBolt):
    output = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["line"].split():
            collector.emit((word,))


class Look(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        tup["word"]


def _opened(
    spark: SparkSession | None, spout: Spout, ackers: int, window: int
) -> tuple[TrackedLoop, InProcessRunner | SparkRunner]:
    builder = TopologyBuilder("rate", ackers=ackers, max_spout_pending=window, message_timeout_seconds=300)
    builder.set_spout("numbers", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("numbers")
    builder.set_bolt("look", Look(), 2).fields_grouping("split", "word")
    topology = builder.build()
    context = SpoutContext("rate", "numbers", {})
    plan = compile_topology(topology, context, uuid.uuid4().hex)
    runner = InProcessRunner(plan) if spark is None else SparkRunner(spark.sparkContext, plan)
    loop = TrackedLoop(topology, plan, runner, context, time.monotonic, Epoch(1), width=2)
    loop.open()
    loop.activate()
    return loop, runner


def rate(spark: SparkSession | None, tuples: int, ackers: int, batch: int = BATCH) -> float:
    """Return tuples per second, from the first emitted to the last processed. Without Spark, in this process.
    While a micro-batch runs, the next one of the same size is emitted, with tracking and without."""
    loop, runner = _opened(spark, Numbers(tuples), ackers, window=4 * batch)
    (spout,) = loop.spouts
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as jobs:
        running: tuple[Cut, Future[Any]] | None = None
        while running is not None or spout.emitted < tuples:
            wanted = min(tuples, spout.emitted + batch)
            while spout.emitted < wanted:
                spout.next_tuple()
            if running is not None:
                loop.finished(running[0], running[1].result())
            cut = loop.cut()
            running = None if cut is None else (cut, jobs.submit(loop.run_batch, cut))
    seconds = time.perf_counter() - started
    if spout.acked != tuples:
        raise SystemExit(f"{spout.acked:,} of {tuples:,} trees were acked")
    runner.close()
    return tuples / seconds


def latency(spark: SparkSession | None, per_second: float, seconds: float = 30.0) -> dict[str, float]:
    """Return the milliseconds that trees and micro-batches took, without the first quarter."""
    tuples = int(per_second * seconds)
    loop, runner = _opened(spark, Paced(tuples, per_second), 1, window=tuples)
    (spout,) = loop.spouts
    batches: list[float] = []
    with ThreadPoolExecutor(1) as jobs:
        while spout.acked < tuples:
            spout.next_tuple()
            cut = loop.cut()
            if cut is None:
                time.sleep(0.001)
                continue
            began = time.perf_counter()
            running = jobs.submit(loop.run_batch, cut)
            while not wait([running], 0.001).done:
                spout.next_tuple()
            loop.finished(cut, running.result())
            batches.append(time.perf_counter() - began)
    runner.close()
    paced: Any = spout.spout
    trees = quantiles(paced.seconds[tuples // 4 :], n=100)
    return {
        "tree_p50_ms": 1000 * trees[49],
        "tree_p99_ms": 1000 * trees[98],
        "micro_batch_p50_ms": 1000 * median(batches[len(batches) // 4 :]),
    }


def spout_thread_us(spark: SparkSession | None, tuples: int) -> float:
    """Return the CPU microseconds that a tuple and its tree cost the spouts' thread at full speed."""
    rate(spark, tuples, 1)
    before = time.thread_time()
    rate(spark, tuples, 1)
    return 1e6 * (time.thread_time() - before) / tuples


class Median(NamedTuple):
    """The medians of several runs."""

    tuples_per_second: float
    cpu_seconds: float


def medians(spark: SparkSession | None, tuples: int, ackers: Sequence[int], rounds: int) -> dict[int, Median]:
    """Return medians by the number of ackers; 0 is without tracking. The first round only warms up."""
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in ackers}
    for number in range(rounds + 1):
        for count in ackers if number % 2 else reversed(ackers):
            before = cpu_of_all()
            measured = rate(spark, tuples, count), cpu_of_all() - before
            if number:
                found[count].append(measured)
    return {count: Median(*map(median, zip(*some, strict=True))) for count, some in found.items()}


def cpu_of_all() -> float:
    """Return the CPU seconds so far of this process, its JVM and its Python workers."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (this, *this.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--ackers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-process", action="store_true", help="without Spark")
    parser.add_argument("--latency", type=float, metavar="PER_SECOND")
    options = parser.parse_args()
    spark = None if options.in_process else create_session(master="local[2]")
    try:
        if options.latency is not None:
            found = latency(spark, options.latency)
            found["spout_thread_us_per_tuple"] = spout_thread_us(spark, options.tuples)
            print(json.dumps({name: round(value, 1) for name, value in found.items()}))
            return
        turns = medians(spark, options.tuples, options.ackers, options.rounds)
    finally:
        if spark is not None:
            spark.stop()
    print(json.dumps({count: some._asdict() for count, some in turns.items()}))


if __name__ == "__main__":
    main()
