"""What does a bad record cost the batch that holds it, and what do dead letters cost a healthy batch?

    python benchmarks/dead_letters.py                    # batches of 500,000 records; three minutes
    python benchmarks/dead_letters.py --records 50000

Each run takes a topic of JSON values in one batch: Kafka and ZooKeeper of its own, PostgreSQL with fsync, one
Spark session. A bolt that is called for each tuple stands behind an exchange and raises for a negative
amount. The output has attempts, Spark jobs, and the seconds of the run from its election to the end, as
medians of all turns. Totals and dead letters are compared with what was produced; the exit status is 1 when
they differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from beside_peers import own_server
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from peers.workload import connect

import txstream
from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    KafkaSource,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.engine.spark.session import create_session
from txstream.plugins.local.embedded import embedded

PARTITIONS = 4
USERS = 1_000
FIGURES = ("attempts", "jobs", "seconds")
BAD_JSON, BAD_AMOUNT = "bad-json", "bad-amount"
CASES = (
    ("healthy, without dead letters", "healthy", False),
    ("healthy, with dead letters", "healthy", True),
    ("one value is no JSON", BAD_JSON, True),
    ("a bolt behind an exchange raises for one record", BAD_AMOUNT, True),
)


class Check(BasicBolt):
    """Raises for a negative amount."""

    output = "user string, amount bigint"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["amount"] < 0:
            raise ValueError("an order of less than nothing")
        collector.emit((tup["user"], tup["amount"]))


def topology(name: str, topic: str, records: int, letters: bool) -> Topology:
    source = KafkaSource(topic, value_format="json", schema="user string, amount bigint")
    spout = OpaqueSpout(source, max_batch_records=records)
    builder = TransactionalTopologyBuilder(
        name,
        "orders",
        spout,
        parallelism=2,
        message_timeout_seconds=300,
        resident_tasks=0,  # whose job would be counted, too
        dead_letters=DeadLetters() if letters else None,
    )
    builder.set_bolt("check", Check(), parallelism=2).fields_grouping("orders", "user")
    state = SqlState(name, key="user string", value="n bigint, amount bigint")
    store = SqlStateBolt(state, n=Count(), amount=Sum("amount"))
    builder.set_committer_bolt("store", store).fields_grouping("check", "user")
    return builder.build()


def make_topics(kafka: str, records: int) -> Counter[str]:
    """Create the topics, with a bad record in the middle where there is one. Return the orders of each user
    without that record."""
    topics = dict.fromkeys(topic for _, topic, _ in CASES)
    admin = AdminClient({"bootstrap.servers": kafka})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        created.result()
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.messages": 0})
    bad = {BAD_JSON: b'{"user": "u', BAD_AMOUNT: b'{"user": "u0", "amount": -1}'}
    for topic in topics:
        for number in range(records):
            value = b'{"user": "u%d", "amount": %d}' % (number % USERS, number)
            if number == records // 2:
                value = bad.get(topic, value)
            producer.produce(topic, value, partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush()
    return Counter(f"u{number % USERS}" for number in range(records) if number != records // 2)


def measure(
    session: Any, settings: txstream.Settings, topic: str, letters: bool, good: Counter[str]
) -> dict[str, Any]:
    name = f"letters_{uuid.uuid4().hex[:10]}"
    records = good.total() + 1
    scheduler = session.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    report = txstream.run(topology(name, topic, records, letters), session, settings)
    jobs = scheduler.numTotalJobs() - before
    is_bad = topic in (BAD_JSON, BAD_AMOUNT)
    expected = Counter(good) if is_bad else good + Counter([f"u{records // 2 % USERS}"])
    with contextlib.closing(connect(settings.database_url())) as connection:
        found = Counter(dict(connection.execute(f'SELECT "user", n FROM {name}').fetchall()))
        query = "SELECT count(*) FROM txstream_dead_letter WHERE topology = %s"
        ((dead,),) = connection.execute(query, (name,)).fetchall()
    return {
        "attempts": report.batches + report.failed_attempts,
        "jobs": jobs,
        "seconds": report.seconds,
        "exact": found == expected and dead == is_bad and report.batches == 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=500_000, help="records of a batch (default 500,000)")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {case: [] for case, _, _ in CASES}
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-bench-")))
        server, database = own_server(directory)
        stack.callback(server.close)
        services = stack.enter_context(embedded(directory))
        settings = txstream.Settings(
            zookeeper=services.zookeeper, kafka=services.kafka, database=database, data_dir=directory
        )
        good = make_topics(services.kafka, options.records)
        session = create_session(master="local[2]", log_file=directory / "spark.log")
        stack.callback(session.stop)
        measure(session, settings, "healthy", False, good)  # Java compiles, workers start
        for _ in range(options.turns):
            for case, topic, letters in CASES:
                found[case].append(measure(session, settings, topic, letters, good))
    if options.json:
        print(json.dumps(found, indent=2))
    print(f"{options.records:,} records in one batch{'attempts':>31}{'jobs':>6}{'seconds':>9}")
    for case, turns in found.items():
        attempts, jobs, seconds = (statistics.median(one[figure] for one in turns) for figure in FIGURES)
        print(f"{case:<52}{attempts:>9.0f}{jobs:>6.0f}{seconds:>9.2f}")
    return 0 if all(one["exact"] for turns in found.values() for one in turns) else 1


if __name__ == "__main__":
    raise SystemExit(main())
