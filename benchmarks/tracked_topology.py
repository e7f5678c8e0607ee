"""How many tuples a second a topology of tracked tuples takes on Spark, with and without ackers.

    python benchmarks/tracked_topology.py --tuples 200000 --ackers 0 1 2 4

Spout, a bolt that splits in two, and one that reads the words by field. `tuples` counts what the spout emits;
each is a tree of three tuples. The rate is that of the best of several runs, which take turns.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from txstream import BasicBolt, Spout, TopologyBuilder
from txstream.api.spouts import SpoutContext
from txstream.engine.batch.plan import compile_topology
from txstream.engine.spark.runner import SparkRunner
from txstream.engine.spark.session import create_session
from txstream.engine.tracked.loop import Cut, TrackedLoop
from txstream.transaction import Epoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_A_CALL = 200


class Numbers(Spout):
    """Emits so many lines, as fast as it is asked."""

    output = "line string"

    def __init__(self, tuples: int) -> None:
        self.left = tuples

    def open(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def next_tuple(self) -> None:
        for _ in range(min(_A_CALL, self.left)):
            self.left -= 1
            self.collector.emit((f"left {self.left % 1000}",), self.left)


class Split(BasicBolt):
    output = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["line"].split():
            collector.emit((word,))


class Look(BasicBolt):
    def execute(self, tup: Any, collector: Any) -> None:
        tup["word"]


def rate(spark: SparkSession, tuples: int, ackers: int, pending: int = 50_000) -> float:
    """Tuples a second, from the first emitted to the last acked."""
    builder = TopologyBuilder("rate", ackers=ackers, max_spout_pending=pending, message_timeout_seconds=300)
    builder.set_spout("numbers", Numbers(tuples))
    builder.set_bolt("split", Split(), 2).shuffle_grouping("numbers")
    builder.set_bolt("look", Look(), 2).fields_grouping("split", "word")
    topology = builder.build()
    context = SpoutContext("rate", "numbers", {})
    plan = compile_topology(topology, context, uuid.uuid4().hex)
    runner = SparkRunner(spark.sparkContext, plan)
    loop = TrackedLoop(topology, plan, runner, context, time.monotonic, Epoch(1))
    loop.open()
    started = time.perf_counter()
    with ThreadPoolExecutor(1) as jobs:
        cut: Cut | None = None
        running: Future[Any] | None = None
        while loop.spouts[0].acked < tuples or not loop.is_at_rest:
            loop.ask()
            if (
                cut is not None
                and running is not None
                and (running.done() or not loop.has_room(loop.spouts[0]))
            ):
                loop.finished(cut, running.result())
                running = None
            if running is None and (cut := loop.cut()) is not None:
                running = jobs.submit(loop.run_batch, cut)
    seconds = time.perf_counter() - started
    runner.close()
    return tuples / seconds


def rates(spark: SparkSession, tuples: int, ackers: Sequence[int], rounds: int = 3) -> dict[int, float]:
    """The best rate with each number of ackers; 0 is without tracking. The first round only warms up."""
    best = dict.fromkeys(ackers, 0.0)
    for number in range(rounds + 1):
        for count in ackers:
            found = rate(spark, tuples, count)
            best[count] = max(best[count], found if number else 0.0)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tuples", type=int, default=200_000)
    parser.add_argument("--ackers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    spark = create_session(master="local[2]")
    try:
        print(json.dumps(rates(spark, options.tuples, options.ackers, options.rounds)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
