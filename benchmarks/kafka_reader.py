"""How fast one process reads planned ranges of a topic: records/s through `KafkaPartitionEmitter`.

    python benchmarks/kafka_reader.py [--kafka HOST:PORT] [--records N] [--range N] [--json] [--profile]
    python benchmarks/kafka_reader.py --decode [--records N] [--value-bytes N]

With --decode there is no broker: record batches of 64 KB are created in memory and decoded into all columns,
with numpy and record by record, checksums included. With --json the values are objects of four fields and
about 100 bytes, read by a schema. Without --kafka an embedded broker is started in a temporary directory. The
first and last offset and the number of rows of every range are checked. The plain kafka-python consumer reads
the same records for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import random
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from txstream.api.spouts import SpoutContext
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.spouts.kafka import Decode, KafkaRange, KafkaSource, record_batches as kafka_record_batches
from txstream.spouts.kafka.columns import Readers, joined_batch
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns

JSON: dict[str, Any] = {
    "decode": Decode("json", "user string, amount decimal(10,2), n bigint, at timestamp"),
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
    parser.add_argument("--decode", action="store_true", help="decode batches in memory, without a broker")
    options = parser.parse_args()
    if options.decode:
        decode(options.records, options.value_bytes)
        return
    with ExitStack() as stack:
        address = options.kafka
        if address is None:
            from txstream.plugins.local.embedded import EmbeddedKafka

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


def decode(records: int, value_bytes: int) -> None:
    for what, values in (("fixed size", digits), ("words", words)):
        for codec in (None, "lz4", "zstd"):
            log = batches(values(records, value_bytes), codec)
            for how in ("numpy", "one by one"):
                none = patch.object(kafka_record_batches, "decode", return_value=None)
                with contextlib.nullcontext() if how == "numpy" else none:
                    report(f"{what}, {codec or 'plain'}, {how}", records, decoding(log, records), passes=3)


def decoding(log: bytes, records: int) -> Callable[[], None]:
    source, partition = KafkaSource("lines"), Partition("lines", 0)

    def read() -> None:
        part = kafka_record_batches.Fetched(log, 0, records)
        kafka_record_batches.decode_records([part])
        columns = RecordColumns(part.blocks)
        joined_batch(source, Readers(), [(partition, columns)])
        if len(columns) != records:
            raise SystemExit(f"{len(columns)} rows instead of {records}")

    return read


def batches(values: Iterable[bytes], codec: str | None) -> bytes:
    """Return record batches of 64 KB, as a producer without a key makes them."""
    log, base = bytearray(), 0
    timestamp = 1_700_000_000_000
    builder, delta = new_builder(), 0
    for number, value in enumerate(values):
        moment = timestamp + number // 50
        if builder.append(delta, moment, None, value, []) is None:
            log += finished(builder.build(), base, codec)
            builder, base, delta = new_builder(), base + delta, 0
            builder.append(delta, moment, None, value, [])
        delta += 1
    return bytes(log + finished(builder.build(), base, codec))


def new_builder() -> DefaultRecordBatchBuilder:
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=64 * 1024,
    )


def finished(built: bytes, base: int, codec: str | None) -> bytes:
    """Return a batch with its records compressed and the header that a broker writes. kafka-python would need
    more libraries to compress."""
    records = built[61:] if codec is None else pa.compress(built[61:], codec=codec, asbytes=True)
    batch = bytearray(built[:61] + records)
    struct.pack_into(">qi", batch, 0, base, len(batch) - 12)
    struct.pack_into(">h", batch, 21, {None: 0, "lz4": 3, "zstd": 4}[codec])
    struct.pack_into(">I", batch, 17, calc_crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def words(records: int, value_bytes: int) -> Iterator[bytes]:
    """Return lines of words of 3 to 12 letters, with about `value_bytes` bytes each."""
    draw = random.Random(1)
    known = ["".join(draw.choices("abcdefghij", k=draw.randint(3, 12))).encode() for _ in range(1000)]
    mean = max(1, round(value_bytes / 8.5))
    return (b" ".join(draw.choices(known, k=draw.randint(1, 2 * mean - 1))) for _ in range(records))


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


def report(what: str, records: int, read: Callable[[], None], passes: int = 1) -> None:
    walls, cpus = [], []
    for _ in range(passes):
        started, used = time.perf_counter(), time.process_time()
        read()
        walls.append(time.perf_counter() - started)
        cpus.append(time.process_time() - used)
    wall, cpu = min(walls), min(cpus)
    print(f"{what:30s} {records / wall:12,.0f} records/s  {records / cpu:12,.0f} records per CPU second")


if __name__ == "__main__":
    main()
