"""Orders in a Delta table: each is a row there once its batch is committed, beside its row in SQL.

txstream run txstream.examples.orders_in_lake:topology -p lake=/tmp/orders --until caught-up

The topic's values are JSON: {"customer": "ann", "day": "2026-11-28", "amount": "1400.50"}. Each order becomes
a row of the SQL table `orders`, and one of the Delta table in the folder (or at the URL) `lake`, which has a
partition for each day.
"""

from __future__ import annotations

from typing import Any, Literal

from txstream import (
    Decode,
    DeltaTableBolt,
    KafkaSource,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "customer string, day date, amount decimal(12,2)"
PLACE = ("topic", "partition", "offset")


def graph(
    spout: SourceSpout[Any], lake: str, *, table: str = "orders", driver_commit_rows: int | None = None
) -> Topology:
    """Return the topology over any source of orders that gives the place of each."""
    builder = TransactionalTopologyBuilder(
        "orders-in-lake", "orders", spout, driver_commit_rows=driver_commit_rows
    )
    rows = SqlAppendBolt(SqlTable(table, FIELDS))
    builder.set_bolt("store", rows, parallelism=2).local_or_shuffle_grouping("orders")
    files = DeltaTableBolt(lake, partition_by="day", table=f"{table}_files")
    builder.set_bolt("lake", files, parallelism=2).local_or_shuffle_grouping("orders")
    return builder.build()


def topology(
    lake: str,
    topic: str = "orders",
    semantics: Literal["opaque", "transactional"] = "opaque",
    table: str = "orders",
    max_records_per_partition: int = 10_000,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        kafka_columns=PLACE,
        max_records_per_partition=max_records_per_partition,
    )
    return graph(SPOUTS[semantics](source), lake, table=table, driver_commit_rows=driver_commit_rows)
