"""Services that go away and come back while a topology runs: it waits or goes on, and stays exact."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from postgres import PostgresServer
from support.kafka_topics import Topics
from support.runs import Launcher, Outcome
from support.tables import read_counts
from support.texts import count_words, create_topic, fill_topic, make_lines, produce

import txstream
from txstream.core.fault_points import Point
from txstream.core.transaction import Txid
from txstream.engine.loop.event_loop import EventLoop
from txstream.examples import word_count
from txstream.inspect.databases import open_zookeeper
from txstream.inspect.plain_metas import PlainCodec
from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper, Services
from txstream.plugins.local.outage import Outage, outage_topology
from txstream.testing import InProcessRunner
from txstream.zookeeper import ZooKeeperProgress


class At:
    """A listener that runs an action once, when a batch reaches a point."""

    def __init__(self, point: Point, txid: int, action: Callable[[], None]) -> None:
        self.point, self.txid, self.action = point, txid, action
        self.begun = False
        self.done = threading.Event()

    def __call__(self, point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is self.point and txid == self.txid and not self.begun:
            self.begun = True
            self.action()
            self.done.set()


def topology_of(name: str, semantics: str = "opaque") -> txstream.Topology:
    built = word_count.topology(name, semantics, name, max_records_per_partition=100)  # type: ignore[arg-type]
    return built.with_id(name)


def settings_of(services: Services, url: str, directory: Path) -> txstream.Settings:
    return txstream.Settings(
        zookeeper=services.zookeeper,
        kafka=services.kafka,
        database=url,
        data_dir=directory,
        session_timeout_seconds=4.0,
        fetch_timeout_seconds=3.0,
    )


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_zookeeper_restarted_between_commit_and_advance(
    services: Services,
    own_zookeeper: EmbeddedZooKeeper,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    semantics: str,
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(2_000))
    settings = replace(settings_of(services, sqlite_url, tmp_path), zookeeper=own_zookeeper.address)
    killed = At(Point.BEFORE_ADVANCE, 2, own_zookeeper.kill)
    running = txstream.start(
        topology_of(unique, semantics),
        settings=settings,
        until="caught-up",
        listener=killed,
        runner_factory=InProcessRunner,
    )
    with running:
        assert killed.done.wait(90)
        own_zookeeper.start()
        report = running.wait(120)
    assert report.caught_up
    assert read_counts(sqlite_url, unique) == truth


def test_database_restarted_between_batches(
    services: Services, own_postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(2_000))
    url = own_postgres.create_database(unique)
    stopped = At(Point.BEFORE_COMMIT, 3, own_postgres.stop)
    running = txstream.start(
        topology_of(unique),
        settings=settings_of(services, url, tmp_path),
        until="caught-up",
        listener=stopped,
        runner_factory=InProcessRunner,
    )
    with running:
        assert stopped.done.wait(90)
        wait_until(lambda: running.progress.waiting_for is not None)
        own_postgres.start()
        report = running.wait(120)
    assert report.caught_up
    assert read_counts(url, unique) == truth


@pytest.mark.parametrize("semantics", ["transactional", pytest.param("opaque", marks=pytest.mark.soak)])
def test_a_broker_killed_while_a_batch_is_processed(
    launcher: Launcher,
    own_kafka: EmbeddedKafka,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    semantics: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Txid 2 fails when 8 of 16 partitions have gone. A transactional replay waits for them, says so
    everywhere, and holds the same records. An opaque one goes on, and those records come in a later txid."""
    lines = make_lines(3_200)
    with Topics(own_kafka.address) as topics:
        topics.create(unique, replicas={number: [1 + number % 2] for number in range(16)})
    produce(own_kafka.address, unique, lines, partitions=16)
    odd = [f"{unique}/{number}" for number in range(1, 16, 2)]
    outage = Outage(tmp_path)
    settings = replace(settings_of(launcher.services, sqlite_url, tmp_path), kafka=own_kafka.address)

    def told(*command: str) -> Outcome:
        return launcher.run(*command, TXSTREAM_KAFKA=own_kafka.address)

    running = txstream.start(
        outage_topology(unique, unique, unique, semantics, outage, max_records_per_partition=50),
        settings=settings,
        until="caught-up",
        runner_factory=InProcessRunner,
    )
    with running:
        wait_until(lambda: outage.is_due)
        before = stored_metas(settings, unique)
        own_kafka.stop_broker(2, kill=True)
        outage.begin()
        if semantics == "transactional":
            wait_until(lambda: "partition" in str(running.progress.waiting_for))
            begin = f"waiting for partitions {odd[0]}, 3, 5, 7, 9, 11, 13, 15 since "
            waiting = rf"{begin}\d\d:\d\d:\d\d \(txid 2 must hold the same tuples\)"
            assert re.search(waiting, told("status", unique).stdout)
            assert re.search(waiting, caplog.text)
            assert running.progress.committed_txid == 1
        else:
            wait_until(lambda: running.progress.committed_txid == 4)
            assert running.is_running, "an unreadable partition means not caught up"
        own_kafka.start_broker(2)
        report = running.wait(120)
    assert report.caught_up
    assert read_counts(sqlite_url, unique) == count_words(lines)
    batches = told("batches", unique, "--json").json()
    shown = told("show", unique, "2", "--json").json()
    first_try = {f"{unique}/{number}": {"start": 50, "end": 100} for number in range(16)}
    assert shown["failed_attempts"][0]["ranges"] == first_try
    assert "txid 2 was to fail" in shown["failed_attempts"][0]["error"]
    if semantics == "transactional":
        assert {one["partition"]: one["meta"] for one in shown["ranges"]} == before
        assert shown["partitions"] == first_try
        assert [one["unavailable"] for one in batches] == [{}] * 4
        assert "waiting" not in told("status", unique).stdout
    else:
        assert before == {}, "an opaque plan is not stored"
        assert shown["partitions"].keys() == first_try.keys() - set(odd)
        assert [sorted(one["unavailable"]) for one in batches[1:4]] == [sorted(odd)] * 3
        assert "8 of 16" in told("batches", unique).stdout
        for partition in odd:
            later = [one["partitions"][partition] for one in batches[2:] if partition in one["partitions"]]
            assert [one["start"] for one in later] == [50, 100, 150], "each once, in a later txid"


def stored_metas(settings: txstream.Settings, topology_id: str) -> dict[str, Any]:
    """Return the metas that ZooKeeper stores for txid 2, by partition."""
    with open_zookeeper(settings) as zookeeper:
        stored = ZooKeeperProgress(zookeeper, topology_id, PlainCodec()).load().batches.get(Txid(2))
    return {} if stored is None else dict(stored.metas.partitions)


def test_new_partitions_are_found_while_running(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    from kafka import KafkaAdminClient
    from kafka.admin import NewPartitions

    first, second = make_lines(400, seed=1), make_lines(400, seed=2)
    create_topic(services.kafka, unique, partitions=2)
    produce(services.kafka, unique, first, partitions=2)
    running = txstream.start(
        topology_of(unique),
        settings=settings_of(services, sqlite_url, tmp_path),
        runner_factory=InProcessRunner,
    )
    with running:
        wait_until(lambda: total(sqlite_url, unique) == 2_000)
        admin = KafkaAdminClient(bootstrap_servers=services.kafka)
        admin.create_partitions({unique: NewPartitions(total_count=4)})
        admin.close()
        produce(services.kafka, unique, second, partitions=4)
        wait_until(lambda: total(sqlite_url, unique) == 4_000)
    assert read_counts(sqlite_url, unique) == count_words(first + second)


def total(url: str, table: str) -> int:
    try:
        return sum(read_counts(url, table).values())
    except Exception:  # noqa: BLE001 - the table is made by the run
        return 0


def wait_until(condition: Callable[[], bool], deadline_seconds: float = 90.0) -> None:
    """Wait for a condition. Raises AssertionError at the deadline."""
    tick = threading.Event()
    for _ in range(int(deadline_seconds / 0.1)):
        if condition():
            return
        tick.wait(0.1)
    raise AssertionError(f"{condition} was not true within {deadline_seconds} s")


def test_stop_ends_between_two_batches_and_the_next_run_goes_on(
    launcher: Launcher, services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(4_000))
    settings = settings_of(services, sqlite_url, tmp_path)
    held, told = threading.Event(), threading.Event()

    def hold(point: Point, txid: Txid, open_batches: object) -> None:
        if (point, txid) == (Point.BEFORE_COMMIT, 3):
            held.set()
            assert told.wait(90)

    running = txstream.start(
        topology_of(unique), settings=settings, runner_factory=InProcessRunner, listener=hold
    )
    assert held.wait(90)
    stopping = threading.Thread(target=running.stop, args=(120,))
    stopping.start()
    loop = running.driver.loop
    assert isinstance(loop, EventLoop)
    wait_until(lambda: loop.coordinator.is_draining)
    told.set()
    stopping.join()
    stopped = running.wait(60)
    assert not stopped.caught_up
    assert 3 <= stopped.last_txid < 10
    report = txstream.start(
        topology_of(unique), settings=settings, until="caught-up", runner_factory=InProcessRunner
    ).wait(60)
    assert report.first_txid == stopped.last_txid + 1
    assert report.recovered_batches == 0
    assert read_counts(sqlite_url, unique) == truth
