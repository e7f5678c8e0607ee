"""The topic that gets each txid once, on a real broker: what a reader of committed records finds."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import psycopg
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from postgres import PostgresServer
from support import sender_kills
from support.nursery import nursery
from support.runs import Launcher, RunningCommand
from support.texts import create_topic

from txstream import (
    MemorySpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
)
from txstream.plugins.local.embedded import Services
from txstream.spouts.kafka.transactional_topic import TransactionalTopic
from txstream.testing import TopologyTest


def connect(services: Services, topic: str, life: str = "one") -> TransactionalTopic:
    return TransactionalTopic(topic, f"{topic}-txids", f"id-{topic}", life, services.kafka, {}, 10.0)


def read(services: Services, topic: str) -> list[tuple[str, int]]:
    consumer = KafkaConsumer(
        bootstrap_servers=services.kafka, isolation_level="read_committed", enable_auto_commit=False
    )
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    found = []
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=500).values():
            found += [(record.key.decode(), json.loads(record.value)) for record in records]
    consumer.close()
    return found


def row(key: str, value: int) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    return key.encode(), json.dumps(value).encode(), []


def test_each_txid_is_there_once_whatever_dies(services: Services, unique: str) -> None:
    create_topic(services.kafka, unique, 1)
    first = connect(services, unique)
    assert first.reached == 0
    first.send_all([row("a", 1), row("b", 1)], 1)
    first.send_all([row("a", 2)], 2)
    first.send_all([row("a", 2)], 2)  # it is there
    # The third is left open, as by a driver that is killed in it; the next one to connect ends it.
    first._producer.begin_transaction()
    first._producer.send(unique, b"3", b"a")
    first._producer.send(f"{unique}-txids", json.dumps({"life": "one", "txid": 3}).encode(), b"x")
    first._producer.flush(10)
    assert read(services, unique) == [("a", 1), ("b", 1), ("a", 2)]

    second = connect(services, unique)
    assert second.reached == 2
    second.send_all([row("a", 2)], 2)
    second.send_all([row("a", 3), row("c", 3)], 3)
    with pytest.raises(KafkaError):  # the first one is shut out
        first._producer.commit_transaction()
    first.close()
    with pytest.raises(KafkaError):
        first.send_all([row("a", 4)], 4)
    assert read(services, unique) == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("c", 3)]
    second.close()
    assert connect(services, unique, life="two").reached == 0


KILLS = 100
STEPS = "begun", "produced", "flushed-all", "not-ended", "ended"


def counts_of(name: str, rows: list[tuple[str, int]]) -> Topology:
    source = MemorySpout("name string, amount bigint", {"p": rows}, max_records_per_partition=3)
    builder = TransactionalTopologyBuilder(name, "in", OpaqueSpout(source))
    state = SqlState(name, key="name string", value="n bigint", changes_to=f"{name}-changes")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("amount"))).fields_grouping("in", "name")
    return builder.build()


def open_transactions(bootstrap: str, name: str, partitions: list[TopicPartition]) -> list[object]:
    """Return what the broker knows of transactions that have not ended: of this id, and in partitions."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    listed = [one for ones in admin.list_transactions().values() for one in ones]
    states = [one.state for one in listed if one.transactional_id == name]
    assert len(states) == 1
    found = [state for state in states if state not in ("CompleteCommit", "CompleteAbort", "Empty")]
    for partition, known in admin.describe_producers(partitions).items():
        assert known.active_producers, partition
        begun = [one.current_transaction_start_offset for one in known.active_producers]
        found += [(partition, offset) for offset in begun if offset >= 0]
    admin.close()
    return found


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_transaction_hangs_after_a_hundred_kills(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    """The sender by itself, with the table of a finished run. What must be there is a plain fold of what that
    has read."""
    topic, chance = f"{unique}-changes", random.Random(5)
    create_topic(services.kafka, topic, 2)
    batches = 3 * KILLS
    rows = [(f"c{chance.randrange(20)}", chance.randrange(1000)) for _ in range(3 * batches)]
    url = postgres.create_database(unique)
    with TopologyTest(counts_of(unique, rows), database=url) as test:
        test.commit(batches)
    launcher = Launcher(services, tmp_path, url)
    arguments = ["-P", sender_kills.__file__, url, services.kafka, unique, f"{unique}_changes", topic]

    def send(step: str) -> None:
        command = [*arguments, str(batches), step]
        ended = RunningCommand(nursery().start(command, tmp_path, launcher.variables())).wait()
        assert ended.status == (-signal.SIGKILL if step else 0), (step, ended.stderr)

    for number in range(KILLS):
        send(f"{STEPS[number % len(STEPS)]}:{chance.randrange(1, 4)}")
    send("")

    sent: list[tuple[int, str, int]] = []
    consumer = KafkaConsumer(
        bootstrap_servers=services.kafka, isolation_level="read_committed", enable_auto_commit=False
    )
    partitions = [TopicPartition(topic, number) for number in range(2)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    last = dict.fromkeys(partitions, 0)
    while any(consumer.position(place) < ends[place] for place in partitions):
        for place, records in consumer.poll(timeout_ms=500).items():
            for record in records:
                txid, row = int(dict(record.headers)["txstream-txid"]), json.loads(record.value)
                assert txid >= last[place], "a txid is behind a later one"
                last[place] = txid
                sent.append((txid, row["name"], row["n"]))
    consumer.close()
    sums: dict[str, int] = {}
    expected = []
    for at in range(0, len(rows), 3):
        for name, amount in rows[at : at + 3]:
            sums[name] = sums.get(name, 0) + amount
        expected += [(at // 3 + 1, name, sums[name]) for name in {name for name, _ in rows[at : at + 3]}]
    assert sorted(sent) == sorted(expected)
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        assert dict(connection.execute(f"SELECT name, n FROM {unique}").fetchall()) == sums
    partitions.append(TopicPartition(f"{topic}-txids", 0))
    assert open_transactions(services.kafka, f"txstream-{topic}", partitions) == []
