"""How fast is the word count, and where does the time of a batch go?

    python benchmarks/throughput.py                                # everything embedded, SQLite
    python benchmarks/throughput.py --database postgresql://...    # on a database of yours
    python benchmarks/throughput.py --kafka H:P --zookeeper H:P --topic lines   # on a topic of yours

For each batch size a fresh topology counts the words of a topic, in one Spark session, `--runs` times. The
first run of the process is cold and shown separately. Totals are compared with a count made without txstream:
by the generator, or for a topic of yours by a plain consumer. The exit status is 1 when they differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import sqlalchemy as sa
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from rich.console import Console
from rich.table import Table

import txstream
from txstream.engine.loop.report import BatchTiming
from txstream.engine.spark.session import create_session
from txstream.examples import word_count
from txstream.plugins.local.embedded import embedded

PARTITIONS = 4
PARTS = (
    ("plan", "plan_seconds"),
    ("store plan", "persist_seconds"),
    ("job", "job_seconds"),
    ("read*", "read_seconds"),
    ("process*", "process_seconds"),
    ("merge", "merge_seconds"),
    ("commit", "commit_seconds"),
    ("ZooKeeper", "advance_seconds"),
)

Lines = list[list[str]]  # by partition, in the order of offsets

# In a file or pipe the table would be squeezed to 80 columns.
console = Console(stderr=True, width=None if sys.stderr.isatty() else 150)


def main() -> int:
    options = parse_arguments()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-benchmark-")))
        kafka, zookeeper = options.kafka, options.zookeeper
        if not (kafka and zookeeper):
            services = stack.enter_context(embedded(directory, console=console))
            kafka, zookeeper = kafka or services.kafka, zookeeper or services.zookeeper
        topic = options.topic or f"txstream-benchmark-{uuid.uuid4().hex[:8]}"
        lines = read_topic(kafka, topic) if options.topic else make_topic(kafka, topic, options.records)
        settings = txstream.Settings(
            zookeeper=zookeeper,
            kafka=kafka,
            database=options.database or f"sqlite:///{directory / 'benchmark.db'}",
            data_dir=directory,
        )
        log_file = Path(options.spark_log) if options.spark_log else directory / "spark.log"
        session = create_session(master=options.master, log_file=log_file)
        stack.callback(session.stop)
        results = [
            measure(session, settings, topic, lines, size, run, options)
            for size in options.sizes
            for run in range(options.runs)
        ]
    show(results)
    print(json.dumps(results))
    return 0 if all(result["exact"] for result in results) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="records to generate (default 1,000,000)"
    )
    parser.add_argument("--sizes", default="1000,10000,100000", help="records per batch, a list with commas")
    parser.add_argument("--runs", type=int, default=3, help="runs for each batch size (default 3)")
    parser.add_argument("--max-batches", type=int, default=300, help="end a run after so many batches")
    parser.add_argument("--semantics", default="opaque", choices=sorted(word_count.SPOUTS))
    parser.add_argument("--max-spout-pending", type=int, default=3)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--kafka")
    parser.add_argument("--zookeeper")
    parser.add_argument("--database")
    parser.add_argument("--topic", help="an existing topic of 4 partitions instead of a generated one")
    parser.add_argument("--spark-log", help="keep Spark's log in this file")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    return options


def make_topic(kafka: str, topic: str, records: int) -> Lines:
    """Create a topic with records of about 60 bytes: a word, Zipf-distributed over 10,000, and padding, which
    is one more word."""
    import random

    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    admin.close()
    words = [f"word-{number}" for number in range(10_000)]
    weights = [1 / (number + 1) for number in range(10_000)]
    chosen = random.Random(7).choices(words, weights, k=records)
    padding = "x" * 47
    lines: Lines = [[] for _ in range(PARTITIONS)]
    producer = KafkaProducer(bootstrap_servers=kafka, linger_ms=20, batch_size=1 << 18, acks=1)
    for number, word in enumerate(chosen):
        line = f"{word} {padding}"
        lines[number % PARTITIONS].append(line)
        producer.send(topic, line.encode(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()
    console.print(f"{records:,} records in topic {topic}")
    return lines


def read_topic(kafka: str, topic: str) -> Lines:
    """Return the values of an existing topic, read by a plain consumer."""
    consumer = KafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest")
    partitions = [
        TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())
    ]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    lines: Lines = [[] for _ in partitions]
    while any(consumer.position(partition) < ends[partition] for partition in partitions):
        for partition, records in consumer.poll(timeout_ms=1000, max_records=100_000).items():
            lines[partition.partition].extend(record.value.decode() for record in records)
    consumer.close()
    console.print(f"{sum(map(len, lines)):,} records in topic {topic}")
    return lines


def measure(
    session: object,
    settings: txstream.Settings,
    topic: str,
    lines: Lines,
    size: int,
    run: int,
    options: argparse.Namespace,
) -> dict[str, object]:
    name = f"bench_{uuid.uuid4().hex[:10]}"
    topology = word_count.topology(
        topic,
        options.semantics,
        name,
        max_records_per_partition=max(1, size // len(lines)),
        max_spout_pending=options.max_spout_pending,
        parallelism=options.parallelism,
    ).with_id(name)
    records = sum(map(len, lines))
    partial = records // size > options.max_batches
    started = time.perf_counter()
    running = txstream.start(
        topology,
        session,  # type: ignore[arg-type]  # a SparkSession; not imported here for its type alone
        settings,
        until=None if partial else "caught-up",
        until_txid=options.max_batches if partial else None,
    )
    report = running.wait()
    wall = time.perf_counter() - started
    timings = running.timings
    exact = check(settings, name, report.last_txid, lines)
    drop(settings, name)
    result: dict[str, object] = {
        "records_per_batch": size,
        "run": run,
        "partial": partial,
        "records": report.records,
        "batches": report.batches,
        "seconds": report.seconds,
        "start_seconds": round(wall - report.seconds, 2),
        "records_per_second": round(report.records_per_second),
        "batches_per_second": round(report.batches / report.seconds, 1),
        "exact": exact,
        "milliseconds": mean_parts(timings),
    }
    console.print(
        f"{size:>7,} records a batch, run {run}: {result['records_per_second']:>9,} records/s, "
        f"{result['batches_per_second']} batches/s, exact: {'yes' if exact else 'NO'}"
    )
    return result


def mean_parts(timings: Sequence[BatchTiming]) -> dict[str, float]:
    return {
        label: round(1000 * statistics.fmean(getattr(timing, field) for timing in timings), 2)
        for label, field in PARTS
        if timings
    }


@contextlib.contextmanager
def connected(settings: txstream.Settings) -> Iterator[sa.Connection]:
    engine = sa.create_engine(settings.database_url())
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def check(settings: txstream.Settings, table: str, last_txid: int, lines: Lines) -> bool:
    """Compare the table with a count over exactly the offsets that the last batch's metas reached."""
    with connected(settings) as connection:
        counted = sa.Table(table, sa.MetaData(), autoload_with=connection)
        found = {row.word: row.n for row in connection.execute(sa.select(counted.c.word, counted.c.n))}
        ledger = sa.Table("txstream_batch", sa.MetaData(), autoload_with=connection)
        query = sa.select(ledger.c.metas).where(ledger.c.topology == table, ledger.c.txid == last_txid)
        metas = connection.execute(query).scalar_one()
    document = json.loads(metas) if isinstance(metas, str) else metas
    truth: Counter[str] = Counter()
    for partition, meta in {**document.get("carried", {}), **document["partitions"]}.items():
        number = int(partition.rsplit("/", 1)[1])
        for line in lines[number][: meta["end"]]:
            truth.update(line.split())
    return found == dict(truth)


def drop(settings: txstream.Settings, table: str) -> None:
    with connected(settings) as connection:
        sa.Table(table, sa.MetaData(), autoload_with=connection).drop(connection)


def show(results: Sequence[dict[str, object]]) -> None:
    table = Table(title="word count, mean milliseconds of a batch (* summed over Spark tasks)")
    for column in ("records/batch", "run", "records/s", "batches/s", *(label for label, _ in PARTS), "exact"):
        table.add_column(column, justify="right")
    for result in results:
        parts = result["milliseconds"]
        table.add_row(
            f"{result['records_per_batch']:,}",
            f"{result['run']}{' (cold)' if result is results[0] else ''}",
            f"{result['records_per_second']:,}",
            str(result["batches_per_second"]),
            *(str(parts.get(label, "")) for label, _ in PARTS if isinstance(parts, dict)),
            "yes" if result["exact"] else "NO",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
