"""How fast one process reads planned ranges of a topic: records/s through `KafkaPartitionEmitter`.

    python benchmarks/kafka_reader.py [--kafka HOST:PORT] [--records N] [--range N] [--json] [--profile]

With --json the values are objects of four fields and about 100 bytes, which are read by a schema. Without
--kafka an embedded broker is started in a temporary directory. Every range is checked for its first and last
offset and its number of rows. The plain kafka-python consumer reads the same records for comparison.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from txstream.api.spouts import SpoutContext
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.transaction import AttemptId, TransactionAttempt, Txid

JSON: dict[str, Any] = {
    "value_format": "json",
    "schema": "user string, amount decimal(10,2), n bigint, at timestamp",
    "kafka_columns": ["offset"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kafka", help="bootstrap servers; by default an embedded broker")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--range", type=int, default=25_000, dest="size")
    parser.add_argument("--value-bytes", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="JSON objects instead of --value-bytes digits")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        address = options.kafka
        if address is None:
            from txstream.embedded import EmbeddedKafka

            folder = stack.enter_context(tempfile.TemporaryDirectory())
            address = stack.enter_context(EmbeddedKafka(Path(folder))).address
        topic = f"kafka-reader-{uuid.uuid4().hex[:8]}"
        admin = KafkaAdminClient(bootstrap_servers=address)
        stack.callback(admin.close)
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        stack.callback(admin.delete_topics, [topic])
        values = objects(options.records) if options.json else digits(options.records, options.value_bytes)
        produce(address, topic, values)
        source = KafkaSource(topic, address, **(JSON if options.json else {}))
        reading = emitter(source, topic, options.records, options.size)
        report("emitter, first pass", options.records, reading)
        if options.profile:
            with cProfile.Profile() as profile:
                reading()
            pstats.Stats(profile).sort_stats("tottime").print_stats(18)
        for number in range(2, 5):
            report(f"emitter, pass {number}", options.records, reading)
        report("KafkaConsumer, values only", options.records, consumer(address, topic, options.records))


def digits(records: int, value_bytes: int) -> Iterator[bytes]:
    return (b"%0*d" % (value_bytes, number) for number in range(records))


def objects(records: int) -> Iterator[bytes]:
    for number in range(records):
        user, cents, second = number % 9973, number * 7919 % 10_000_000, number % 60
        yield (
            b'{"user": "user-%06d", "amount": %d.%02d, "n": %d, "at": "2026-11-21T10:00:%02d.%06dZ"}'
            % (user, cents // 100, cents % 100, number + 10**9, second, number % 10**6)
        )


def produce(address: str, topic: str, values: Iterable[bytes]) -> None:
    producer = KafkaProducer(bootstrap_servers=address, linger_ms=20, batch_size=64 * 1024)
    for value in values:
        producer.send(topic, value, partition=0)
    producer.flush()
    producer.close()


def emitter(source: KafkaSource, topic: str, records: int, size: int) -> Callable[[], None]:
    reader = source.emitter(SpoutContext("benchmark", "lines", {}))
    attempt = TransactionAttempt(Txid(1), AttemptId(1))

    def read() -> None:
        for start in range(0, records, size):
            end = min(start + size, records)
            batches = list(reader.emit(attempt, f"{topic}/0", KafkaRange(start, end)))
            offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()[:1]]
            rows = sum(batch.num_rows for batch in batches)
            if rows != end - start or offsets[0] != start:
                raise SystemExit(f"range {start} to {end}: {rows} rows from offset {offsets[:1]}")

    return read


def consumer(address: str, topic: str, records: int) -> Callable[[], None]:
    def read() -> None:
        reader = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", fetch_max_wait_ms=100)
        partition = TopicPartition(topic, 0)
        reader.assign([partition])
        reader.seek(partition, 0)
        values = 0
        while values < records:
            for chunk in reader.poll(timeout_ms=1000, max_records=50_000).values():
                values += len([record.value for record in chunk])
        reader.close()

    return read


def report(what: str, records: int, read: Callable[[], None]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    read()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{what:28s} {records / wall:12,.0f} records/s  {records / cpu:12,.0f} records per CPU second")


if __name__ == "__main__":
    main()
