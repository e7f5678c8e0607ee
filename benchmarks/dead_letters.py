"""What does a bad record cost the batch that holds it, and what do dead letters cost a healthy batch?

    python benchmarks/dead_letters.py                    # batches of 500,000 records; three minutes
    python benchmarks/dead_letters.py --records 50000
    python benchmarks/dead_letters.py --shares --records 200000      # bad records all along a topic
    python benchmarks/dead_letters.py --latency                      # 1,000 records a second; seven minutes

Each run takes a topic of JSON values in one batch: Kafka and ZooKeeper of its own, PostgreSQL with fsync, one
Spark session. A bolt that is called for each tuple stands behind an exchange and raises for a negative
amount. The output has attempts, Spark jobs, and the seconds of the run from its election to the end, as
medians of all turns. Totals and dead letters are compared with what was produced; the exit status is 1 when
they differ.

With `--shares` one record in 1,000, in 10,000 and in 100,000 is bad, evenly spread, of values in JSON and in
Avro: its value cannot be decoded, or a bolt raises, in the stage that reads or behind an exchange. A topic is
read in batches of a tenth of it (catching up) and of 1,000 records (live). Each run has one of a healthy
topic beside it, before it and after it by turns. The output has the throughput as a part of that one's: the
median of all turns, the least and the most. Where these are far apart, the machine was not quiet: take more
turns.

With `--latency` 1,000 JSON records come each second, with the same shares. The output has the milliseconds
from producing a record to its commit, as PostgreSQL recorded it, and the median as a multiple of a healthy
topic's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
from beside_peers import own_server
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from peers.workload import connect, latencies

import txstream
from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    Decode,
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
RATE = 1_000
USERS = 1_000
FIGURES = ("attempts", "jobs", "seconds")
BAD_JSON, BAD_AMOUNT = "bad-json", "bad-amount"
CASES = (
    ("healthy, without dead letters", "healthy", False),
    ("healthy, with dead letters", "healthy", True),
    ("one value is no JSON", BAD_JSON, True),
    ("a bolt behind an exchange raises for one record", BAD_AMOUNT, True),
)


SHARES = (1_000, 10_000, 100_000)
READ, EXCHANGE = "where it is read", "behind an exchange"
KINDS = (("value", READ), ("amount", READ), ("amount", EXCHANGE))
MOST = DeadLetters(max_per_batch=1_000_000, max_share=0.01)
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "user", "type": "string"}, {"name": "amount", "type": "long"}],
    }
)


class Check(BasicBolt):
    """Raises for a negative amount."""

    output = "user string, amount bigint"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["amount"] < 0:
            raise ValueError("an order of less than nothing")
        collector.emit((tup["user"], tup["amount"]))


def topology(name: str, topic: str, records: int, letters: bool) -> Topology:
    source = KafkaSource(topic, decode=Decode("json", "user string, amount bigint"))
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


def along(name: str, topic: str, form: str, where: str, records: int) -> Topology:
    """A topology over a topic with bad records all along it."""
    if form == "json":
        source = KafkaSource(topic, decode=Decode("json", "user string, amount bigint"))
    else:
        source = KafkaSource(topic, decode=Decode("avro", AVRO, wire_format="plain"))
    spout = OpaqueSpout(source, max_batch_records=records)
    builder = TransactionalTopologyBuilder(name, "orders", spout, parallelism=2, dead_letters=MOST)
    check = builder.set_bolt("check", Check(), parallelism=2)
    if where == READ:
        check.local_or_shuffle_grouping("orders")
    else:
        check.fields_grouping("orders", "user")
    store = SqlStateBolt(SqlState(name, key="user string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("check", "user")
    return builder.build()


def is_bad(number: int, share: int | None) -> bool:
    return share is not None and number % share == share // 2


def make_shared_topic(kafka: str, topic: str, form: str, kind: str, share: int | None, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        created.result()
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.messages": 0})
    schema = fastavro.parse_schema(json.loads(AVRO))
    for number in range(records):
        bad = is_bad(number, share)
        amount = -1 if bad and kind == "amount" else number
        if bad and kind == "value":
            value = b'{"user": "u'
        elif form == "json":
            value = b'{"user": "u%d", "amount": %d}' % (number % USERS, amount)
        else:
            data = io.BytesIO()
            fastavro.schemaless_writer(data, schema, {"user": f"u{number % USERS}", "amount": amount})
            value = data.getvalue()
        # By blocks, so that bad records are in all partitions.
        producer.produce(topic, value, partition=number // 7 % PARTITIONS)
        producer.poll(0)
    producer.flush()


def run_along(
    session: Any, settings: txstream.Settings, topic: str, form: str, where: str, live: bool, records: int
) -> tuple[float, bool, int]:
    """Return records a second, whether all is exact, and how many attempts failed."""
    name = f"letters_{uuid.uuid4().hex[:10]}"
    size = 1_000 if live else max(1_000, records // 10)
    report = txstream.run(along(name, topic, form, where, size), session, settings)
    share = int(topic.rpartition("-")[2]) if topic[-1].isdigit() else None
    good = Counter(f"u{number % USERS}" for number in range(records) if not is_bad(number, share))
    with contextlib.closing(connect(settings.database_url())) as connection:
        found = Counter(dict(connection.execute(f'SELECT "user", n FROM {name}').fetchall()))
        query = "SELECT count(*), count(DISTINCT place) FROM txstream_dead_letter WHERE topology = %s"
        (dead,) = connection.execute(query, (name,)).fetchall()
    bad = records - good.total()
    return records / report.seconds, (found, dead) == (good, (bad, bad)), report.failed_attempts


def shares(session: Any, settings: txstream.Settings, options: argparse.Namespace) -> bool:
    """Measure topics with bad records all along, beside healthy ones. Return whether all is exact."""
    records, all_exact = options.records, True
    print(f"{records:,} records of each topic{'1 in':>46}{'of healthy':>12}{'from to':>16}{'failed':>8}")
    for form in options.formats:
        topics = {(kind, share): f"{form}-{kind}-{share}" for kind, _ in KINDS for share in SHARES}
        kafka = settings.kafka or ""
        make_shared_topic(kafka, f"{form}-healthy", form, "", None, records)
        for (kind, share), topic in topics.items():
            make_shared_topic(kafka, topic, form, kind, share, records)
        for live in (False, True):
            for kind, where in KINDS:
                for share in SHARES:
                    pair, ratios, failed = [f"{form}-healthy", topics[kind, share]], [], 0
                    for turn in range(options.turns + 1):
                        found = {
                            topic: run_along(session, settings, topic, form, where, live, records)
                            for topic in (pair if turn % 2 else reversed(pair))
                        }
                        (healthy, *_), (rate, _, attempts) = (found[topic] for topic in pair)
                        all_exact = all_exact and all(exact for _, exact, _ in found.values())
                        if turn:  # the first warms up
                            ratios.append(rate / healthy)
                            failed += attempts
                    how = f"{form}, {'live' if live else 'catching up'}: bad {kind}, {where}"
                    middle, spread = statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
                    print(f"{how:<56}{share:>12,}{middle:>12.2f}{spread:>16}{failed:>8}", flush=True)
    return all_exact


def value_of(number: int, user: str, kind: str, share: int | None) -> bytes:
    if not is_bad(number, share):
        return b'{"user": "%s", "amount": %d}' % (user.encode(), number)
    return b'{"user": "u' if kind == "value" else b'{"user": "u0", "amount": -1}'


def produce_paced(kafka: str, topic: str, kind: str, share: int | None, seconds: float) -> tuple[int, int]:
    """Produce RATE records a second at an even pace, of which one in a hundredth of a second is a marker.
    Return how many there are, and how many of them are bad."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "acks": 1})
    ticks = int(seconds * 100)
    started, number = time.time(), 0
    for tick in range(ticks):
        time.sleep(max(0.0, started + tick / 100 - time.time()))
        for place in range(RATE // 100):
            # The last is never a bad one: shares are even.
            marks = place == RATE // 100 - 1
            user = f"m-{tick}-{int(time.time() * 1e6)}" if marks else f"u{number % USERS}"
            producer.produce(topic, value_of(number, user, kind, share), partition=number % PARTITIONS)
            number += 1
        producer.poll(0)
    producer.flush()
    return number, sum(is_bad(one, share) for one in range(number))


def run_paced(
    session: Any, settings: txstream.Settings, kind: str, where: str, share: int | None, seconds: float
) -> tuple[dict[str, Any], bool]:
    """Return the percentiles of the latency, and whether all is exact."""
    name = f"letters_{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": settings.kafka or ""})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        created.result()
    with (
        contextlib.closing(connect(settings.database_url())) as connection,
        txstream.start(along(name, name, "json", where, 10_000), session, settings) as running,
    ):
        produced, bad = produce_paced(settings.kafka or "", name, kind, share, seconds)
        query = (
            f"SELECT (SELECT coalesce(sum(n), 0) FROM {name}), "
            f"(SELECT count(*) FROM txstream_dead_letter WHERE topology = '{name}')"
        )
        expected, deadline = (produced - bad, bad), time.monotonic() + 60
        while (found := connection.execute(query).fetchone()) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        running.stop()
        running.wait()
    taken = latencies(settings.database_url(), seconds / 3, table=name, key='"user"')
    return dict(taken), found == expected


def latency(session: Any, settings: txstream.Settings, seconds: float) -> bool:
    """Measure 1,000 records a second, beside a healthy topic. Return whether all is exact."""
    print(f"{RATE:,} records a second, ms to the commit{'1 in':>24}{'p50':>8}{'p99':>8}{'of healthy':>12}")
    run_paced(session, settings, *KINDS[0], None, seconds)  # Java compiles, workers start
    all_exact = True
    for kind, where in KINDS:
        healthy: dict[str, Any] = {}
        for share in (None, *SHARES):
            found, is_exact = run_paced(session, settings, kind, where, share, seconds)
            healthy = healthy or found
            all_exact = all_exact and is_exact
            how = f"bad {kind}, {where}" if share else f"healthy, {where}"
            shown = f"{share:,}" if share else "-"
            of_healthy = found["p50"] / healthy["p50"]
            line = f"{how:<48}{shown:>15}{found['p50']:>8.1f}{found['p99']:>8.1f}{of_healthy:>12.2f}"
            print(line, flush=True)
    return all_exact


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
    parser.add_argument("--shares", action="store_true", help="bad records all along a topic")
    parser.add_argument("--latency", action="store_true", help="of 1,000 records a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run of --latency (default 30)")
    parser.add_argument("--formats", nargs="+", choices=("json", "avro"), default=("json", "avro"))
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
        session = create_session(master="local[2]", log_file=directory / "spark.log")
        stack.callback(session.stop)
        if options.shares:
            return 0 if shares(session, settings, options) else 1
        if options.latency:
            return 0 if latency(session, settings, options.seconds) else 1
        good = make_topics(services.kafka, options.records)
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
