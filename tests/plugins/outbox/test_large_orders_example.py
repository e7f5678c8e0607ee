"""The example of large orders: every order is a row, and the large ones wait for their topic."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from txstream import KafkaSinkBolt
from txstream.api.spouts import OpaqueSpout
from txstream.examples.large_orders import FIELDS, graph, topology
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

ORDERS = [
    ("ann", Decimal("1000.00"), "orders", 0, 0),
    ("bob", Decimal("1000.01"), "orders", 0, 1),
    ("ann", None, "orders", 0, 2),
    ("cem", Decimal("7000.00"), "orders", 0, 3),
]


def test_what_waits_for_the_topic() -> None:
    columns = f"{FIELDS}, topic string, partition int, offset bigint"
    with (
        MemorySpout(columns, {"p0": ORDERS}, max_records_per_partition=2) as source,
        TopologyTest(graph(OpaqueSpout(source))) as test,
    ):
        test.run()
        assert len(test.table("orders")) == 4
        waiting = [(row["key"], json.loads(row["value"])) for row in test.rows("large-orders_outbox")]
    assert sorted(waiting, key=lambda one: one[1]["offset"]) == [
        (b"bob", {"customer": "bob", "amount": "1000.01", "topic": "orders", "partition": 0, "offset": 1}),
        (b"cem", {"customer": "cem", "amount": "7000.00", "topic": "orders", "partition": 0, "offset": 3}),
    ]


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_it_is_built_for_a_topic(semantics: Any) -> None:
    sink = topology("orders", semantics=semantics).components[-1].instance
    assert isinstance(sink, KafkaSinkBolt)
    assert sink.writes_to == ("large-orders",)
