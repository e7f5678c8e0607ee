"""A table that mirrors a topic of keys and values in which a record without a value (a tombstone) removes its
key's row. Drivers are killed by SIGKILL within commits on both paths. What must be there comes from
kafka-python's consumer and plain SQL."""

from __future__ import annotations

import random
import signal
from typing import Any

import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from postgres import PostgresServer
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

PARTITIONS, RECORDS = 3, 900
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "3600000",  # so long tombstones stay
}
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
MODULE = """
from txstream import Decode, KafkaSource, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.examples.word_count import SPOUTS


def topology(topic: str, semantics: str, driver_commit_rows: int | None = None):
    columns = ("key", "value", "topic", "partition", "offset")
    decode = Decode(key_format="string")
    source = KafkaSource(topic, decode=decode, kafka_columns=columns, max_records_per_partition=30)
    builder = TransactionalTopologyBuilder(
        "mirror", "changes", SPOUTS[semantics](source), driver_commit_rows=driver_commit_rows
    )
    table = SqlTable(
        topic, "value string", key="key string", on_conflict="replace", removed_by="value is null"
    )
    builder.set_bolt("store", SqlAppendBolt(table), parallelism=2).local_or_shuffle_grouping("changes")
    return builder.build()
"""


def fill(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    chance = random.Random(topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    for number in range(RECORDS):
        key = chance.randrange(60)
        value = None if chance.random() < 0.4 else f"{number}".encode()
        producer.send(topic, key=f"k{key}".encode(), value=value, partition=key % PARTITIONS)
    producer.flush()
    producer.close()


def mirrored(bootstrap: str, topic: str) -> dict[str, str]:
    """Return the last value of each key that has one."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    last: dict[str, bytes | None] = {}
    read = 0
    while read < RECORDS:
        for records in consumer.poll(timeout_ms=1000).values():
            read += len(records)
            last.update((record.key.decode(), record.value) for record in records)
    consumer.close()
    return {key: value.decode() for key, value in last.items() if value is not None}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("semantics", "on_spark"), [("opaque", False), ("opaque", True), ("transactional", True)]
)
def test_a_mirror_whose_drivers_are_killed(
    launcher: Launcher,
    services: Services,
    postgres: PostgresServer,
    unique: str,
    semantics: str,
    on_spark: bool,
) -> None:
    launcher = launcher if on_spark else launcher.without_spark
    url = postgres.create_database(unique)
    fill(services.kafka, unique)
    (launcher.directory / "mine.py").write_text(MODULE)
    arguments = [
        *("run", "mine:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"semantics={semantics}"),
        *("--until", "caught-up", "--session-timeout", "1"),
    ]
    for point, path in (
        ("inside-commit:2", []),
        ("after-commit:3", []),
        ("inside-begin:4", BY_EXECUTORS),
        ("after-begin:5", BY_EXECUTORS),
        ("after-write:6", BY_EXECUTORS),
        ("before-advance:8", []),
    ):
        killed = launcher.run(*arguments, *path, TXSTREAM_DATABASE=url, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    ended = launcher.run(*arguments, TXSTREAM_DATABASE=url)
    assert ended.status == 0, ended.stderr
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        found: dict[str, str] = dict(
            connection.execute(f"SELECT key, value FROM {unique}".encode()).fetchall()
        )
        left = connection.execute(
            f"SELECT min(txid), (SELECT max(txid) FROM txstream_batch) FROM {unique}__rows "
            f"WHERE txstream_removed".encode()
        ).fetchone()
    assert found == mirrored(services.kafka, unique)
    assert left is not None
    assert left[0] in (None, left[1])  # what older batches have removed is not kept


@pytest.mark.soak
def test_a_compacted_topic_of_which_tombstones_are_left(
    launcher: Launcher, services: Services, postgres: PostgresServer, unique: str
) -> None:
    """One topology has read the values before Kafka compacts them away, another begins with what is left."""
    with Topics(services.kafka) as topics:
        topics.create(unique, configs=COMPACTED)
        _mirror_compacted(launcher, topics, postgres, unique)


def _mirror_compacted(launcher: Launcher, topics: Topics, postgres: PostgresServer, unique: str) -> None:
    (launcher.directory / "mine.py").write_text(MODULE)
    wanted: dict[str, str] = {}

    def send(number: int, value: str | None) -> None:
        key = f"k{number}"
        topics.send(unique, [None if value is None else value.encode()], 0, key=key.encode())
        wanted.pop(key, None)
        wanted.update({} if value is None else {key: value})

    def mirror(database: str) -> dict[str, str]:
        ended = launcher.without_spark.run(
            *("run", "mine:topology", "--id", database, "-p", f"topic={unique}", "-p", "semantics=opaque"),
            *("--until", "caught-up", "--session-timeout", "1"),
            TXSTREAM_DATABASE=urls[database],
        )
        assert ended.status == 0, ended.stderr
        with psycopg.connect(host=str(postgres.data), user="postgres", dbname=database) as connection:
            return dict(connection.execute(f"SELECT key, value FROM {unique}".encode()).fetchall())

    urls = {name: postgres.create_database(name) for name in (unique, f"{unique}_2")}
    for number in range(12):
        send(number, f"old {number}")
    assert mirror(unique) == wanted
    assert len(wanted) == 12
    for number in range(8):
        send(number, None if number % 2 else f"new {number}")
    send(99, "last")  # the segment of the last record is never compacted
    wait_until(lambda: left(topics.address, unique)[0][0] > 7, "Kafka has compacted the values away", 120)
    assert {key for _, key, value in left(topics.address, unique) if value is None} == {
        "k1",
        "k3",
        "k5",
        "k7",
    }
    assert mirror(unique) == wanted
    assert mirror(f"{unique}_2") == wanted


def left(bootstrap: str, topic: str) -> list[tuple[int, str, bytes | None]]:
    """What is in the topic, by kafka-python."""
    consumer: Any = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=2000)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found = [(record.offset, record.key.decode(), record.value) for record in consumer]
    consumer.close()
    return found
