"""Keeps the table ${table} equal to a table of another database, through the change topic that Debezium writes.

txstream run ${name}:topology --until caught-up
"""

from __future__ import annotations

from typing import Any

from txstream import (
    Decode,
    KafkaSource,
    OpaqueSpout,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
)

COLUMNS = "id bigint, name string, unscaled(price) as price decimal(10,2)"
"""Of the source's table, those that are mirrored. Without `unscaled()` if the events have a schema."""


def build(source: Any) -> Topology:
    """Return the topology over any source of rows with `op` and `sequence`, for the test."""
    rows = SqlTable(
        "${table}",
        "name string, price decimal(10,2), sequence bigint",
        key="id bigint",
        on_conflict="replace",
        removed_by="op = 'd'",
        sequence_by="sequence",
    )
    builder = TransactionalTopologyBuilder("${name}", "changes", OpaqueSpout(source))
    builder.set_bolt("store", SqlAppendBolt(rows)).local_or_shuffle_grouping("changes")
    return builder.build()


def topology(topic: str = "shop.public.goods") -> Topology:
    """What `txstream run` calls; `-p topic=NAME` reads another topic."""
    place = ("topic", "partition", "offset")
    return build(KafkaSource(topic, decode=Decode("debezium", COLUMNS), kafka_columns=place))
