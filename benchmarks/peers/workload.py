"""The one workload of all contenders: how often each first word occurs, in PostgreSQL, exactly once.

The topic has 4 partitions and records of about 60 bytes, "word-17 xxx...". The words follow Zipf's law over
10,000; if there are more, all are equally likely. A contender is a script with the options of `options`. It
prints one JSON object per line: `{"ready": true}` when it waits for live records, and one for each run.

Latency is the time from producing a marker to the commit of its row, as PostgreSQL recorded it
(`track_commit_timestamp`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import psycopg
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from sqlalchemy import make_url

PARTITIONS = 4
KEYS = 10_000
_PADDING = "x" * 47
_TICK_SECONDS = 0.01


def options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every contender."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("mode", choices=("catchup", "live"))
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--zookeeper")
    parser.add_argument("--database", required=True, help="an SQLAlchemy URL")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=0, help="records in the topic")
    parser.add_argument("--keys", type=int, default=KEYS, help="how many words there are")
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a live run")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--started", type=float, default=time.time(), help="when the process was started")
    parser.add_argument("--variant", default="")
    return parser


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants that still run."""
    mine = psutil.Process()
    times = [process.cpu_times() for process in (mine, *mine.children(recursive=True))]
    return round(sum(time.user + time.system for time in times), 2)


def connect(url: str) -> psycopg.Connection[Any]:
    parsed = make_url(url)
    return psycopg.connect(
        host=parsed.query.get("host") or parsed.host,  # type: ignore[arg-type]  # one host, so one string
        port=parsed.port,
        user=parsed.username,
        password=parsed.password,
        dbname=parsed.database,
    )


def fresh_tables(url: str) -> psycopg.Connection[Any]:
    """Create a peer's tables, empty: the counts, and what it needs to count nothing twice."""
    connection = connect(url)
    for table in ("counts", "applied", "positions"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    # This fill factor suits a table whose rows all change in every batch. txstream's own has PostgreSQL's
    # default.
    connection.execute(
        "CREATE TABLE counts (key text PRIMARY KEY, count bigint NOT NULL) WITH (fillfactor = 50)"
    )
    connection.execute("CREATE TABLE applied (batch bigint PRIMARY KEY)")
    connection.execute("CREATE TABLE positions (partition int PRIMARY KEY, next bigint)")
    connection.commit()
    return connection


UPSERT = """
INSERT INTO counts AS t (key, count) SELECT * FROM unnest(%(keys)s::text[], %(counts)s::bigint[])
ON CONFLICT (key) DO UPDATE SET count = t.count + excluded.count"""


def upsert(connection: psycopg.Connection[Any], keys: Sequence[str], counts: Sequence[int]) -> None:
    """Add counts. The keys are plain words, so they are not quoted, as code for a single job would do it."""
    values = {"keys": "{" + ",".join(keys) + "}", "counts": "{" + ",".join(map(str, counts)) + "}"}
    connection.execute(UPSERT, values, prepare=True)


def _words(records: int, keys: int = KEYS) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(7)
    if keys > KEYS:
        return random.integers(0, keys, records)
    weights = 1 / np.arange(1, keys + 1)
    return random.choice(keys, records, p=weights / weights.sum())


def make_topic(
    kafka: str,
    topic: str,
    records: int,
    *,
    keys: int = KEYS,
    partitions: int = PARTITIONS,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic with `records` records, dealt in turn over its partitions."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made = NewTopic(topic, partitions, 1, config=dict(config or {}))
    admin.create_topics([made])[topic].result()
    producer = Producer(
        {"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for number, word in enumerate(_words(records, keys).tolist()):
        _produce(producer, topic, f"word-{word}", number % partitions)
    producer.flush()


def produce_live(kafka: str, topic: str, rate: int, seconds: float, *, partitions: int = PARTITIONS) -> int:
    """Produce `rate` records per second at an even pace, one marker in each hundredth of a second. Returns
    how many records were produced."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "acks": 1})
    words = iter(_words(int((rate + 100) * (seconds + 1))).tolist())
    started, number = time.time(), 0
    for tick in range(int(seconds / _TICK_SECONDS)):
        time.sleep(max(0.0, started + tick * _TICK_SECONDS - time.time()))
        for _ in range(int(rate * _TICK_SECONDS) - 1):
            _produce(producer, topic, f"word-{next(words)}", number % partitions)
            number += 1
        _produce(producer, topic, f"m-{tick}-{int(time.time() * 1e6)}", number % partitions)
        number += 1
        producer.poll(0)
    producer.flush()
    return number


def _produce(producer: Producer, topic: str, word: str, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, f"{word} {_PADDING}".encode(), partition=partition)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def truth(records: int, keys: int = KEYS) -> dict[str, int]:
    counted = np.bincount(_words(records, keys), minlength=keys)
    return {f"word-{word}": int(count) for word, count in enumerate(counted) if count}


def is_exact(url: str, records: int, keys: int, *, table: str = "counts", count: str = "count") -> bool:
    """Return whether the table counts every word exactly as often as the topic has it."""
    with connect(url) as connection:
        rows = connection.execute(f"SELECT key, {count} FROM {table}").fetchall()
    return dict(rows) == truth(records, keys)


def counted(url: str, *, table: str = "counts", count: str = "count") -> int:
    """Return how many records the table has counted."""
    with connect(url) as connection:
        row = connection.execute(f"SELECT coalesce(sum({count}), 0) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def latencies(url: str, skip_seconds: float, *, table: str = "counts", key: str = "key") -> Mapping[str, Any]:
    """Return the milliseconds from producing the markers to their commit."""
    with connect(url) as connection:
        rows = connection.execute(
            f"SELECT {key}, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM {table} "
            f"WHERE {key} LIKE 'm-%'"
        ).fetchall()
    return _percentiles([(word, float(at)) for word, at in rows], skip_seconds)


def appended(kafka: str, topic: str, skip_seconds: float) -> tuple[int, Mapping[str, Any]]:
    """Return how many words the topic has, and the milliseconds from producing the markers to appending them.
    The topic's timestamps must be those of the append."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "appended", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    count, ended, rows = 0, 0, []
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 1.0):
            if (error := message.error()) is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise SystemExit(f"{topic} cannot be read: {error}")
                ended += 1
                continue
            count += 1
            word = (message.value() or b"").decode()
            if word.startswith("m-"):
                rows.append((word, message.timestamp()[1] / 1e3))
    consumer.close()
    return count, _percentiles(rows, skip_seconds)


def _percentiles(rows: Sequence[tuple[str, float]], skip_seconds: float) -> Mapping[str, Any]:
    """Return percentiles of the latency. `rows` has each marker and the second at which it arrived. Markers
    of the first `skip_seconds` and of the last two seconds are left out. Percentiles of none are None."""
    produced = np.array([int(name.split("-")[2]) / 1e6 for name, _ in rows])
    arrived = np.array([at for _, at in rows])
    first, last = (produced.min(), produced.max()) if len(rows) else (0.0, 0.0)
    used = (produced >= first + skip_seconds) & (produced <= last - 2)
    taken = 1000 * (arrived - produced)[used]
    if not used.any():
        return {"markers": 0, "p50": None, "p90": None, "p99": None, "max": None}
    return {
        "markers": int(used.sum()),
        **{f"p{p}": round(float(np.percentile(taken, p)), 1) for p in (50, 90, 99)},
        "max": round(float(taken.max()), 1),
    }


def batch_rate(commits: Sequence[float]) -> float | None:
    """Return batches per second from the first commit to the last; None for fewer than ten commits.

    commits: in seconds, in order.
    """
    return round((len(commits) - 1) / (commits[-1] - commits[0]), 2) if len(commits) >= 10 else None


def runs_of(count: int) -> Iterator[tuple[int, bool]]:
    """Yield each run's number, and whether it is cold, as the first of the process is."""
    return ((run, run == 0) for run in range(count))
