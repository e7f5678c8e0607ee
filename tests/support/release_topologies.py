"""The topologies whose database and znodes tests/releases/ keeps, as each release left them.

Later releases must go on from what earlier ones stored, so nothing here may change but by adding a topology.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from txstream.api.bolts import BasicBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Last, Max, Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.dead_letters import DeadLetters
from txstream.plugins.files import FileRange
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.memory import MemorySpout
from txstream.spouts.rate import RateRange

SCHEMA = "customer string, day date, amount decimal(10,2), note string"
POISON = "spoilt"
Order = tuple[str, date, Decimal, str]


def _order(customer: str, day: int, amount: str, note: str) -> Order:
    return customer, date(2026, 11, day), Decimal(amount), note


# Two positions of each partition make a batch, so these make four batches.
ORDERS: Mapping[str, list[Order]] = {
    "p0": [
        _order("anna", 1, "3.50", "first"),
        _order("ben", 1, "12.00", "d'été"),
        _order("anna", 2, "4.25", ""),
        _order("ben", 2, "0.01", POISON),
        _order("cleo", 2, "7.00", "x"),
        _order("anna", 1, "1.00", "late"),
        _order("ben", 3, "2.00", "y"),
        _order("anna", 2, "5.00", "last"),
    ],
    "p1": [_order("dora", n, f"{n}.25", f"note {n}") for n in range(1, 9)],
}
SEMANTICS = ("opaque", "transactional")


class Check(BasicBolt):
    output = SCHEMA

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["note"] == POISON:
            raise ValueError("this order is spoilt")
        collector.emit((tup["customer"], tup["day"], tup["amount"], tup["note"]))


def orders(semantics: str, source: MemorySpout) -> Topology:
    """Return a topology with one state of several types, and dead letters."""
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics]
    builder = TransactionalTopologyBuilder(
        f"{semantics}-orders", "orders", spout(source, max_batch_records=4), 2, dead_letters=DeadLetters()
    )
    builder.set_bolt("check", Check(), parallelism=2).local_or_shuffle_grouping("orders")
    spent = SqlState(
        f"{semantics}_spent",
        key="customer string, day date",
        value="n bigint, total decimal(12,2), largest decimal(10,2), note string",
    )
    note = Last("note", by="day")
    store = SqlStateBolt(spent, n=Count(), total=Sum("amount"), largest=Max("amount"), note=note)
    builder.set_committer_bolt("store", store, 2).fields_grouping("check", "customer", "day")
    return builder.build()


def spent() -> dict[tuple[str, date], list[Any]]:
    """Return orders, total and largest amount by customer and day, added up from the orders themselves."""
    found: dict[tuple[str, date], list[Any]] = {}
    for customer, day, amount, note in [order for rows in ORDERS.values() for order in rows]:
        if note != POISON:
            n, total, largest = found.get((customer, day), (0, Decimal(0), amount))
            found[customer, day] = [n + 1, total + amount, max(largest, amount)]
    return found


METAS: Mapping[str, Any] = {
    "kafka": KafkaRange(3, 9, topic_id="a6XbfVBdQ3q9xmPjRcUt3A", skipped_from=1, leader_epoch=4),
    "kafka_first_place": KafkaRange(7, 7, topic_id="a6XbfVBdQ3q9xmPjRcUt3A", first_place="known"),
    "file": FileRange(10, 90, 4, seen=120, mark="f00d", crc32=77),
    "rate": RateRange(5, 8, started_us=1_767_000_000_000_000),
}
"""A range of each source, with every field that 0.1 has."""
