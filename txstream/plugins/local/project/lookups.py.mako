"""Adds to each order who made it, in the table ${table}: a stream joined with a table of the same topology.

txstream run ${name}:topology --until caught-up
"""

from __future__ import annotations

from typing import Any

from txstream import (
    Decode,
    KafkaSource,
    LookupBolt,
    OpaqueSpout,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
    bolt,
)

PLACE = ("topic", "partition", "offset")
_PLACE = "topic string, partition int, offset bigint"


@bolt(
    output={
        "users": f"user string, name string, gone boolean, {_PLACE}",
        "orders": f"user string, amount decimal(12,2), {_PLACE}",
    }
)
def by_kind(record: Any, collector: Any) -> None:
    """An order has an amount; what has none is about a user."""
    place = tuple(record[name] for name in PLACE)
    if record["amount"] is None:
        collector.emit((record["user"], record["name"], record["gone"], *place), stream="users")
    else:
        collector.emit((record["user"], record["amount"], *place), stream="orders")


def build(source: Any) -> Topology:
    """Return the topology over any source of users and orders with their place, for the test."""
    users = SqlTable(
        "${table}_users", "name string", key="user string", on_conflict="replace", removed_by="gone"
    )
    orders = SqlTable("${table}", "user string, amount decimal(12,2), name string")
    builder = TransactionalTopologyBuilder("${name}", "records", OpaqueSpout(source))
    builder.set_bolt("by_kind", by_kind).local_or_shuffle_grouping("records")
    builder.set_bolt("users", SqlAppendBolt(users)).local_or_shuffle_grouping("by_kind", stream="users")
    named = builder.set_bolt("named", LookupBolt(users, on="user"))
    named.fields_grouping("by_kind", "user", stream="orders")
    builder.set_bolt("orders", SqlAppendBolt(orders)).local_or_shuffle_grouping("named")
    return builder.build()


def topology(users: str = "users", orders: str = "orders") -> Topology:
    """What `txstream run` calls; `-p users=NAME` reads another topic. Users are read to their end first."""
    fields = "user string, name string, gone boolean, amount decimal(12,2)"
    decode = Decode("json", fields)
    return build(KafkaSource([users, orders], decode=decode, kafka_columns=PLACE, table_first=users))
