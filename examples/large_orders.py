"""Large orders in a topic of their own: each is sent once its batch is committed, at least once and in order.

txstream run txstream.examples.large_orders:topology --until caught-up

The topic's values are JSON: {"customer": "ann", "amount": "1400.50"}. Each order becomes a row of the table
`orders`, and those above the limit become records of the topic `large-orders`, whose key is the customer.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from txstream import (
    BasicBolt,
    Decode,
    KafkaSinkBolt,
    KafkaSource,
    OutputCollector,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "customer string, amount decimal(12,2)"
PLACE = ("topic", "partition", "offset")


class Above(BasicBolt):
    """Passes on orders above a limit."""

    output = f"{FIELDS}, topic string, partition int, offset bigint"

    def __init__(self, limit: Decimal) -> None:
        self._limit = limit

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["amount"] is not None and tup["amount"] > self._limit:
            collector.emit((tup["customer"], tup["amount"], *(tup[name] for name in PLACE)))


def graph(
    spout: SourceSpout[Any],
    to: str = "large-orders",
    *,
    table: str = "orders",
    limit: Decimal = Decimal(1000),
    driver_commit_rows: int | None = None,
    exactly_once: bool = False,
) -> Topology:
    """Return the topology over any source of orders that gives the place of each."""
    builder = TransactionalTopologyBuilder(
        "large-orders", "orders", spout, driver_commit_rows=driver_commit_rows
    )
    rows = SqlAppendBolt(SqlTable(table, FIELDS))
    builder.set_bolt("store", rows, parallelism=2).local_or_shuffle_grouping("orders")
    builder.set_bolt("above", Above(limit), parallelism=2).local_or_shuffle_grouping("orders")
    value = ["customer", "amount", *PLACE]
    sink = KafkaSinkBolt(to, key="customer", value=value, exactly_once=exactly_once)
    builder.set_bolt("send", sink, parallelism=2).fields_grouping("above", "customer")
    return builder.build()


def topology(
    topic: str = "orders",
    to: str = "large-orders",
    semantics: Literal["opaque", "transactional"] = "opaque",
    table: str = "orders",
    limit: int = 1000,
    max_records_per_partition: int = 10_000,
    driver_commit_rows: int | None = None,
    exactly_once: bool = False,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        kafka_columns=PLACE,
        max_records_per_partition=max_records_per_partition,
    )
    spout = SPOUTS[semantics](source)
    return graph(
        spout,
        to,
        table=table,
        limit=Decimal(limit),
        driver_commit_rows=driver_commit_rows,
        exactly_once=exactly_once,
    )
