"""Rows that leave for a topic, through drivers that are killed at every step of sending them: each record is
there at least once, those of a txid before those of the next. What must be there comes from the producer, and
what is there from kafka-python's consumer."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from postgres import PostgresServer
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

PARTITIONS = 3
ORDERS = 1_500
LIMIT = 1000
TESTS = str(Path(__file__).parents[1])


class Large(NamedTuple):
    """An order, and where it is in the topic that the topology reads."""

    customer: str
    amount: str
    partition: int
    offset: int


class Sent(NamedTuple):
    """A record of the topic that the topology writes."""

    partition: int
    txid: int
    attempt: int
    order: Large


def produce(bootstrap: str, topic: str) -> list[Large]:
    """Produce orders to a new topic; return the large ones."""
    create_topic(bootstrap, topic, PARTITIONS)
    create_topic(bootstrap, f"{topic}-large", 2)
    chance = random.Random(7)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    orders = []
    for number in range(ORDERS):
        customer, amount = f"c{chance.randrange(40)}", chance.randrange(2 * LIMIT)
        value = json.dumps({"customer": customer, "amount": f"{amount}.25"})
        sent = producer.send(topic, value.encode(), partition=number % PARTITIONS)
        if amount >= LIMIT:
            orders.append((sent, customer, f"{amount}.25"))
    producer.flush()
    producer.close()
    placed = [(future.get(10), customer, amount) for future, customer, amount in orders]
    return [Large(customer, amount, at.partition, at.offset) for at, customer, amount in placed]


def consume(bootstrap: str, topic: str, topology: str, isolation: str = "read_uncommitted") -> list[Sent]:
    """Return all records of a topic, in the order of each partition."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level=isolation)
    places = [TopicPartition(topic, number) for number in range(2)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    found = []
    while any(consumer.position(place) < ends[place] for place in places):
        for place, records in consumer.poll(timeout_ms=1000).items():
            for record in records:
                told, headers = json.loads(record.value), dict(record.headers)
                assert record.key == told["customer"].encode()
                assert headers["txstream-topology"] == topology.encode()
                order = Large(told["customer"], told["amount"], told["partition"], told["offset"])
                txid, attempt = int(headers["txstream-txid"]), int(headers["txstream-attempt"])
                found.append(Sent(place.partition, txid, attempt, order))
    consumer.close()
    return found


def first_times(sent: Sequence[Sent]) -> list[Sent]:
    """Return what is left when a reader drops what it has seen before."""
    seen: dict[Large, Sent] = {}
    for one in sent:
        before = seen.setdefault(one.order, one)
        assert before == one, "an order was sent under two txids, attempts or partitions"
    return list(seen.values())


def check_whole(once: Sequence[Sent], expected: Sequence[Large]) -> None:
    """Require each order once, and the txids of a partition in their order."""
    assert sorted(one.order for one in once) == sorted(expected)
    for partition in range(2):
        txids = [one.txid for one in once if one.partition == partition]
        assert txids == sorted(txids)
        assert len(set(txids)) > 10


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_every_large_order_is_sent_in_the_order_of_txids(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    expected = produce(services.kafka, unique)
    database = postgres.create_database(unique)
    launcher = Launcher(services, tmp_path, database, {"PYTHONPATH": TESTS}).without_spark
    arguments = [
        *("run", "support.sink_kills:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"semantics={semantics}", "--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    by_executors = ["-p", "driver_commit_rows=1"]
    for path, point in (([], "inside-commit:2"), ([], "after-commit:3"), (by_executors, "after-write:4")):
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    for step in ("before-sending:2", "produced:2", "flushed:2", "not-noted:1", "noted:1", "dropped:1"):
        killed = launcher.run(*arguments, "-p", f"dies={step}")
        assert killed.status == -signal.SIGKILL, f"not killed at {step}: {killed.stderr}"
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr

    sent = consume(services.kafka, f"{unique}-large", unique)
    once = first_times(sent)
    assert len(sent) > len(once), "no kill has made the driver send a record twice"
    check_whole(once, expected)
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        kept = connection.execute(f'SELECT count(*), min(txid) FROM "{unique}-large_outbox"').fetchone()
        rows = connection.execute(f"SELECT count(*) FROM {unique} WHERE amount > {LIMIT}").fetchone()
    assert kept is not None
    assert kept[1] == max(one.txid for one in once)
    assert rows == (len(expected),)
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        connection.execute(f'UPDATE "{unique}-large_outbox" SET value = NULL')
    checked = launcher.run("fsck", unique)
    assert checked.status != 0
    assert "rows-differ" in checked.stdout


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_reader_of_what_is_committed_gets_each_large_order_once(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    expected = produce(services.kafka, unique)
    launcher = Launcher(services, tmp_path, postgres.create_database(unique), {"PYTHONPATH": TESTS})
    launcher = launcher.without_spark
    arguments = [
        *("run", "support.sink_kills:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"semantics={semantics}", "-p", "exactly_once=true"),
        *("--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    for point in ("inside-commit:2", "after-commit:3"):
        killed = launcher.run(*arguments, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    for step in ("begun:1", "produced:2", "flushed-all:2", "not-ended:2", "ended:2", "not-noted:1"):
        killed = launcher.run(*arguments, "-p", f"dies={step}")
        assert killed.status == -signal.SIGKILL, f"not killed at {step}: {killed.stderr}"
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
    sent = consume(services.kafka, f"{unique}-large", unique, "read_committed")
    assert first_times(sent) == sent
    check_whole(sent, expected)
    assert len(consume(services.kafka, f"{unique}-large", unique)) > len(sent), "no kill has left a rest"
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
