"""Case 2: record timestamps in microseconds and nanoseconds, and -1 for none, on a real broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kafka_topics import Topics

import txstream
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner

MICROSECONDS, NANOSECONDS = 1_764_300_000_000_000, 1_764_300_000_000_000_000
GOOD = 1_764_300_000_000
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def topic(topics: Topics, unique: str) -> str:
    """99 good records, of which one has no timestamp, and two that are no date."""
    topics.create(unique, configs=ANY_TIME)
    for timestamp in [*[GOOD] * 49, MICROSECONDS, *[GOOD] * 49, NANOSECONDS, -1]:
        topics.send(unique, [b"x"], timestamp_ms=timestamp)
    return unique


def run(topic: str, services: Services, folder: Path, columns: list[str]) -> sqlite3.Connection:
    """Keep a topic's records with these columns, up to its end; return the database."""
    place = ("topic", "partition", "offset")
    source = txstream.KafkaSource(topic, kafka_columns=(*place, *columns))
    builder = txstream.TransactionalTopologyBuilder(
        topic, "lines", txstream.OpaqueSpout(source), dead_letters=txstream.DeadLetters()
    )
    types = {"value": "value string", "timestamp": "timestamp timestamp"}
    table = txstream.SqlTable("record", ", ".join(types[name] for name in columns))
    builder.set_committer_bolt("store", txstream.SqlAppendBolt(table)).shuffle_grouping("lines")
    settings = txstream.Settings(
        zookeeper=services.zookeeper,
        kafka=services.kafka,
        database=f"sqlite:///{folder}/state.db",
        data_dir=folder,
    )
    report = txstream.start(
        builder.build(), settings=settings, until="caught-up", runner_factory=InProcessRunner
    ).wait()
    assert report.caught_up
    return sqlite3.connect(folder / "state.db")


def test_what_is_no_date_is_one_dead_letter_each_and_none_is_null(
    topic: str, services: Services, tmp_path: Path
) -> None:
    database = run(topic, services, tmp_path, ["timestamp"])
    good = "SELECT COUNT(*), COUNT(timestamp), MIN(timestamp), MAX(timestamp) FROM record"
    rows, dated, first, last = database.execute(good).fetchone()
    assert (rows, dated) == (99, 98)
    assert first == last
    assert "2025-11-28" in first
    letters = database.execute("SELECT place, exception, message FROM txstream_dead_letter ORDER BY place")
    for (place, exception, message), (offset, number) in zip(
        letters.fetchall(), [(49, MICROSECONDS), (99, NANOSECONDS)], strict=True
    ):
        assert (place, exception) == (f"{topic}/0@{offset}", "DecodeError")
        assert all(part in message for part in (f"offset {offset} ", topic, "partition 0", str(number)))
    database.close()


def test_who_does_not_ask_for_timestamps_gets_all_records(
    topic: str, services: Services, tmp_path: Path
) -> None:
    database = run(topic, services, tmp_path, ["value"])
    assert database.execute("SELECT COUNT(*) FROM record").fetchone() == (101,)
    assert database.execute("SELECT COUNT(*) FROM txstream_dead_letter").fetchone() == (0,)
    database.close()
