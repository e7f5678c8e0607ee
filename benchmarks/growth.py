"""How does the cost of a batch grow with partitions, keys, payload and tasks? And how much does a driver
keep?

    python benchmarks/growth.py                       # everything embedded; about six minutes
    python benchmarks/growth.py --keys 10000 --keys 10000000 --only keys
    python benchmarks/growth.py --only memory --batches 100000

The topology counts words in PostgreSQL (fsync on), everything embedded, with two tasks unless said otherwise.
Each figure is the median of a run's batches without the first five. Runs of one kind take turns, `--turns`
times, and the fastest turn counts, so that other work on the machine counts less. Requests to ZooKeeper are
those of the progress store between the first advance and the last, per batch. Memory is that of a process
which is driver and worker in one, over batches of one record. Every run's total is compared with what was
produced; the exit status is 1 when one differs. Writes `benchmarks/results/growth-DATE.json` and a chart.
Figures of other kinds in a file of the same day are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peers
import psutil
from beside_peers import own_server
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from peers.ours import FirstWord
from peers.workload import connect, counted
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from rich.console import Console

import txstream
from txstream.core.fault_points import Point
from txstream.core.transaction import Txid
from txstream.engine.spark.session import create_session
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver
from txstream.engine.start.run_services import RunServices
from txstream.plugins.local.embedded import embedded
from txstream.testing import InProcessRunner

HERE = Path(__file__).resolve().parent
PARTITIONS = (4, 64, 1_000)
PAYLOADS = (60, 1_000, 100_000)
BATCH, BATCHES, SKIPPED = 5_000, 30, 5
FILL = """INSERT INTO {table} (key, n, txid) SELECT 'word-' || word, 0, 1
    FROM generate_series(0, {last}) AS word ON CONFLICT DO NOTHING"""
STEPS = ("plan", "persist", "job", "commit", "advance")
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
Figures = dict[str, Any]


class Site:
    """The services of one sitting."""

    def __init__(self, directory: Path, kafka: str, zookeeper: str, database: str) -> None:
        self.kafka, self.database = kafka, database
        self.settings = txstream.Settings(
            zookeeper=zookeeper, kafka=kafka, database=database, data_dir=directory
        )
        self.exact = True

    def topic(
        self, partitions: int, records: int, *, keys: int = 10_000, size: int = 60, live: bool = False
    ) -> str:
        """Create a topic with records of about `size` bytes, words evenly distributed and partitions equally
        long. With `live`, the records that a batch takes from a partition were sent separately."""
        topic = f"growth-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.kafka})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
        producer = Producer(
            {"bootstrap.servers": self.kafka, "linger.ms": 100, "queue.buffering.max.kbytes": 200_000}
        )
        padding = "x" * (size - 13)
        for number, word in enumerate(np.random.default_rng(7).integers(0, keys, records).tolist()):
            while True:
                try:
                    producer.produce(topic, f"word-{word} {padding}".encode(), partition=number % partitions)
                except BufferError:
                    producer.poll(0.05)
                else:
                    break
            if live and (number + 1) % BATCH == 0:
                producer.flush()
        producer.flush()
        return topic

    def run(
        self,
        spark: SparkSession | None,
        topic: str,
        batch: int,
        *,
        spout: Callable[..., Any] = txstream.OpaqueSpout,
        tasks: int = 2,
        last: int = BATCHES,
        most: int | None = None,
        known: int = 0,
        at_advance: Callable[[int], None] | None = None,
    ) -> Figures:
        """Return what batches cost up to txid `last`. Without Spark they run in this process.

        A batch has `batch` records, at most `most` of a partition. The table has `known` words once the first
        batch is committed.
        """
        name = f"growth_{uuid.uuid4().hex[:10]}"
        builder = txstream.TransactionalTopologyBuilder(
            name,
            "lines",
            spout(
                txstream.KafkaSource(topic, kafka_columns=["value"], max_records_per_partition=most),
                max_batch_records=batch,
            ),
            tasks,
            max_spout_pending=2,
        )
        builder.set_bolt("word", FirstWord(), tasks).local_or_shuffle_grouping("lines")
        builder.set_bolt("count", txstream.CountBolt("key"), tasks).fields_grouping("word", "key")
        state = txstream.SqlState(name, key="key string", value="n bigint")
        builder.set_committer_bolt(
            "store", txstream.SqlStateBolt(state, n=txstream.Sum("n")), tasks
        ).fields_grouping("count", "key")
        services = Services(
            builder.build(), self.settings, spark=spark, runner_factory=None if spark else InProcessRunner
        )
        asked: dict[int, int] = {}

        def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:  # noqa: ARG001 - a listener's signature
            if point is not Point.AFTER_ADVANCE:
                return
            if txid == 1 and known:
                with connect(self.database) as connection:
                    connection.execute(FILL.format(table=name, last=known - 1))
            if txid in (1, last):
                asked[txid] = services.round_trips
            if at_advance is not None:
                at_advance(txid)

        driver = Driver(services, BatchTier(services.topology, until_txid=last, listener=listener))
        report = driver.run()
        assert report is not None
        assert driver.loop is not None
        timings = list(driver.loop.statistics.timings)[SKIPPED:]
        self.exact &= counted(self.database, table=name, count="n") == report.records == batch * last
        return {
            "batches_per_second": round(report.batches / report.seconds, 1),
            "zookeeper_requests": round((asked[last] - asked[1]) / (last - 1), 2),
            **{
                f"{step}_ms": round(
                    1000 * statistics.median(getattr(t, f"{step}_seconds") for t in timings), 1
                )
                for step in STEPS
            },
        }


class Services(RunServices):
    """Services that tell how many requests they made to ZooKeeper."""

    def __init__(self, topology: txstream.Topology, *given: Any, **options: Any) -> None:
        super().__init__(topology, *given, **options)
        self.topology = topology

    @property
    def round_trips(self) -> int:
        return self._zookeeper.round_trips


def in_turns(cases: dict[str, Callable[[], Figures]], turns: int) -> dict[str, Figures]:
    """Run the cases in turns. Returns the turn of each case with the most batches per second."""
    found: dict[str, list[Figures]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, case in cases.items():
            found[name].append(case())
            console.print(f"{name}: {found[name][-1]}")
    return {name: max(some, key=lambda one: float(one["batches_per_second"])) for name, some in found.items()}


def partitions(site: Site, spark: SparkSession, turns: int) -> dict[str, Figures]:
    """Measure a backlog, and live input, where each batch has a few new records of every partition."""
    topics = {some: site.topic(some, BATCH * BATCHES) for some in PARTITIONS}
    cases: dict[str, Callable[[], Figures]] = {
        f"{some:,}": partial(site.run, spark, topics[some], BATCH) for some in PARTITIONS
    }
    cases[f"{PARTITIONS[-1]:,}, transactional"] = partial(
        site.run, spark, topics[PARTITIONS[-1]], BATCH, spout=txstream.TransactionalSpout
    )
    for some in (PARTITIONS[0], PARTITIONS[-1]):
        topic = site.topic(some, BATCH * BATCHES, live=True)
        cases[f"{some:,}, live"] = partial(site.run, spark, topic, BATCH, most=BATCH // some)
    return in_turns(cases, turns)


def keys(site: Site, spark: SparkSession, counts: list[int], turns: int) -> dict[str, Figures]:
    """Measure batches of 100,000 records, with a table that has all keys."""
    cases: dict[str, Callable[[], Figures]] = {}
    for some in counts:
        topic = site.topic(4, 100_000 * 10, keys=some)
        cases[f"{some:,}"] = partial(site.run, spark, topic, 100_000, last=10, known=some)
    return in_turns(cases, turns)


def payload(site: Site, spark: SparkSession, turns: int) -> dict[str, Figures]:
    """Measure batches of 500 records of different sizes."""
    topics = {size: site.topic(4, 500 * 12, size=size) for size in PAYLOADS}
    cases: dict[str, Callable[[], Figures]] = {
        f"{size:,} B": partial(site.run, spark, topics[size], 500, last=12) for size in PAYLOADS
    }
    return in_turns(cases, turns)


def tasks(site: Site, spark: SparkSession, turns: int) -> dict[str, Figures]:
    """Measure batches of 100,000 records with one and two tasks."""
    topic = site.topic(4, 100_000 * 10)
    cases: dict[str, Callable[[], Figures]] = {
        str(some): partial(site.run, spark, topic, 100_000, tasks=some, last=10) for some in (1, 2)
    }
    return in_turns(cases, turns)


def memory(site: Site, batches: int) -> Figures:
    """Return the resident megabytes after every twentieth of the batches."""
    process = psutil.Process()
    samples: dict[int, float] = {}

    def sample(txid: int) -> None:
        if txid % (batches // 20) == 0:
            samples[txid] = round(process.memory_info().rss / 2**20, 1)
            console.print(f"{txid:,} batches: {samples[txid]} MB")

    figures = site.run(None, site.topic(1, batches, keys=100), 1, tasks=1, last=batches, at_advance=sample)
    return {**figures, "resident_megabytes": samples}


def draw(document: Figures, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    shown = [name for name in ("partitions", "keys", "payload", "tasks") if name in document]
    has_memory = "memory" in document
    figure, axes = pyplot.subplots(
        1,
        len(shown) + has_memory,
        figsize=(3 * (len(shown) + has_memory), 3),
        layout="constrained",
        squeeze=False,
    )
    for at, name in zip(axes[0], shown, strict=False):
        below = np.zeros(len(document[name]))
        for step in STEPS:
            values = np.array([one[f"{step}_ms"] for one in document[name].values()])
            at.bar([label.replace(", ", "\n") for label in document[name]], values, bottom=below, label=step)
            below += values
        at.set_title(f"{name}, ms of a batch", fontsize=9)
        at.legend(fontsize=6)
    if has_memory:
        samples = document["memory"]["resident_megabytes"]
        axes[0][-1].plot([int(txid) for txid in samples], list(samples.values()))
        axes[0][-1].set_ylim(bottom=0)
        axes[0][-1].set_title("batches, resident MB", fontsize=9)
    for at in axes[0]:
        at.tick_params(labelsize=7)
        at.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("partitions", "keys", "payload", "tasks", "memory")
    parser.add_argument("--only", action="append", choices=kinds, help="may be repeated")
    parser.add_argument("--keys", action="append", type=int, help="by default 10,000 and 1,000,000")
    parser.add_argument("--batches", type=int, default=6_000, help="of the memory run (default 6,000)")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    wanted = options.only or kinds
    now = datetime.datetime.now(datetime.UTC)
    path = options.out / f"growth-{now.date()}.json"
    document: Figures = json.loads(path.read_text()) if path.exists() else {}
    document |= {"date": now.isoformat(timespec="seconds"), "cores": os.cpu_count()}
    cloudpickle.register_pickle_by_value(peers.ours)  # type: ignore[no-untyped-call]  # workers do not have it
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-growth-")))
        server, database = own_server(directory)
        stack.callback(server.close)
        services = stack.enter_context(embedded(directory, console=console))
        site = Site(directory, services.kafka, services.zookeeper, database)
        if "memory" in wanted:
            document["memory"] = memory(site, options.batches)
        if set(wanted) - {"memory"}:
            spark = create_session(master="local[2]", log_file=directory / "spark.log")
            stack.callback(spark.stop)
            if "partitions" in wanted:
                document["partitions"] = partitions(site, spark, options.turns)
            if "keys" in wanted:
                document["keys"] = keys(site, spark, options.keys or [10_000, 1_000_000], options.turns)
            if "payload" in wanted:
                document["payload"] = payload(site, spark, options.turns)
            if "tasks" in wanted:
                document["tasks"] = tasks(site, spark, options.turns)
    document = {**document, "exact": site.exact}
    path.write_text(json.dumps(document, indent=2) + "\n")
    draw(document, path.with_suffix(".svg"))
    console.print(f"written to {path}; totals right: {site.exact}")
    return 0 if site.exact else 1


if __name__ == "__main__":
    raise SystemExit(main())
