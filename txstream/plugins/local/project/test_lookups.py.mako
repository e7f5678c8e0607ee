"""Runs the topology in this process: no Kafka, no ZooKeeper, no Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from ${name} import build
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

FIELDS = (
    "user string, name string, gone boolean, amount decimal(12,2), topic string, partition int, offset bigint"
)


def user(offset: int, name: str, *, gone: bool = False) -> tuple[Any, ...]:
    return ("u1", name, gone, None, "users", 0, offset)


def order(offset: int) -> tuple[Any, ...]:
    return ("u1", None, None, Decimal("4.50"), "orders", 0, offset)


def names(test: TopologyTest) -> list[str | None]:
    return [row["name"] for row in sorted(test.rows("${table}"), key=lambda row: row["offset"])]


def test_an_order_has_the_name_that_its_user_had_then() -> None:
    with MemorySpout(FIELDS) as records, TopologyTest(build(records)) as test:
        goes = user(1, "Ann", gone=True)
        for batch in ([order(0)], [order(1), user(0, "Ann")], [order(2)], [goes, order(3)]):
            records.append("all/0", *batch)
            test.run()
        assert names(test) == [None, "Ann", "Ann", None]


def test_a_crash_changes_nothing() -> None:
    with MemorySpout(FIELDS) as records, TopologyTest(build(records)) as test:
        records.append("all/0", user(0, "Ann"), order(0))
        test.process()
        test.crash()
        test.restart()
        test.run()
        assert names(test) == ["Ann"]
