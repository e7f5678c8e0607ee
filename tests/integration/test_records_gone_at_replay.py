"""A transactional batch is half committed, its driver is killed, and Kafka compacts its topic: the replay may
not make the second database differ from the first in silence. What is right is known from what was sent, and
is read with psycopg and kafka-python alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from kafka import KafkaConsumer, TopicPartition
from postgres import PostgresServer
from support.kafka_topics import Topics, wait_until
from support.postgres_tools import host_of
from support.runs import Launcher, Outcome

from txstream.plugins.local.embedded import Services

MODULE = """
import txstream as t
from txstream import SqlStateBolt, Sum
from txstream.spouts.kafka import KafkaSource


def topology(topic: str, second: str = "", executors: bool = False) -> t.Topology:
    source = KafkaSource(
        topic, decode=t.Decode("json", "n bigint", key_format="string"), kafka_columns=["key"],
        max_records_per_partition=2,
    )
    builder = t.TransactionalTopologyBuilder(
        topic, "rows", t.TransactionalSpout(source), commit="executors" if executors else "driver"
    )
    for name, url in (("first", None), ("second", second or None)):
        if name == "first" or second:
            state = t.SqlState(f"{topic}_{name}", key="key string", value="n bigint", url=url)
            bolt = SqlStateBolt(state, n=Sum("n"))
            builder.set_committer_bolt(name, bolt).fields_grouping("rows", "key")
    return builder.build()
"""

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "1",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "0",
}


class Desk:
    def __init__(self, launcher: Launcher, topics: Topics, name: str, first: str, second: str) -> None:
        (launcher.directory / "gone.py").write_text(MODULE)
        self.launcher, self.topics, self.name = launcher.without_spark, topics, name
        self.urls = {"first": first, "second": second}
        self.launcher.database = first
        topics.create(name, configs=COMPACTED)

    def send(self, *records: tuple[str, int]) -> None:
        for key, n in records:
            self.topics.send(self.name, [json.dumps({"n": n}).encode()], 0, key=key.encode())

    def run(self, *more: str, fault: str | None = None) -> Outcome:
        variables: Any = {} if fault is None else {"TXSTREAM_FAULT": f"kill@{fault}"}
        second = ["-p", f"second={self.urls['second']}"] if self.urls["second"] else []
        return self.launcher.run(
            *("run", "gone:topology", "-p", f"topic={self.name}", *second, *more),
            *("--until", "caught-up", "--session-timeout", "1"),
            **variables,
        )

    def offsets(self) -> list[int]:
        """What is in the topic, by kafka-python."""
        place = TopicPartition(self.name, 0)
        consumer: Any = KafkaConsumer(bootstrap_servers=self.topics.address, consumer_timeout_ms=2000)
        try:
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            return [record.offset for record in consumer]
        finally:
            consumer.close()

    def compact(self) -> None:
        """Replace the record of a, and wait until the older one is gone."""
        self.send(("a", 1), ("c", 1))
        self.send(("d", 1))  # the segment of the last record is never compacted
        wait_until(lambda: 0 not in self.offsets(), "Kafka has compacted the topic", 120)
        assert 1 in self.offsets()

    def total(self, which: str) -> int | None:
        url = sa.make_url(self.urls[which])
        query = f'SELECT sum(n) FROM "{self.name}_{which}"'
        with psycopg.connect(host=host_of(self.urls[which]), user="postgres", dbname=url.database) as one:
            row = one.execute(query.encode()).fetchone()
        return None if row is None or row[0] is None else int(row[0])


@pytest.fixture
def made(
    launcher: Launcher, services: Services, postgres: PostgresServer, unique: str
) -> Iterator[Callable[..., Desk]]:
    with Topics(services.kafka) as topics:

        def make(*, two: bool = True) -> Desk:
            second = postgres.create_database(f"{unique}_b") if two else ""
            return Desk(launcher, topics, unique, postgres.create_database(unique), second)

        yield make


@pytest.mark.soak
def test_a_replay_that_reads_something_else_than_a_database_has_ends_the_run(
    made: Callable[..., Desk],
) -> None:
    desk = made()
    desk.send(("a", 100), ("b", 40))
    killed = desk.run(fault="between-commits:1")
    assert killed.status == -signal.SIGKILL, killed.stderr
    assert f"Kafka compacts '{desk.name}': with a transactional spout" in killed.stderr
    doctor = desk.launcher.run("doctor", "gone:topology", "-p", f"topic={desk.name}", "--json")
    notes = [one["message"] for one in doctor.json()["checks"] if one["name"].endswith("compaction")]
    assert [note[:24] for note in notes] == ["note: it is compacted; w"], doctor.stdout
    assert desk.total("first") == 140
    desk.compact()
    for _ in range(2):
        outcome = desk.run()
        assert outcome.status == 1, outcome.stderr
        for words in ("txid 1 may be committed", f"partition {desk.name}/0 had 2 records", "has 1 now"):
            assert words in outcome.stderr
        assert (desk.total("first"), desk.total("second")) == (140, None)


@pytest.mark.soak
def test_a_replay_that_reads_the_same_commits(made: Callable[..., Desk]) -> None:
    desk = made()
    desk.send(("a", 100), ("b", 40))
    assert desk.run(fault="between-commits:1").status == -signal.SIGKILL
    desk.send(("c", 2))
    outcome = desk.run()
    assert outcome.status == 0, outcome.stderr
    assert (desk.total("first"), desk.total("second")) == (142, 142)
    assert "are gone" not in outcome.stderr


@pytest.mark.soak
def test_one_database_says_that_records_are_gone_and_goes_on(made: Callable[..., Desk]) -> None:
    desk = made(two=False)
    desk.send(("a", 100), ("b", 40))
    assert desk.run(fault="before-commit:1").status == -signal.SIGKILL
    desk.compact()
    outcome = desk.run()
    assert outcome.status == 0, outcome.stderr
    assert desk.total("first") == 40 + 1 + 1 + 1
    assert "of its 2 offsets, 1 have a record" in outcome.stderr
