"""The peer without an engine: one Python process polls with confluent-kafka, counts, and stores counts and
positions in one transaction. It is exactly-once as long as only one runs: nothing fences a second one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from confluent_kafka import Consumer, TopicPartition

from peers.workload import PARTITIONS, batch_rate, fresh_tables, is_exact, options, report, runs_of, upsert

Polled = tuple[Counter[str], dict[int, int], int]


def polls(kafka: str, topic: str, batch: int, wait_seconds: float) -> Iterator[Polled]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "plain-loop",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "queued.min.messages": 200_000,
            "fetch.max.bytes": 50 << 20,
            "max.partition.fetch.bytes": 4 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    try:
        while True:
            words, positions = [], {}
            for message in consumer.consume(batch, wait_seconds):
                value, partition, offset = message.value(), message.partition(), message.offset()
                if value is None or partition is None or offset is None:
                    raise SystemExit(f"no record, but {message.error()}")
                words.append(value.split(b" ", 1)[0].decode())
                positions[partition] = offset + 1
            yield Counter(words), positions, len(words)
    finally:
        consumer.close()


def main() -> None:
    arguments = options(__doc__).parse_args()
    is_live = arguments.mode == "live"
    for run, cold in runs_of(1 if is_live else arguments.runs):
        connection = fresh_tables(arguments.database)
        started = time.perf_counter()
        records = 0
        commits: list[float] = []
        if is_live:
            report(ready=True)
        for counts, positions, count in polls(
            arguments.kafka, arguments.topic, arguments.batch, 0.005 if is_live else 0.5
        ):
            if count:
                upsert(connection, list(counts), list(counts.values()))
                for partition, position in positions.items():
                    connection.execute(
                        "INSERT INTO positions VALUES (%s, %s) "
                        "ON CONFLICT (partition) DO UPDATE SET next = excluded.next",
                        (partition, position),
                        prepare=True,
                    )
                connection.commit()
                records += count
                commits.append(time.time())
            if time.perf_counter() - started > arguments.seconds if is_live else records >= arguments.records:
                break
        seconds = time.perf_counter() - started
        connection.close()
        report(
            run=run,
            cold=cold,
            records=records,
            batches=len(commits),
            seconds=round(seconds, 3),
            first_commit_seconds=round(commits[0] - arguments.started, 2),
            batches_per_second=batch_rate(commits),
            exact=None if is_live else is_exact(arguments.database, arguments.records, arguments.keys),
        )


if __name__ == "__main__":
    main()
