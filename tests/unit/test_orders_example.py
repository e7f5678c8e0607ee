"""The example of orders: every order is a row, or the latest of each customer."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from support.lists import each

from txstream.api.spouts import OpaqueSpout
from txstream.examples.orders import FIELDS, graph, topology
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDERS = [
    ("ann", Decimal("4.50"), NOON, "orders", 0, 0),
    ("bob", Decimal("1.00"), NOON, "orders", 0, 1),
    ("ann", None, NOON, "orders", 0, 2),
]


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        (False, {("orders", 0, order[5]): order[:3] for order in ORDERS}),
        (True, {"ann": (None, NOON), "bob": (Decimal("1.00"), NOON)}),
    ],
)
def test_what_is_in_the_table(latest: bool, expected: dict[Any, Any]) -> None:
    columns = f"{FIELDS}, topic string, partition int, offset bigint"
    with (
        MemorySpout(columns, {"p0": ORDERS}, max_records_per_partition=2) as source,
        TopologyTest(graph(OpaqueSpout(source), latest=latest)) as test,
    ):
        test.run()
        assert test.table("orders") == expected


@each("semantics", ["opaque", "transactional", "non-transactional"])
def test_it_is_built_for_a_topic(semantics: Any) -> None:
    built = topology("orders", semantics)
    assert "topic string" in built.describe()
    assert "on conflict fail" in built.describe()
