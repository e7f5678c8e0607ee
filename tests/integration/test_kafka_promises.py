"""`KafkaSource` keeps every promise of the conformance suite, over real brokers."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from support.kafka_topics import Topics
from support.promises import SPOUT_KINDS

from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import EmbeddedKafka, Services
from txstream.plugins.proof.spout_suite import Row, Rows, SpoutHarness, check_spout
from txstream.spouts.kafka import KafkaOptions, KafkaSource

OUTAGES = {
    "plans-around-an-outage",
    "an-outage-keeps-the-place",
    "a-read-in-an-outage-raises",
    "reads-again-after-an-outage",
    "unreadable-names-what-cannot-be-read",
}


# The promises for which offsets without rows could be taken for rows.
COUNTING = [
    *("nothing-skipped", "nothing-twice", "limit-respected", "a-small-limit-goes-on", "no-busy-batches"),
    *("resumes", "seeks-back", "records-is-not-too-small", "caught-up-in-the-end", "lag-goes-to-zero"),
]


class TopicHarness(SpoutHarness):
    """A topic of its own with two partitions."""

    settle_seconds = 60.0

    def __init__(self, topics: Topics, topic: str) -> None:
        self.topics = topics
        self.topic = self.create_topic(topic)
        self.partitions = 2
        self.written = itertools.count()

    def create_topic(self, topic: str) -> str:
        return self.topics.create(topic, 2)

    def create(self) -> KafkaSource:
        return KafkaSource(
            self.topic, self.topics.address, client=KafkaOptions(partition_discovery_seconds=0.2)
        )

    def append(self, count: int) -> Rows:
        return dict(self.write(number, count) for number in range(self.partitions))

    def add_partition(self, count: int) -> Rows:
        self.partitions += 1
        self.topics.add_partitions(self.topic, self.partitions)
        return dict([self.write(self.partitions - 1, count)])

    def lose(self, partition: str) -> None:
        number = int(partition.rpartition("/")[2])
        self.topics.delete_before(self.topic, number, -1)

    def write(self, partition: int, count: int) -> tuple[str, list[Row]]:
        values = [f"value {next(self.written)}" for _ in range(count)]
        self.send(partition, values)
        columns = {"topic": self.topic, "partition": partition}
        return f"{self.topic}/{partition}", [{"value": value, **columns} for value in values]

    def send(self, partition: int, values: list[str]) -> None:
        self.topics.send(self.topic, [value.encode() for value in values], partition)


class TransactionsHarness(TopicHarness):
    """Offsets without rows: after each append an aborted record, and a marker for each transaction."""

    def __init__(self, topics: Topics, topic: str) -> None:
        super().__init__(topics, topic)
        self.producer = topics.transactional_producer(topic)

    def send(self, partition: int, values: list[str]) -> None:
        records = [value.encode() for value in values]
        for commit, part in ((True, records), (False, [b"aborted"])):
            self.topics.transaction(self.producer, self.topic, part, commit=commit, partition=partition)

    def close(self) -> None:
        self.producer.close()


class FreezingHarness(TopicHarness):
    """Each partition is on a broker of its own; a partition is hidden by freezing its broker."""

    brokers = (2, 1)

    def __init__(self, kafka: EmbeddedKafka, topics: Topics, topic: str) -> None:
        super().__init__(topics, topic)
        self.kafka = kafka
        self.frozen: set[str] = set()

    def create(self) -> KafkaSource:
        # Only the broker that is never frozen: a client may spend its connect timeout on a frozen one.
        bootstrap = f"127.0.0.1:{self.kafka.port_of(self.brokers[1])}"
        return KafkaSource(self.topic, bootstrap, client=KafkaOptions(partition_discovery_seconds=0.2))

    def create_topic(self, topic: str) -> str:
        return self.topics.create(topic, replicas={n: [broker] for n, broker in enumerate(self.brokers)})

    def hide(self, partition: str) -> None:
        self.frozen.add(partition)
        process = self.signal(partition, signal.SIGSTOP)
        # On a busy machine, threads of the broker may go on for a moment and answer.
        assert wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 60)

    def show(self, partition: str) -> None:
        self.frozen.discard(partition)
        self.signal(partition, signal.SIGCONT)

    def close(self) -> None:
        for partition in list(self.frozen):
            self.show(partition)

    def signal(self, partition: str, number: int) -> psutil.Process:
        broker = self.brokers[int(partition.rpartition("/")[2])]
        process = psutil.Process(self.kafka.identities[broker].pid)
        process.send_signal(number)
        return process


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def topic(unique: str) -> Callable[[], str]:
    """Names a topic for each check."""
    numbers = itertools.count()
    return lambda: f"{unique}-{next(numbers)}"


@pytest.mark.parametrize("kind", SPOUT_KINDS)
def test_a_topic_keeps_every_promise(kind: str, topics: Topics, topic: Callable[[], str]) -> None:
    names = set(SPOUT_KINDS[kind]) - OUTAGES
    assert not check_spout(lambda: TopicHarness(topics, topic()), only=names).not_applicable


def test_a_topic_with_transactions_keeps_the_promises_that_count(
    topics: Topics, topic: Callable[[], str]
) -> None:
    assert not check_spout(lambda: TransactionsHarness(topics, topic()), only=COUNTING).not_applicable


@pytest.mark.soak
def test_a_frozen_broker_is_an_outage_as_promised(
    steady_kafka: EmbeddedKafka, topic: Callable[[], str]
) -> None:
    with Topics(steady_kafka.address) as opened:
        report = check_spout(lambda: FreezingHarness(steady_kafka, opened, topic()), only=OUTAGES)
        assert not report.not_applicable
