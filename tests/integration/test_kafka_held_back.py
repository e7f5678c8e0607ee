"""A producer's transaction that stays open holds back the records behind it: a run is not caught up, and says
for whom it waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import Topics, wait_until
from support.tables import read_rows

import txstream
from txstream import inspect
from txstream.inspect.databases import open_zookeeper
from txstream.inspect.overview import look
from txstream.inspect.source import source_now
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.kafka import KafkaSource

Start = Callable[..., txstream.RunningTopology]


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def settings(services: Services, sqlite_url: str, tmp_path: Path) -> txstream.Settings:
    return txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )


@pytest.fixture
def start(settings: txstream.Settings, unique: str) -> Iterator[Start]:
    """Start a run that counts the records of the test's topic by value."""
    begun: list[txstream.RunningTopology] = []

    def run(**options: Any) -> txstream.RunningTopology:
        source = KafkaSource(unique, kafka_columns=["value"], **options)
        builder = txstream.TransactionalTopologyBuilder(unique, "lines", txstream.OpaqueSpout(source))
        state = txstream.SqlState(unique, key="value string", value="count bigint")
        store = txstream.SqlStateBolt(state, count=txstream.Count())
        builder.set_committer_bolt("store", store).fields_grouping("lines", "value")
        begun.append(
            txstream.start(
                builder.build(), settings=settings, until="caught-up", runner_factory=InProcessRunner
            )
        )
        return begun[-1]

    yield run
    for one in begun:
        one.abort()


def held(topics: Topics, name: str) -> Any:
    """Fill a topic: 10 records, 5 of a transaction that stays open, and 1,000 behind them. Return the
    producer of those 5."""
    topics.create(name)
    topics.send(name, [b"before"] * 10)
    producer = topics.transactional_producer(f"{name}-writer", transaction_timeout_ms=600_000)
    producer.begin_transaction()
    for _ in range(5):
        producer.send(name, b"inside", partition=0)
    producer.flush(10)
    topics.send(name, [b"behind"] * 1_000)
    return producer


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "abort"])
def test_a_run_waits_for_an_open_transaction_and_says_so(
    topics: Topics,
    settings: txstream.Settings,
    start: Start,
    unique: str,
    commits: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def counts() -> dict[str, int]:
        return {row["value"]: row["count"] for row in read_rows(settings.database_url(), unique)}

    caplog.set_level(logging.INFO, "txstream")
    with closing(held(topics, unique)) as producer:
        running = start()
        wait_until(lambda: not running.is_running or running.progress.committed_txid == 1, "the first batch")
        wait_until(
            lambda: not running.is_running or "transactional id" in str(running.progress.waiting_for),
            "the run says whose transaction it waits for",
        )
        assert running.is_running, f"it has ended: {running.wait()}"
        told = running.progress.waiting_for
        assert told is not None
        assert told.startswith(f"records of {unique}/0 since ")
        assert "(1,005 behind an open transaction of producer " in told
        assert f"transactional id '{unique}-writer', open since " in told
        assert running.progress.lag_records == 1_005
        assert counts() == {"before": 10}
        wait_until(lambda: inspect.status(unique, settings=settings).waiting, "the leader stores its wait")
        (wait,) = inspect.status(unique, settings=settings).waiting
        assert str(wait) == told
        assert f"waiting for {told}" in caplog.text
        with open_zookeeper(settings) as zookeeper:
            now = source_now(settings, look(zookeeper, unique))
        assert now.lag_records == now.held_back[f"{unique}/0"].records == 1_005
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        report = running.wait(60)
    assert report.caught_up
    assert counts() == {"before": 10, "behind": 1_000} | ({"inside": 5} if commits else {})
    assert f"no longer waiting for records of {unique}/0" in caplog.text


def test_a_run_that_is_stopped_says_what_it_was_waiting_for(
    topics: Topics, settings: txstream.Settings, start: Start, unique: str
) -> None:
    with closing(held(topics, unique)) as producer:
        running = start()
        wait_until(
            lambda: not running.is_running or "records of" in str(running.progress.waiting_for),
            "the run waits",
        )
        running.stop()
        report = running.wait(60)
        assert not report.caught_up
        assert str(report.waiting_for).startswith(f"records of {unique}/0 since ")
        producer.abort_transaction()


def test_a_run_that_reads_everything_waits_for_nobody(topics: Topics, start: Start, unique: str) -> None:
    with closing(held(topics, unique)) as producer:
        report = start(isolation_level="read_uncommitted").wait(60)
        assert report.caught_up
        assert report.records == 1_015
        producer.abort_transaction()
