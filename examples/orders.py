"""Rows as they are: each order of a topic is one row of the table `orders`, exactly once.

txstream run txstream.examples.orders:topology --until caught-up

The topic's values are JSON: {"customer": "ann", "amount": "4.50", "at": "2026-01-31T12:00:00Z"}. A row's key
is the place of its record: topic, partition and offset. With `-p latest=true` the table has one row for each
customer instead, the latest order.
"""

from __future__ import annotations

from typing import Any, Literal

from txstream import Decode, KafkaSource, SqlAppendBolt, SqlTable, Topology, TransactionalTopologyBuilder
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "customer string, amount decimal(12,2), at timestamp"
PLACE = ("topic", "partition", "offset")


def graph(
    spout: SourceSpout[Any],
    table: str = "orders",
    *,
    latest: bool = False,
    driver_commit_rows: int | None = None,
) -> Topology:
    """Return the topology over any source of orders that gives the place of each."""
    rows = SqlTable(table, FIELDS)
    if latest:
        value = "amount decimal(12,2), at timestamp"
        rows = SqlTable(table, value, key="customer string", on_conflict="replace")
    builder = TransactionalTopologyBuilder("orders", "orders", spout, driver_commit_rows=driver_commit_rows)
    builder.set_bolt("store", SqlAppendBolt(rows), parallelism=2).local_or_shuffle_grouping("orders")
    return builder.build()


def topology(
    topic: str = "orders",
    semantics: Literal["opaque", "transactional", "non-transactional"] = "opaque",
    table: str = "orders",
    latest: bool = False,
    max_records_per_partition: int = 10_000,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        kafka_columns=PLACE,
        max_records_per_partition=max_records_per_partition,
    )
    spout = SPOUTS[semantics](source)
    return graph(spout, table, latest=latest, driver_commit_rows=driver_commit_rows)
