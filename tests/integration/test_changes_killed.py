"""A table's changes leave for a topic, through drivers that are killed at every step. What must be there is a
plain fold of the orders and what psycopg reads of the table; what is there is what kafka-python reads."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import psycopg
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from postgres import PostgresServer
from support.kafka_topics import wait_until
from support.measured import samples
from support.runs import Launcher, RunningCommand
from support.texts import create_topic

from txstream import reading
from txstream.plugins.local.embedded import EmbeddedKafka, Services
from txstream.plugins.monitoring import exposition_of_ledgers
from txstream.settings import Settings

PARTITIONS = 3
ORDERS = 1_500
TESTS = str(Path(__file__).parents[1])


class Order(NamedTuple):
    customer: str
    amount: int


class Change(NamedTuple):
    """A record of the topic that the topology writes: what a customer has ordered in all, as of a txid."""

    partition: int
    txid: int
    attempt: int
    customer: str
    orders: int
    amount: int


def create_topics(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)
    create_topic(bootstrap, f"{topic}-changes", 2)


def produce(bootstrap: str, topic: str, seed: int = 11) -> list[Order]:
    chance = random.Random(seed)
    orders = [Order(f"c{chance.randrange(40)}", chance.randrange(1000)) for _ in range(ORDERS)]
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    for number, order in enumerate(orders):
        producer.send(topic, json.dumps(order._asdict()).encode(), partition=number % PARTITIONS)
    producer.flush()
    producer.close()
    return orders


def consume(bootstrap: str, topic: str, topology: str, isolation: str = "read_uncommitted") -> list[Change]:
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
                row, headers = json.loads(record.value), dict(record.headers)
                assert record.key == row["customer"].encode()
                assert headers["txstream-topology"] == topology.encode()
                numbers = int(headers["txstream-txid"]), int(headers["txstream-attempt"])
                found.append(Change(place.partition, *numbers, **row))
    consumer.close()
    return found


def read_once(bootstrap: str, topic: str) -> list[tuple[int, str, int]]:
    """Return what readers of ours get, by partition, customer and txid: each ends somewhere, and the next one
    goes on there with what it has seen."""
    places = [TopicPartition(topic, number) for number in range(2)]
    starts, found = dict.fromkeys(places, 0), list[tuple[int, str, int]]()
    seen: list[tuple[str, int, str, int, list[bytes]]] = []
    while True:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, max_poll_records=150)
        consumer.assign(places)
        for place, offset in starts.items():
            consumer.seek(place, offset)
        ends, reader = consumer.end_offsets(places), reading.once(consumer, seen=seen)
        for _ in range(5):
            if all(consumer.position(place) >= ends[place] for place in places):
                break
            for place, records in reader.poll(timeout_ms=500).items():
                txids = [int(dict(one.headers)["txstream-txid"]) for one in records]
                found += [
                    (place.partition, one.key.decode(), txid)
                    for one, txid in zip(records, txids, strict=True)
                ]
        starts, seen = {place: consumer.position(place) for place in places}, reader.seen
        consumer.close()
        assert len(seen) <= len(places), "it remembers more than a txid of each partition"
        if starts == ends:
            return found


def first_times(sent: Sequence[Change]) -> list[Change]:
    """Return what is left when a reader drops what it has seen before, by key and txid."""
    seen: dict[tuple[str, int], Change] = {}
    for one in sent:
        before = seen.setdefault((one.customer, one.txid), one)
        assert before == one, "one txid has two rows of a customer"
    return list(seen.values())


def check_whole(once: Sequence[Change], orders: Sequence[Order], table: dict[str, tuple[int, int]]) -> None:
    """Require that each change follows the one before, txid by txid, up to the table and the plain fold."""
    counts, sums = Counter(one.customer for one in orders), Counter[str]()
    for order in orders:
        sums[order.customer] += order.amount
    expected = {customer: (counts[customer], sums[customer]) for customer in counts}
    assert table == expected
    rows: dict[str, tuple[int, int]] = {}
    per_txid: Counter[int] = Counter()
    for one in sorted(once, key=lambda one: one.txid):
        orders_before = rows.get(one.customer, (0, 0))[0]
        per_txid[one.txid] += one.orders - orders_before
        assert one.orders > orders_before, "a row that a batch has changed is missing"
        rows[one.customer] = one.orders, one.amount
    assert rows == expected
    # Each batch but the last ones takes 20 records of each partition: a txid that was left out would add its
    # records to the next.
    assert max(per_txid.values()) <= PARTITIONS * 20
    for partition in {one.partition for one in once}:
        txids = [one.txid for one in once if one.partition == partition]
        assert txids == sorted(txids)


def table_of(postgres: PostgresServer, name: str) -> dict[str, tuple[int, int]]:
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=name) as connection:
        found = connection.execute(f"SELECT customer, orders, amount FROM {name}").fetchall()
    return {customer: (orders, amount) for customer, orders, amount in found}


POINTS = "inside-commit:2", "after-commit:3", "after-write:4"
STEPS = "before-sending:2", "produced:2", "flushed:2", "not-noted:1", "dropped:1"


@pytest.mark.parametrize(
    ("semantics", "points", "steps"),
    [
        pytest.param("opaque", (), STEPS[2:3], id="opaque-once"),
        pytest.param("opaque", POINTS, STEPS, id="opaque", marks=pytest.mark.soak),
        pytest.param("transactional", POINTS, STEPS, id="transactional", marks=pytest.mark.soak),
    ],
)
def test_every_change_is_sent_in_the_order_of_txids(
    services: Services,
    postgres: PostgresServer,
    tmp_path: Path,
    unique: str,
    semantics: str,
    points: Sequence[str],
    steps: Sequence[str],
) -> None:
    create_topics(services.kafka, unique)
    orders = produce(services.kafka, unique)
    database = postgres.create_database(unique)
    launcher = Launcher(services, tmp_path, database, {"PYTHONPATH": TESTS}).without_spark
    arguments = [
        *("run", "support.change_kills:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"semantics={semantics}", "--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    by_executors = ["-p", "driver_commit_rows=1"]
    for point in points:
        path = by_executors if "write" in point else []
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    for step in steps:
        killed = launcher.run(*arguments, "-p", f"dies={step}")
        assert killed.status == -signal.SIGKILL, f"not killed at {step}: {killed.stderr}"
    outcome = launcher.run(*arguments, *by_executors)
    assert outcome.status == 0, outcome.stderr

    sent = consume(services.kafka, f"{unique}-changes", unique)
    once = first_times(sent)
    assert len(sent) > len(once), "no kill has made the driver send a record twice"
    check_whole(once, orders, table_of(postgres, unique))
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
    told = launcher.run("status", unique, "--json")
    assert json.loads(told.stdout)["behind"] == {f"{unique}_changes": 0}
    settings = Settings(zookeeper=services.zookeeper, kafka=services.kafka, database=database)
    metrics = samples(exposition_of_ledgers(settings).decode(), unique)
    assert metrics["txstream_results_behind_txids", f"{unique}_changes"] == 0
    # A reader of ours drops what has come again, and one that ends goes on with what the first has seen.
    found = read_once(services.kafka, f"{unique}-changes")
    expected = [(one.partition, one.customer, one.txid) for one in once]
    assert [sorted(one) for one in (found, set(found))] == [sorted(expected)] * 2


def check_exactly_once(
    services: Services, postgres: PostgresServer, name: str, orders: Sequence[Order]
) -> None:
    """Require that a reader of committed records gets each change once, in order; nothing is open."""
    sent = consume(services.kafka, f"{name}-changes", name, "read_committed")
    assert first_times(sent) == sent
    check_whole(sent, orders, table_of(postgres, name))
    state = states_by_id(services.kafka)[f"txstream-{name}-{name}-changes"]
    assert state in ("CompleteCommit", "CompleteAbort", "Empty")


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_reader_of_what_is_committed_gets_each_change_once(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    create_topics(services.kafka, unique)
    orders = [order for seed in range(4) for order in produce(services.kafka, unique, seed)]
    launcher = Launcher(services, tmp_path, postgres.create_database(unique), {"PYTHONPATH": TESTS})
    launcher = launcher.without_spark
    arguments = [
        *("run", "support.change_kills:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"semantics={semantics}", "-p", "exactly_once=true"),
        *("--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    for point in ("inside-commit:2", "after-commit:3"):
        killed = launcher.run(*arguments, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    for step in ("not-noted:1", "begun:1", "produced:2", "flushed-all:2", "not-ended:2", "ended:2"):
        killed = launcher.run(*arguments, "-p", f"dies={step}")
        assert killed.status == -signal.SIGKILL, f"not killed at {step}: {killed.stderr}"
    for seed, step in ((5, "flushed-all:2"), (6, "ended:2")):
        orders += produce(services.kafka, unique, seed)
        frozen = launcher.start(*arguments, "-p", f"dies={step}", "-p", "how=SIGSTOP")
        try:
            wait_until(partial(is_stopped, frozen), f"frozen at {step}")
            outcome = launcher.run(*arguments)  # which takes longer than a transaction may last
            assert outcome.status == 0, outcome.stderr
            frozen.process.send_signal(signal.SIGCONT)
            frozen.wait()
        finally:
            frozen.kill()
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
    check_exactly_once(services, postgres, unique, orders)
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_broker_that_dies_in_a_transaction_and_one_that_has_forgotten_the_id(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    """The broker is killed while the driver is in a step of a transaction, and starts again with its files.
    It forgets a transactional id that nobody uses for some seconds, as others do after a week."""
    forgets = {
        "transactional.id.expiration.ms": "3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    }
    with EmbeddedKafka(tmp_path / "own", overrides=forgets) as broker:
        mine = replace(services, kafka=broker.address)
        create_topics(mine.kafka, unique)
        orders: list[Order] = []
        launcher = Launcher(mine, tmp_path, postgres.create_database(unique), {"PYTHONPATH": TESTS})
        arguments = [
            *("run", "support.change_kills:topology", "--id", unique, "-p", f"topic={unique}"),
            *("-p", "exactly_once=true", "--until", "caught-up", "--json", "--session-timeout", "60"),
        ]
        for seed, step in enumerate(("begun:2", "produced:2", "flushed-all:2", "not-ended:2", "ended:2")):
            orders += produce(mine.kafka, unique, seed)
            sender = launcher.without_spark.start(*arguments, "-p", f"dies={step}", "-p", "how=SIGSTOP")
            try:
                wait_until(partial(is_stopped, sender), f"frozen at {step}")
                broker.stop_broker(1, kill=True)
                sender.process.send_signal(signal.SIGCONT)
                broker.start_broker(1)
                outcome = sender.wait(300)
                assert outcome.status == 0, f"{step}: {outcome.stderr}"
            finally:
                sender.kill()
        # A broker that was killed may tell an earlier end of its log for a moment, to which a run then comes.
        outcome = launcher.without_spark.run(*arguments)
        assert outcome.status == 0, outcome.stderr
        check_exactly_once(mine, postgres, unique, orders)
        wait_until(lambda: not states_by_id(mine.kafka), "the id is forgotten")
        orders += produce(mine.kafka, unique, 9)
        outcome = launcher.without_spark.run(*arguments)
        assert outcome.status == 0, outcome.stderr
        check_exactly_once(mine, postgres, unique, orders)


def states_by_id(bootstrap: str) -> dict[str, str]:
    """Return the state of each transaction that the cluster knows."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    by_broker = admin.list_transactions().values()
    found = {one.transactional_id: one.state for ones in by_broker for one in ones}
    admin.close()
    return found


def is_stopped(command: RunningCommand) -> bool:
    assert command.process.poll() is None, command.wait().stderr
    return psutil.Process(command.process.pid).status() == psutil.STATUS_STOPPED
