"""Services that go away and come back while a topology runs: it waits or goes on, and ends exact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from postgres import PostgresServer
from support.runs import Launcher
from support.tables import read_counts
from support.texts import count_words, create_topic, fill_topic, make_lines, produce

import txstream
from txstream.embedded import EmbeddedKafka, EmbeddedZooKeeper, Services
from txstream.engine.fault_points import Point
from txstream.examples import word_count
from txstream.testing import InProcessRunner
from txstream.transaction import Txid


class At:
    """A listener that runs an action once, when a batch gets to a point."""

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


@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
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


@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
def test_broker_killed_while_running(
    services: Services,
    own_kafka: EmbeddedKafka,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    semantics: str,
) -> None:
    """A replay without the partition: opaque goes on with the others, transactional waits and says so."""
    kafka = own_kafka
    truth = fill_topic(kafka.address, unique, make_lines(4_000))
    settings = replace(settings_of(services, sqlite_url, tmp_path), kafka=kafka.address)
    # A stored plan that is not read yet must wait for its partitions; an opaque one is made anew.
    point = Point.AFTER_PERSIST if semantics == "transactional" else Point.BEFORE_COMMIT
    killed = At(point, 2, lambda: kafka.stop_broker(2, kill=True))
    running = txstream.start(
        topology_of(unique, semantics),
        settings=settings,
        until="caught-up",
        listener=killed,
        runner_factory=InProcessRunner,
    )
    with running:
        assert killed.done.wait(90)
        if semantics == "transactional":
            wait_until(lambda: "partition" in str(running.progress.waiting_for))
        else:
            wait_until(lambda: everything_readable_is_counted(sqlite_url, unique, truth))
            assert running.is_running, "an unreadable partition means not caught up"
        kafka.start_broker(2)
        report = running.wait(120)
    assert report.caught_up
    assert read_counts(sqlite_url, unique) == truth


def everything_readable_is_counted(url: str, table: str, truth: dict[str, int]) -> bool:
    counted = sum(read_counts(url, table).values())
    return counted >= 0.45 * sum(truth.values())


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
    told = threading.Event()

    def hold(point: Point, txid: Txid, open_batches: object) -> None:
        if (point, txid) == (Point.BEFORE_COMMIT, 3):
            assert told.wait(90)

    running = txstream.start(
        topology_of(unique), settings=settings, runner_factory=InProcessRunner, listener=hold
    )
    wait_until(lambda: running.progress.batches >= 2)
    stopping = threading.Thread(target=running.stop, args=(120,))
    stopping.start()
    loop = running._driver.loop
    assert loop is not None
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
