"""Runs the topology in this process: no Kafka, no ZooKeeper, no Spark."""

from __future__ import annotations

from decimal import Decimal

from ${name} import build
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

FIELDS = (
    "id bigint, name string, price decimal(10,2), op string, sequence bigint, "
    "topic string, partition int, offset bigint"
)
CHANGES = [
    (1, "tea", Decimal("4.50"), "r", 100, "goods", 0, 0),
    (2, "milk", Decimal("1.20"), "c", 101, "goods", 0, 1),
    (1, "tea", Decimal("4.75"), "u", 102, "goods", 0, 2),
    (2, "milk", Decimal("1.20"), "d", 103, "goods", 0, 3),
]


def test_what_is_there_is_there_and_what_went_is_gone() -> None:
    with MemorySpout(FIELDS, {"p0": CHANGES}) as changes, TopologyTest(build(changes)) as test:
        test.run()
        assert test.table("${table}") == {1: ("tea", Decimal("4.75"), 102)}


def test_a_crash_brings_nothing_back() -> None:
    with MemorySpout(FIELDS, {"p0": CHANGES}) as changes, TopologyTest(build(changes)) as test:
        test.process()
        test.crash()
        test.restart()
        test.run()
        changes.append("p0", (2, "milk", Decimal("1.20"), "c", 101, "goods", 0, 4))  # sent once more
        test.run()
        assert test.table("${table}") == {1: ("tea", Decimal("4.75"), 102)}
