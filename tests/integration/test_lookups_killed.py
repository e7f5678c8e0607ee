"""Orders that are joined with a table of users that changes meanwhile. Drivers are killed by SIGKILL between
the steps of a commit, on both paths. What must be there comes from kafka-python's consumer, from the ranges
that the ledger has, and plain SQL: each order has the last of its user up to and in its own batch. So it must
when batches are run again, long after."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from postgres import PostgresServer
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

PARTITIONS, USERS = 3, 40
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]


def produce(bootstrap: str, topics: tuple[str, str], count: int, chance: random.Random) -> None:
    """Append so many records to each topic, a user's always to one partition."""
    users, orders = topics
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    for _ in range(count):
        user = chance.randrange(USERS)
        value: dict[str, Any] = {"user": f"u{user}", "name": f"n{chance.random()}", "city": "Oslo"}
        if chance.random() < 0.2:
            value = {"user": f"u{user}", "gone": True}
        producer.send(users, json.dumps(value).encode(), partition=user % PARTITIONS)
        order = {"user": f"u{chance.randrange(USERS + 5)}", "amount": "1.00"}
        producer.send(orders, json.dumps(order).encode(), partition=chance.randrange(PARTITIONS))
    producer.flush()
    producer.close()


def records(bootstrap: str, topic: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Return all records of a topic by partition and offset."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    while len(found) < sum(consumer.end_offsets(places).values()):
        for some in consumer.poll(timeout_ms=1000).values():
            found.update({(f"{topic}/{one.partition}", one.offset): json.loads(one.value) for one in some})
    consumer.close()
    return found


def joined(
    ranges: list[dict[str, Any]], users: dict[Any, dict[str, Any]], orders: dict[Any, dict[str, Any]]
) -> Iterator[tuple[int, int, str, str | None]]:
    """Yield partition, offset, user and name of each order, batch by batch."""
    names: dict[str, str | None] = {}
    for batch in ranges:
        places = [(name, at) for name, one in sorted(batch.items()) for at in range(one["start"], one["end"])]
        for place in places:
            if place in users:
                names[users[place]["user"]] = users[place].get("name")
        for place in places:
            if place in orders:
                user = orders[place]["user"]
                yield int(place[0].rpartition("/")[2]), place[1], user, names.get(user)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("semantics", "on_spark"), [("opaque", False), ("opaque", True), ("transactional", True)]
)
def test_lookups_whose_drivers_are_killed(
    launcher: Launcher,
    services: Services,
    postgres: PostgresServer,
    unique: str,
    semantics: str,
    on_spark: bool,
) -> None:
    launcher = launcher if on_spark else launcher.without_spark
    url = postgres.create_database(unique)
    users, orders = topics = f"{unique}_users", f"{unique}_orders"
    for topic in topics:
        create_topic(services.kafka, topic, PARTITIONS)
    chance = random.Random(unique)
    produce(services.kafka, topics, 300, chance)
    arguments = [
        *("run", "txstream.examples.lookups:topology", "--id", unique, "--until", "caught-up"),
        *("-p", f"users={users}", "-p", f"orders={orders}", "-p", f"semantics={semantics}"),
        *("-p", "max_records_per_partition=30", "-p", "versions=true", "--session-timeout", "1"),
    ]
    for point, path in (
        ("inside-commit:2", []),
        ("after-commit:4", []),
        ("after-begin:6", BY_EXECUTORS),
        ("after-write:8", BY_EXECUTORS),
        ("before-advance:10", BY_EXECUTORS),
    ):
        killed = launcher.run(*arguments, *path, TXSTREAM_DATABASE=url, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
        produce(services.kafka, topics, 60, chance)
    ended = launcher.run(*arguments, TXSTREAM_DATABASE=url)
    assert ended.status == 0, ended.stderr
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        found = connection.execute(
            f'SELECT "partition", "offset", "user", name FROM {orders}'.encode()
        ).fetchall()
        ledger = connection.execute("SELECT metas FROM txstream_batch ORDER BY txid").fetchall()
    ranges = [row[0] if isinstance(row[0], dict) else json.loads(row[0]) for row in ledger]
    batches = [one["partitions"] for one in ranges]
    first = next(at for at, one in enumerate(batches) if any(name.startswith(orders) for name in one))
    assert sum(one["end"] - one["start"] for some in batches[: first + 1] for name, one in some.items()
               if name.startswith(users)) >= 300  # fmt: skip
    wanted = list(joined(batches, records(services.kafka, users), records(services.kafka, orders)))
    assert len(wanted) == 600
    assert sorted(found) == sorted(wanted)
    out = launcher.directory / "named.jsonl"
    named = ["replay", unique, f"1..{len(batches)}", "--component", "named", "--out", str(out), "--json"]
    again = launcher.run(*named, TXSTREAM_DATABASE=url)
    assert again.status == 0, again.stdout + again.stderr
    assert json.loads(again.stdout)["lookups"] == "then"
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    names = ("partition", "offset", "user", "name")
    assert sorted(tuple(one[name] for name in names) for one in rows) == sorted(wanted)
