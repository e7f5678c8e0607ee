"""The examples end to end: databases, semantics, with and without Spark, and a batch's cost in ZooKeeper."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distinct_words
import pytest
from support.on_spark import tracker
from support.tables import read_counts, read_rows
from support.texts import fill_topic, make_lines

import txstream
from txstream.core.waits import wait_until
from txstream.engine.loop import operator_requests
from txstream.engine.spark.session import RECIPE
from txstream.examples import global_count, word_count
from txstream.plugins.local.embedded import Services
from txstream.testing import InProcessRunner
from txstream.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = {
    "opaque": ["word", "n", "prev_n", "txid"],
    "transactional": ["word", "n", "txid"],
    "non-transactional": ["word", "n"],
}


def settings_of(services: Services, url: str, directory: Path) -> txstream.Settings:
    return txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=url, data_dir=directory
    )


@pytest.mark.parametrize("semantics", list(COLUMNS))
def test_postgresql_gives_the_same_table_as_sqlite(
    services: Services, sqlite_url: str, postgres_url: str, tmp_path: Path, unique: str, semantics: Any
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(1_000))
    tables = []
    for database, url in (("sqlite", sqlite_url), ("postgresql", postgres_url)):
        topology = word_count.topology(unique, semantics, unique, max_records_per_partition=50)
        report = txstream.start(
            topology.with_id(f"{unique}-{database}"),
            settings=settings_of(services, url, tmp_path),
            until="caught-up",
            runner_factory=InProcessRunner,
        ).wait(60)
        assert report.batches == 5
        assert read_counts(url, unique) == truth
        tables.append(sorted(read_rows(url, unique), key=lambda row: str(row["word"])))
    assert tables[0] == tables[1]
    assert list(tables[0][0]) == COLUMNS[semantics]


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_on_a_spark_session_of_the_user(
    services: Services,
    spark: SparkSession,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    semantics: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Batches of one and of several Spark tasks; the user is told which settings the session lacks."""
    truth = fill_topic(services.kafka, unique, make_lines(30_000))
    topology = word_count.topology(unique, semantics, unique, max_records_per_partition=5_000)
    with caplog.at_level(logging.WARNING, "txstream"):
        report = txstream.run(
            topology.with_id(unique), spark, settings_of(services, sqlite_url, tmp_path), until="caught-up"
        )
    assert report.caught_up
    assert report.records == 30_000
    assert read_counts(sqlite_url, unique) == truth
    assert f"spark.locality.wait={RECIPE['spark.locality.wait']}" in caplog.text
    assert "spark.scheduler.mode" not in caplog.text, "only what the session lacks"
    assert spark.range(3).count() == 3, "a session of the user's is not stopped"


def test_tuples_cross_spark_tasks_for_a_bolt_that_cannot_be_merged(
    services: Services, spark: SparkSession, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    """A batch bolt of the user's after a fields grouping sees all tuples of a key in one task."""
    truth = fill_topic(services.kafka, unique, make_lines(30_000))
    source = txstream.KafkaSource(unique, max_records_per_partition=3_000)
    builder = txstream.TransactionalTopologyBuilder(unique, "lines", txstream.OpaqueSpout(source), 2)
    builder.set_bolt("split", word_count.SplitLine(), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("seen", distinct_words.DistinctWords(), 2).fields_grouping("split", "word")
    state = txstream.SqlState(unique, key="word string", value="batches bigint")
    builder.set_committer_bolt("store", txstream.SqlStateBolt(state), 2).fields_grouping("seen", "word")
    settings = replace(settings_of(services, sqlite_url, tmp_path), py_files=(distinct_words.__file__,))
    report = txstream.run(builder.build(), spark, settings)
    assert report.batches > 1
    found = {row["word"]: row["batches"] for row in read_rows(sqlite_url, unique)}
    assert found.keys() == truth.keys()
    assert max(found.values()) == report.batches, "a word counts once a batch, not once a task"


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_an_attempt_that_takes_too_long_is_cancelled_and_replayed(
    services: Services, spark: SparkSession, sqlite_url: str, tmp_path: Path, unique: str, semantics: Any
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(400))
    source = txstream.KafkaSource(unique, max_records_per_partition=20)
    builder = txstream.TransactionalTopologyBuilder(
        unique, "lines", word_count.SPOUTS[semantics](source), 2, message_timeout_seconds=3
    )
    builder.set_bolt("split", word_count.SplitLine(), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("seen", distinct_words.StuckOnce(), 2).fields_grouping("split", "word")
    state = txstream.SqlState(unique, key="word string", value="batches bigint")
    builder.set_committer_bolt("store", txstream.SqlStateBolt(state), 2).fields_grouping("seen", "word")
    settings = replace(settings_of(services, sqlite_url, tmp_path), py_files=(distinct_words.__file__,))
    report = txstream.run(builder.build(), spark, settings)
    assert report.caught_up
    assert report.records == 400
    assert report.replayed_attempts >= 1
    assert {row["word"] for row in read_rows(sqlite_url, unique)} == truth.keys()
    jobs = wait_until(lambda: tracker(spark.sparkContext).getActiveJobsIds() == [], 60)
    assert jobs, "the stuck job was not cancelled"


@pytest.mark.parametrize("semantics", list(COLUMNS))
def test_global_count(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str, semantics: Any
) -> None:
    fill_topic(services.kafka, unique, make_lines(1_234))
    topology = global_count.topology(unique, semantics, unique, max_records_per_partition=100)
    txstream.start(
        topology.with_id(unique),
        settings=settings_of(services, sqlite_url, tmp_path),
        until="caught-up",
        runner_factory=InProcessRunner,
    ).wait(60)
    rows = read_rows(sqlite_url, unique)
    assert [row["n"] for row in rows] == [1_234]
    assert list(rows[0])[:2] == ["id", "n"]


@pytest.mark.parametrize(("semantics", "most"), [("transactional", 2), ("opaque", 1)])
@pytest.mark.parametrize("partitions", [1, 64])
def test_round_trips_to_zookeeper_do_not_grow_with_partitions(
    services: Services,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    semantics: Any,
    most: int,
    partitions: int,
) -> None:
    # Where tasks ran is stored after a while, not after each batch.
    monkeypatch.setattr(operator_requests, "ASSIGNMENT_SECONDS", 3600.0)
    fill_topic(services.kafka, unique, make_lines(640), partitions=partitions)
    sessions: list[ZooKeeper] = []
    started = ZooKeeper.start

    def start(self: ZooKeeper) -> None:
        sessions.append(self)
        started(self)

    monkeypatch.setattr(ZooKeeper, "start", start)
    topology = word_count.topology(
        unique, semantics, unique, max_records_per_partition=640 // partitions // 5
    )
    settings = settings_of(services, sqlite_url, tmp_path)
    costs = []
    for last in (1, 4):
        txstream.start(
            topology.with_id(unique), settings=settings, until_txid=last, runner_factory=InProcessRunner
        ).wait(60)
        costs.append(sessions[-1].round_trips)
    # Both runs pay for a start. The second one commits two more batches; its identity exists already.
    assert costs[1] - costs[0] <= 2 * most
    assert costs[1] >= 3 * most
