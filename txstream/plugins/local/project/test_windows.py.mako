"""Runs the topology in this process: no Kafka, no ZooKeeper, no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ${name} import build
from txstream.spouts.memory import MemorySpout
from txstream.testing import ManualClock, TopologyTest

FIELDS = "page string, at timestamp, topic string, partition int, offset bigint"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def click(offset: int, minute: int) -> tuple[Any, ...]:
    return ("/cart", NOON + timedelta(minutes=minute), "clicks", 0, offset)


def later() -> ManualClock:
    """A time after the clock counts as the clock's, so that no window closes too early."""
    return ManualClock((NOON + timedelta(days=1)).timestamp())


def hours(test: TopologyTest) -> list[tuple[int, bool]]:
    return [(row["n"], row["closed"]) for row in test.rows("${table}")]


def test_an_hour_closes_ten_minutes_after_its_end() -> None:
    with MemorySpout(FIELDS) as clicks, TopologyTest(build(clicks), clock=later()) as test:
        clicks.append("clicks/0", click(0, 5), click(1, 59), click(2, 71))
        test.run()
        assert hours(test) == [(2, False), (1, False)]
        clicks.append("clicks/0", click(3, 72))  # its batch knows that 13:11 is committed
        test.run()
        assert hours(test) == [(2, True), (2, False)]
        clicks.append("clicks/0", click(4, 30))  # late, and counted after all
        test.run()
        assert hours(test) == [(3, True), (2, False)]


def test_a_crash_changes_nothing() -> None:
    with MemorySpout(FIELDS) as clicks, TopologyTest(build(clicks), clock=later()) as test:
        clicks.append("clicks/0", click(0, 5), click(1, 59), click(2, 71))
        test.run()
        clicks.append("clicks/0", click(3, 72))
        test.process()
        test.crash()
        test.restart()
        test.run()
        assert hours(test) == [(2, True), (2, False)]
