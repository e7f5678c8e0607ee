"""Runs the topology in this process: no Kafka, no ZooKeeper, no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ${name} import build
from txstream.spouts.memory import MemorySpout
from txstream.testing import ManualClock, TopologyTest

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
FIELDS = "page string, at timestamp, partition string"


def clicks(*minutes: int) -> list[tuple[Any, ...]]:
    """Return clicks so many minutes after noon."""
    return [("/cart", NOON + timedelta(minutes=minute), "p0") for minute in minutes]


def test_an_hour_closes_and_what_comes_late_does_not_count() -> None:
    clock = ManualClock((NOON + timedelta(days=1)).timestamp())
    source = MemorySpout(FIELDS, {"p0": clicks(5, 59, 75)})
    with source, TopologyTest(build(source), clock=clock) as test:
        test.run()
        for minute in (76, 30):
            source.append("p0", *clicks(minute))
            test.run()
        assert [(row["n"], row["closed"]) for row in test.rows("${table}")] == [(2, True), (2, False)]


def test_a_crash_counts_nothing_twice() -> None:
    clock = ManualClock((NOON + timedelta(days=1)).timestamp())
    source = MemorySpout(FIELDS, {"p0": clicks(5, 59, 75)})
    with source, TopologyTest(build(source), clock=clock) as test:
        test.run()
        source.append("p0", *clicks(76))
        test.process()
        test.crash()
        test.restart()
        test.run()
        assert [(row["n"], row["closed"]) for row in test.rows("${table}")] == [(2, True), (2, False)]
