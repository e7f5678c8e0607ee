"""Orders in a topic, drivers that append them to a table and are killed, and what must be there: one row for
each record that kafka-python's consumer reads, and nothing else."""

from __future__ import annotations

import json
import random
import signal
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from support.runs import Launcher
from support.texts import create_topic

PARTITIONS = 3
ORDERS = 1_500
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
# Each run is killed at the next point; the one after it goes on from there.
DRIVER_POINTS = ["inside-commit:2", "after-commit:3"]
EXECUTOR_POINTS = ["after-begin:4", "after-write:5"]


def fill(bootstrap: str, topic: str) -> None:
    """Produce orders to a new topic; some have no amount."""
    create_topic(bootstrap, topic, PARTITIONS)
    chance = random.Random(topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    for number in range(ORDERS):
        order = {
            "customer": f"c{chance.randrange(40)}",
            "amount": None if number % 7 == 0 else f"{number}.25",
        }
        producer.send(topic, json.dumps(order).encode(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()


def produced(bootstrap: str, topic: str) -> list[tuple[Any, ...]]:
    """Return topic, partition, offset, customer and amount of every record, sorted."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found: list[tuple[Any, ...]] = []
    while len(found) < ORDERS:
        for place, records in consumer.poll(timeout_ms=1000).items():
            for record in records:
                order = json.loads(record.value)
                found.append((topic, place.partition, record.offset, order["customer"], order["amount"]))
    consumer.close()
    return sorted(found, key=lambda row: row[:3])


def kill_and_finish(launcher: Launcher, topic: str, semantics: str) -> None:
    """Append the orders through killed drivers, on both commit paths."""
    arguments = [
        *("run", "txstream.examples.orders:topology", "--id", topic, "-p", f"topic={topic}"),
        *("-p", f"table={topic}", "-p", f"semantics={semantics}", "-p", "max_records_per_partition=50"),
        *("--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    for point in (*DRIVER_POINTS, *EXECUTOR_POINTS):
        path = BY_EXECUTORS if point in EXECUTOR_POINTS else []
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
