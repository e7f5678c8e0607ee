"""The topic that gets each txid once, on a real broker: what a reader of committed records finds."""

from __future__ import annotations

import json

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from support.texts import create_topic

from txstream.plugins.local.embedded import Services
from txstream.spouts.kafka.transactional_topic import TransactionalTopic


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
