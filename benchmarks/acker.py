"""What does tracking cost? The ledger's messages/s and bytes, and a topology with and without tracking.

    python benchmarks/acker.py
    python benchmarks/acker.py --json

The ledger has a million trees pending, in all stages. A step acks some of them, chosen at random, and begins
as many trees as it ended. Every tree is the one in `docs/acker.md`: an init and three acks. The time is one
core's CPU time in the fastest step, so that other work on the machine counts little.

The topology is that of `tracked_topology.py`, which only passes tuples on. It runs without tracking
(`ackers=0`) and with 1, 2 and 4 ackers in turns, in one Spark session, with the same micro-batches. The
median counts. Tuples are those of the spout. On a busy machine, look at the price in CPU seconds of all
processes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tracked_topology
from pyspark import cloudpickle
from tracked_topology import Median, Numbers, Split, medians

from txstream import TopologyBuilder
from txstream.engine.spark.session import create_session
from txstream.plugins.tracked.acker.ackers import Ackers
from txstream.plugins.tracked.acker.ids import RootIds, TupleIds, fold
from txstream.plugins.tracked.acker.ledger import AckLedger
from txstream.testing import TrackedTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNTRACKED = 0
ACKERS = (1, 2, 4)
SPOUT_TASK = 0
FEW_BITS = 16


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pending", type=int, default=1_000_000, help="trees (default 1,000,000)")
    parser.add_argument("--messages", type=int, default=200_000, help="in a step (default 200,000)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tuples", type=int, default=200_000, help="in a run of the topology")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each kind (default 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = ledger_figures(options.pending, options.messages, options.steps)
    with tempfile.TemporaryDirectory(prefix="txstream-acker-") as directory:
        # Workers cannot import this module.
        cloudpickle.register_pickle_by_value(tracked_topology)  # type: ignore[no-untyped-call]
        spark = create_session(master="local[2]", log_file=Path(directory) / "spark.log")
        try:
            figures |= topology_figures(spark, options.tuples, options.rounds)
        finally:
            spark.stop()
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name.replace('_', ' '):<50} {figure}")
    return 0


def ledger_figures(pending: int, messages: int, steps: int) -> dict[str, Any]:
    rates = {ackers: ledger_rate(pending, messages, steps, ackers) for ackers in ACKERS}
    measured, derived = false_zeros(pending)
    return {
        "ledger_messages_per_second": rates[1],
        "ledger_messages_per_second_by_ackers": {str(ackers): rate for ackers, rate in rates.items()},
        "fold_messages_per_second": fold_rate(messages, steps),
        "bytes_per_pending_tree": bytes_per_tree(pending),
        f"false_zeros_per_tree_with_{FEW_BITS}_bits": measured,
        f"false_zeros_per_tree_with_{FEW_BITS}_bits_derived": derived,
    }


class Trees:
    """Trees as in the guide, and the stage of each. T1 and T2 are sent. T1 is acked, with T3, T4 and T5
    anchored to it. Then T2 is acked, and then T3, T4 and T5 in one message."""

    def __init__(self, count: int) -> None:
        self._draw = TupleIds(13).draw
        self.root_ids = RootIds()
        self.roots = self.root_ids.take(count)
        self.stage = np.zeros(count, np.intp)
        # The values of each tree's init and three acks.
        self.values = np.zeros((4, count), np.uint64)
        self.renew(np.arange(count))

    def renew(self, trees: np.ndarray[Any, Any]) -> None:
        t1, t2, t345 = self._draw(3 * len(trees)).reshape(3, -1)
        self.values[:, trees] = t1 ^ t2, t1 ^ t345, t2, t345
        self.stage[trees] = 0

    def ack(self, trees: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the roots and values of each tree's next ack."""
        self.stage[trees] += 1
        return self.roots[trees], self.values[self.stage[trees], trees]


def ledger_rate(pending: int, messages: int, steps: int, ackers: int) -> int:
    """Return init and ack messages per second. Every answer is checked."""
    random, trees, ledger = np.random.default_rng(13), Trees(pending), Ackers(ackers)
    ledger.init(trees.roots, trees.values[0], SPOUT_TASK)
    for third in (1, 2):
        ledger.ack(*trees.ack(np.arange(third * pending // 3, pending)))
    part, fastest = messages // 4, float("inf")
    for _ in range(steps):
        some = [
            random.choice(np.flatnonzero(trees.stage == stage), part, replace=False) for stage in range(3)
        ]
        ending, roots = some[2], trees.roots[some[2]]
        acks = trees.ack(random.permutation(np.concatenate(some)))
        seconds, ended = cpu_seconds(ledger.ack, *acks)
        if not np.array_equal(np.sort(ended.completed.roots), np.sort(roots)):
            raise SystemExit("the ledger completed other trees than those whose last ack had come")
        trees.root_ids.release(roots)
        trees.roots[ending] = trees.root_ids.take(part)
        trees.renew(ending)
        init = (trees.roots[ending], trees.values[0, ending], SPOUT_TASK)
        fastest = min(fastest, seconds + cpu_seconds(ledger.init, *init)[0])
    return round(4 * part / fastest)


def fold_rate(messages: int, steps: int) -> int:
    """Return messages per second that a task folds before it sends: four of each root, in any order."""
    random = np.random.default_rng(13)
    roots = random.permutation(np.repeat(RootIds().take(messages // 4), 4))
    values = TupleIds(13).draw(len(roots))
    return round(len(roots) / min(cpu_seconds(fold, roots, values)[0] for _ in range(steps)))


def bytes_per_tree(pending: int) -> float:
    """Return the bytes that ledger and spouts keep per tree begun one by one, without message ids."""
    builder = TopologyBuilder("trees", max_spout_pending=pending)
    builder.set_spout("numbers", Numbers(pending))
    builder.set_bolt("split", Split()).shuffle_grouping("numbers")
    loop = TrackedTest(builder).loop
    loop.open()
    loop.activate()
    while loop.open_trees < pending:
        loop.ask()
        loop.cut()
        loop.running = None  # the micro-batch is lost
    assert loop.ackers is not None
    return round((loop.ackers.nbytes + sum(spout.nbytes for spout in loop.spouts)) / pending, 1)


def false_zeros(count: int) -> tuple[float, float]:
    """Return the share of trees that complete too early when ids have few bits: measured, and derived as in
    the guide."""
    ledger, roots = AckLedger(), RootIds().take(count)
    t1, t2, t3, t4, t5 = TupleIds(13, bits=FEW_BITS).draw(5 * count).reshape(5, count)
    early = len(ledger.init(roots, t1 ^ t2, SPOUT_TASK).completed)
    for value in (t1 ^ t3 ^ t4 ^ t5, t2, t3):  # with the init, four times at least two tuples are open
        early += len(ledger.ack(roots, value).completed)
    return early / count, 4 / (2**FEW_BITS - 1)


def topology_figures(spark: SparkSession, tuples: int, rounds: int) -> dict[str, Any]:
    on_spark = medians(spark, tuples, (UNTRACKED, *ACKERS), rounds)
    in_process = medians(None, tuples, (UNTRACKED, *ACKERS), rounds)
    rates = {ackers: round(found.tuples_per_second) for ackers, found in on_spark.items()}
    return {
        "tracked_tuples_per_second": rates[1],
        "tracked_tuples_per_second_by_ackers": {str(ackers): rates[ackers] for ackers in ACKERS},
        "untracked_tuples_per_second": rates[UNTRACKED],
        "price_of_tracking": round(rates[UNTRACKED] / rates[1], 3),
        "price_in_cpu_seconds_by_ackers": cpu_prices(on_spark),
        "price_in_cpu_seconds_by_ackers_without_spark": cpu_prices(in_process),
    }


def cpu_prices(found: Mapping[int, Median]) -> dict[str, float]:
    return {str(n): round(found[n].cpu_seconds / found[UNTRACKED].cpu_seconds, 3) for n in ACKERS}


def cpu_seconds(call: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    start = time.process_time()
    answer = call(*arguments)
    return time.process_time() - start, answer


if __name__ == "__main__":
    raise SystemExit(main())
