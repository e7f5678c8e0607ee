"""A topic that gets each txid once, from a broker that has forgotten who sent it: a transaction that nobody
ended, an id that has expired, an epoch that has run out. What is there is what kafka-python reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import ConcurrentTransactionsError, KafkaError
from kafka.protocol.metadata.find_coordinator import CoordinatorType
from kafka.protocol.producer.transaction import InitProducerIdRequest
from support.kafka_topics import wait_until
from support.texts import create_topic

from txstream import KafkaSinkBolt, MemorySpout, OpaqueSpout, TransactionalTopologyBuilder
from txstream.core.transaction import Txid
from txstream.plugins.local.embedded import EmbeddedKafka, Services
from txstream.plugins.outbox.sending import OutboxFollower, TableOutbox
from txstream.spouts.kafka import transactional_topic
from txstream.spouts.kafka.transactional_topic import TransactionalTopic
from txstream.state import open_database
from txstream.testing import TopologyTest

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]
EXPIRES = {
    "transactional.id.expiration.ms": "1000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
SOON_OUT = 32_700
"""Of the epochs of a producer's id there are 32,767."""


class Died(BaseException):
    """As when the process is killed."""


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedKafka(tmp_path_factory.mktemp("forgets"), overrides=EXPIRES) as running:
        yield running.address


def connect(kafka: str, topic: str) -> TransactionalTopic:
    return TransactionalTopic(topic, f"{topic}-txids", f"id-{topic}", "life", kafka, {}, 10.0)


def committed(kafka: str, topic: str) -> list[bytes | None]:
    """What a reader of what is committed gets."""
    consumer = KafkaConsumer(bootstrap_servers=kafka, isolation_level="read_committed", group_id=None)
    place, found = TopicPartition(topic, 0), list[bytes | None]()
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end = consumer.end_offsets([place])[place]
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=200).values():
            found += [record.value for record in records]
    consumer.close()
    return found


def is_known(kafka: str, topic: str) -> bool:
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    listed = [one.transactional_id for ones in admin.list_transactions().values() for one in ones]
    admin.close()
    return f"id-{topic}" in listed


def test_a_transaction_that_nobody_ended_and_an_id_that_has_expired_are_made_again(
    forgetful: str, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_topic, "TRANSACTION_TIMEOUT_SECONDS", 1.0)
    url, noted = f"sqlite:///{tmp_path / 'state.db'}", dict[str, Txid]()
    rows = MemorySpout("n bigint", {"p": [(n,) for n in range(1, 6)]}, max_records_per_partition=1)
    builder = TransactionalTopologyBuilder("numbers", "numbers", OpaqueSpout(rows))
    sink = KafkaSinkBolt(unique, value="n", exactly_once=True)
    builder.set_committer_bolt("out", sink).shuffle_grouping("numbers")
    with TopologyTest(builder, database=url) as test:
        test.commit(5)
    create_topic(forgetful, unique, 1)
    with closing(open_database(url)) as database:
        current = [Txid(3)]

        def driver() -> OutboxFollower:
            """One that knows only what ZooKeeper has noted, which is nothing."""
            outbox = TableOutbox(
                "numbers",
                f"{unique}_outbox",
                f"topic {unique}",
                [database],
                partial(connect, forgetful, unique),
            )
            return OutboxFollower("numbers", [outbox], lambda: current[0], dict, noted.update, lambda: 0.0)

        def waits_for(*numbers: int) -> None:
            expected = [b"%d" % number for number in numbers]
            wait_until(lambda: committed(forgetful, unique) == expected, f"{numbers} are there, once")

        first = driver()
        first.send_committed()
        current[0] = Txid(4)
        with monkeypatch.context() as killed:
            killed.setattr(KafkaProducer, "commit_transaction", dies)
            with pytest.raises(Died):
                first.send_committed()
        wait_until(lambda: not is_known(forgetful, unique), "the id has expired")
        assert committed(forgetful, unique) == [b"1", b"2"]
        second = driver()
        second.start()
        try:
            waits_for(1, 2, 3)
            wait_until(lambda: not is_known(forgetful, unique), "the id of who is connected has expired")
            current[0] = Txid(6)
            waits_for(1, 2, 3, 4, 5)
        finally:
            second.stop(60)
        assert noted == {f"{unique}_outbox": 5}


def dies(_producer: Any) -> None:
    raise Died


def test_an_epoch_that_has_run_out_shuts_out_who_was_there_all_the_same(
    services: Services, unique: str
) -> None:
    kafka = services.kafka
    create_topic(kafka, unique, 1)
    first = connect(kafka, unique)
    first.send_all([(b"k", b"1", [])], 1)
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    name = f"id-{unique}"

    async def epochs() -> tuple[int, int]:
        """Begin so many of them; return the last one, and whose."""
        coordinators = await admin._find_coordinator_ids([name], key_type=CoordinatorType.TRANSACTION)
        while True:
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=30_000, producer_id=-1, producer_epoch=-1
            )
            answer = await admin._manager.send(request, node_id=coordinators[name])
            if answer.error_code == ConcurrentTransactionsError.errno:
                continue  # the one before it is not quite over
            assert answer.error_code == 0
            if answer.producer_epoch >= SOON_OUT:
                return answer.producer_id, answer.producer_epoch

    former, epoch = admin._manager.run(epochs)
    with pytest.raises(KafkaError):
        first.send_all([(b"k", b"2", [])], 2)
    first.close()
    latest, txid = connect(kafka, unique), 1
    while admin.describe_transactions([name])[name].producer_id == former:
        txid += 1
        before = latest
        before.send_all([(b"k", b"%d" % txid, [])], txid)
        latest = connect(kafka, unique)
        assert latest.reached == txid
        with pytest.raises(KafkaError):
            before.send_all([(b"k", b"late", [])], txid + 1)
        before.close()
    admin.close()
    assert epoch + txid > 32_000
    latest.send_all([(b"k", b"last", [])], txid + 1)
    assert committed(kafka, unique) == [*(b"%d" % one for one in range(1, txid + 1)), b"last"]
    latest.close()
