"""A run over a real broker as others see it: a consumer group that it publishes to, and its metrics.

The oracles are kafka-python's own clients and plain SQL.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from support.kafka_topics import wait_until
from support.runs import Launcher
from support.texts import fill_topic, make_lines, produce

import txstream
from txstream import CountBolt, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt, Sum
from txstream.core.errors import UsageError
from txstream.plugins.local.embedded import Services
from txstream.testing import InProcessRunner

LINES = 400
Samples = dict[tuple[str, ...], float]


FAILING = """
import txstream
from txstream import *

class Trips(BasicBolt):
    output = "value string"
    seen = 0

    def execute(self, tup, collector):
        if tup["value"] == "15":
            Trips.seen += 1
            raise BatchFailedError("not yet") if Trips.seen == 1 else ValueError("never")
        collector.emit([tup["value"]])

def batches(topic):
    spout = OpaqueSpout(KafkaSource(topic), max_batch_records=10)
    builder = TransactionalTopologyBuilder(topic, "lines", spout, max_attempts=2)
    builder.set_bolt("trips", Trips()).shuffle_grouping("lines")
    store = SqlStateBolt(SqlState(topic, key="value string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("trips", "value")
    return builder.build()

class Numbers(Spout):
    output = "value string"
    left = [str(number) for number in range(30)]

    def open(self, context, collector):
        self.collector = collector

    def next_tuple(self):
        if self.left:
            value = self.left.pop(0)
            self.collector.emit([value], value)

    def fail(self, value):
        self.left.append(value)

class Breaks(RichBolt):
    def execute(self, tup):
        if tup["value"] == "15":
            raise ValueError("never")

def tuples(topic):
    builder = TopologyBuilder(topic, max_attempts=2)
    builder.set_spout("lines", Numbers())
    builder.set_bolt("breaks", Breaks()).shuffle_grouping("lines")
    return builder.build()
"""


def topology_of(topic: str) -> Any:
    """Count lines; publish to a group with the topic's name."""
    source = KafkaSource(topic, publish_group=topic)
    spout = OpaqueSpout(source, max_batch_records=100)
    builder = txstream.TransactionalTopologyBuilder(topic, "lines", spout)
    builder.set_bolt("count", CountBolt("value")).fields_grouping("lines", "value")
    store = SqlStateBolt(SqlState(topic, key="value string", value="n bigint"), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("count", "value")
    return builder.build()


def settings_of(services: Services, url: str, directory: Path) -> txstream.Settings:
    return txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=url, data_dir=directory
    )


def offsets(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        found = admin.list_group_offsets([group])[group]
    finally:
        admin.close()
    return {(place.topic, place.partition): stored.offset for place, stored in found.items()}


def ends(bootstrap: str, topic: str) -> dict[tuple[str, int], int]:
    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        return {(place.topic, place.partition): end for place, end in consumer.end_offsets(places).items()}
    finally:
        consumer.close()


def with_lags(look: Callable[[], Samples]) -> Samples:
    """Look until there are lags: a broker that answers late is asked again at the next look."""
    found: Samples = {}

    def has_lags() -> bool:
        found.clear()
        found.update(look())
        return any(name[0] == "txstream_source_lag_records" for name in found)

    wait_until(has_lags, "the broker says where the topic ends")
    return found


@pytest.mark.soak
def test_a_group_gets_the_committed_places_and_metrics_the_lag(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    pytest.importorskip("prometheus_client")
    from support.measured import samples, scrape

    from txstream.plugins.monitoring import exposition_of_ledgers
    from txstream.plugins.monitoring.of_run import RunMetrics
    from txstream.plugins.monitoring.server import served

    fill_topic(services.kafka, unique, make_lines(LINES), partitions=2)
    topology, settings = topology_of(unique), settings_of(services, sqlite_url, tmp_path)
    metrics = RunMetrics(topology)
    totals: dict[Any, Any] = {}
    with served(metrics, "0") as url:
        with txstream.start(
            topology, settings=settings, runner_factory=InProcessRunner, watchers=[metrics]
        ) as running:
            metrics.attached(running.driver)
            wait_until(lambda: running.progress.records == LINES, "all is committed")
            wait_until(
                lambda: offsets(services.kafka, unique) == ends(services.kafka, unique), "it is published"
            )
            found = with_lags(lambda: scrape(url))
            exposition_of_ledgers(settings, totals)
            produce(services.kafka, unique, make_lines(10), partitions=2)
            wait_until(lambda: running.progress.records == LINES + 10, "the rest is committed")
            seen = with_lags(lambda: samples(exposition_of_ledgers(settings, totals).decode(), unique))
        assert sum(ends(services.kafka, unique).values()) == LINES + 10
        assert offsets(services.kafka, unique) == ends(services.kafka, unique), "published at the end"
    lags = {name[1:]: value for name, value in found.items() if name[0] == "txstream_source_lag_records"}
    assert lags == {("0", unique): 0, ("1", unique): 0}
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        query = "SELECT max(txid), sum(tuples) FROM txstream_batch WHERE topology = ?"
        last, records = database.execute(query, [unique]).fetchone()
    assert records == LINES + 10
    assert found["txstream_records_total",] == LINES
    assert seen["txstream_last_committed_txid",] == last
    assert seen["txstream_records_total",] == 10
    assert seen["txstream_leader",] == found["txstream_leader",] == 1
    assert seen["txstream_epoch",] == found["txstream_epoch",]
    assert seen["txstream_source_lag_records", "all", "all"] == 0
    assert seen["txstream_source_unavailable_seconds",] == 0
    away = replace(settings, kafka="127.0.0.1:1", connect_timeout_seconds=1.0)
    seen = samples(exposition_of_ledgers(away, totals).decode(), unique)
    assert seen["txstream_last_committed_txid",] == last
    assert not [name for name in seen if name[0].startswith("txstream_source")], (
        "nobody knows, so it is not 0"
    )


def test_a_group_with_members_is_refused(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    fill_topic(services.kafka, unique, make_lines(10), partitions=1)
    consumer = KafkaConsumer(
        bootstrap_servers=services.kafka, group_id=unique, client_id="somebody", enable_auto_commit=False
    )
    try:
        # Whoever joins before it knows of the topic is given none of its partitions.
        wait_until(lambda: consumer.partitions_for_topic(unique), "the topic is known")
        consumer.subscribe([unique])
        wait_until(lambda: consumer.poll(200) is not None and bool(consumer.assignment()), "somebody joined")
        run = txstream.start(
            topology_of(unique),
            settings=settings_of(services, sqlite_url, tmp_path),
            until="caught-up",
            runner_factory=InProcessRunner,
        )
        with pytest.raises(UsageError, match=r"has 1 members \(somebody"):
            run.wait(60)
    finally:
        consumer.close()
    assert offsets(services.kafka, unique) == {}


def test_the_command_serves_metrics_and_writes_json(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    pytest.importorskip("prometheus_client")
    fill_topic(services.kafka, unique, make_lines(50), partitions=1)
    launcher = Launcher(services, tmp_path, sqlite_url).without_spark
    done = launcher.word_count(unique, unique, unique, "--metrics", "0", "--log-format", "json")
    assert done.status == 0, done.stderr
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert {one["topology"] for one in said} == {unique}
    urls = [one["message"] for one in said if one["message"].startswith("metrics: http://127.0.0.1:")]
    assert len(urls) == 1
    taken = launcher.word_count(unique, unique, unique, "--metrics", services.kafka)
    assert taken.status == 1, "the port may be free when it is started again"
    assert "cannot be listened on" in taken.stderr


@pytest.mark.parametrize("kind", ["batches", "tuples"])
def test_each_json_line_of_a_run_names_what_it_is_about(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str, kind: str
) -> None:
    fill_topic(services.kafka, unique, [str(number) for number in range(30)], partitions=1)
    launcher = Launcher(services, tmp_path, sqlite_url).without_spark
    (tmp_path / "failing.py").write_text(FAILING, encoding="utf-8")
    target = ("failing:" + kind, "-p", f"topic={unique}", "--until", "caught-up", "--session-timeout", "1")
    done = launcher.run("run", *target, "--log-format", "json", "-v")
    assert done.status == 1, done.stderr
    said = [json.loads(line) for line in done.stderr.splitlines()]
    keys = ["time", "level", "message", "topology", "txid", "attempt", "epoch"]
    assert [list(one) for one in said] == [keys] * len(said)
    assert {one["topology"] for one in said} == {unique}
    failed = [one for one in said if "failed" in one["message"] and "replayed" in one["message"]]
    assert failed
    for one in (*failed, said[-1]):
        assert "never" in one["message"] or "not yet" in one["message"]
        found = re.search(r"(?:txid|micro-batch) (\d+)(?: attempt 1\.(\d+))?", one["message"])
        assert found is not None
        assert one["txid"] == int(found[1])
        assert one["attempt"] == (1 << 32) + int(found[2] or found[1])
        assert one["epoch"] == 1
