"""From how many rows on is a commit from executors faster than one transaction of the driver?

    python benchmarks/commit_paths.py                          # an own PostgreSQL with fsync, local[2]
    python benchmarks/commit_paths.py --url URL --master spark://host:7077 --slots 8 --json

The table has a word and a bigint column and holds a million words, opaque. A batch's deltas are ready on the
driver, as they are when the engine chooses a path. Both paths are timed to the end of the last transaction,
in turns, with different keys each time, nine out of ten of them in the table already. Figures are medians.
The batch size above which executors win is what `driver_commit_rows` should be on such a cluster.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout, SpoutContext
from txstream.api.state import SqlState
from txstream.api.topology import CommitChoice, Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import Encoded
from txstream.core.digests import digest_of
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.runner_contract import NOTHING
from txstream.engine.commit.committer import (
    BatchCommitter,
    Committing,
    ProcessedBatch,
    StateDeltas,
    state_targets,
)
from txstream.engine.spark.session import create_context
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database

SIZES = (1_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Figure:
    """The median seconds of each path for one batch size."""

    rows: int
    driver_seconds: float
    executors_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="SQLAlchemy URL of an empty database; by default an own PostgreSQL")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument(
        "--there", type=int, default=1_000_000, help="keys that are there (default 1,000,000)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--directory", type=Path, help="where a database is put; by default a temporary one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory)))
        if options.url is None:
            sys.path.append(str(Path(__file__).parent))
            from state import own_server

            options.url = own_server(stack, folder)
        figures = measure(options, folder, stack)
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
        return 0
    print(f"{'rows':>9}{'driver':>12}{'executors':>12}  driver / executors")
    for figure in figures:
        print(
            f"{figure.rows:>9,}{1e3 * figure.driver_seconds:>9,.1f} ms"
            f"{1e3 * figure.executors_seconds:>9,.1f} ms"
            f"{figure.driver_seconds / figure.executors_seconds:>12.2f}"
        )
    return 0


def topology(name: str, commit: CommitChoice, slots: int) -> Topology:
    source = MemorySpout("word string, n bigint", {"p": [("word", 1)]})
    builder = TransactionalTopologyBuilder(name, "words", OpaqueSpout(source), commit=commit)
    state = SqlState(name, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), slots).fields_grouping(
        "words", "word"
    )
    return builder.build()


def measure(options: argparse.Namespace, folder: Path, stack: ExitStack) -> list[Figure]:
    name = f"paths_{uuid.uuid4().hex[:8]}"
    context = create_context(
        master=options.master, app_name="commit paths", conf={}, log_file=folder / "spark.log", package=None
    )
    stack.callback(context.stop)
    bench = Bench(options, name, context)
    stack.callback(bench.close)
    bench.fill(options.there)
    figures = []
    for rows in options.sizes:
        seconds: dict[str, list[float]] = {"driver": [], "executors": []}
        for turn in range(WARM_UP_ROUNDS + options.rounds):
            for path in seconds if turn % 2 else reversed(seconds):
                took = bench.commit(path, bench.batch(rows))
                if turn >= WARM_UP_ROUNDS:
                    seconds[path].append(took)
        medians = {path: statistics.median(took) for path, took in seconds.items()}
        figures.append(Figure(rows, medians["driver"], medians["executors"]))
        print(figures[-1], file=sys.stderr, flush=True)
    return figures


class Bench:
    """One table and a committer for each path."""

    def __init__(self, options: argparse.Namespace, name: str, context: Any) -> None:
        self._there = options.there
        self._random = random.Random(1)
        self._txid = 0
        self._new = 0
        self._committers = {}
        for path in ("driver", "executors"):
            built = topology(name, path, options.slots)
            targets = state_targets(built, options.url, open_database)
            self._committers[path] = BatchCommitter(
                built, "benchmark", targets, wait_for=lambda _, check: check()
            )
        self._database = targets[0].database
        self._database.ensure_framework_tables()
        self._database.of(name, "benchmark", built.semantics, targets[0].tables).join(first_run=True)
        plan = compile_topology(
            built,
            SpoutContext(name, "words", {}, fetch_timeout_seconds=10.0, connect_timeout_seconds=10.0),
            uuid.uuid4().hex,
        )
        self._runner = SparkRunner(context, plan)

    def fill(self, keys: int) -> None:
        for start in range(0, keys, 100_000):
            words = [f"word-{number:09}" for number in range(start, min(start + 100_000, keys))]
            self.commit("driver", deltas_of(words))

    def batch(self, rows: int) -> pa.Table:
        known = self._random.sample(range(self._there), min(rows - rows // 10, self._there))
        fresh = range(self._new, self._new + rows - len(known))
        self._new = fresh.stop
        return deltas_of([f"word-{n:09}" for n in known] + [f"new-{self._txid}-{n:09}" for n in fresh])

    def commit(self, path: str, deltas: pa.Table) -> float:
        self._txid += 1
        attempt = TransactionAttempt(Txid(self._txid), attempt_id(1, self._txid))
        now = datetime.now(UTC)
        batch = ProcessedBatch(NOTHING, {}, now, now, None)
        prepared = StateDeltas(deltas, digest_of(deltas, ["word"]))
        started = time.perf_counter()
        one = Committing(attempt, Encoded(), batch, lambda _: None)
        self._committers[path].commit(one, {"store": prepared}, write=self._runner.write)
        return time.perf_counter() - started

    def close(self) -> None:
        self._runner.close()
        self._database.close()


def deltas_of(words: Sequence[str]) -> pa.Table:
    return pa.table({"word": pa.array(words, pa.string()), "n": pa.array([1] * len(words), pa.int64())})


if __name__ == "__main__":
    raise SystemExit(main())
