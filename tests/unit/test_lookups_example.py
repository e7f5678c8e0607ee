"""The example of orders with the names of who made them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from support.lists import each

from txstream.examples.lookups import FIELDS, graph, topology
from txstream.examples.word_count import SPOUTS
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

USERS = [
    ("u1", "Ann", "Oslo", None, None, "users", 0, 0),
    ("u2", "Bob", "Rome", None, None, "users", 0, 1),
    ("u1", "Ann", "Bonn", None, None, "users", 0, 2),
    ("u2", None, None, True, None, "users", 0, 3),
]
ORDERS = [
    (user, None, None, None, Decimal(f"{offset}.50"), "orders", 0, offset)
    for offset, user in enumerate(["u1", "u2", "u3", None])
]


@each("semantics", ["opaque", "transactional"])
def test_what_is_in_the_tables(semantics: Any) -> None:
    columns = f"{FIELDS}, topic string, partition int, offset bigint"
    with (
        MemorySpout(columns, {"users/0": USERS[:2]}) as source,
        TopologyTest(graph(SPOUTS[semantics](source))) as test,
    ):
        test.run()
        source.append("orders/0", *ORDERS[:2])
        test.run()
        source.append("users/0", *USERS[2:])
        source.append("orders/0", *ORDERS[2:])
        test.run()
        assert test.table("users") == {"u1": ("Ann", "Bonn")}
        assert test.table("orders") == {
            ("orders", 0, 0): ("u1", Decimal("0.50"), "Ann", "Oslo"),
            ("orders", 0, 1): ("u2", Decimal("1.50"), "Bob", "Rome"),
            ("orders", 0, 2): ("u3", Decimal("2.50"), None, None),
            ("orders", 0, 3): (None, Decimal("3.50"), None, None),
        }


@each("semantics", ["opaque", "transactional"])
def test_it_is_built_for_two_topics(semantics: Any) -> None:
    built = topology("people", "sales", semantics)
    assert built.spout.source.identity() == {"topics": ["people", "sales"]}
    assert "fields(user)" in built.describe()
    assert built.max_spout_pending == 1
