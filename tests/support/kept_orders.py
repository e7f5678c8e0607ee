"""A topology that keeps the orders of a topic, and how many there were each day, for some time only."""

from __future__ import annotations

from typing import Literal

from txstream import (
    Count,
    DeadLetters,
    Decode,
    KafkaSource,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}


def topology(
    topic: str,
    keep: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    max_records_per_partition: int = 20,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", "customer string, at timestamp, day date"),
        kafka_columns=("topic", "partition", "offset"),
        max_records_per_partition=max_records_per_partition,
    )
    builder = TransactionalTopologyBuilder(
        "kept",
        "orders",
        SPOUTS[semantics](source),
        dead_letters=DeadLetters(max_per_batch=1),
        driver_commit_rows=driver_commit_rows,
    )
    rows = SqlTable(topic, "customer string, at timestamp", keep=keep, index_txid=True)
    builder.set_bolt("store", SqlAppendBolt(rows), 2).local_or_shuffle_grouping("orders")
    days = SqlState(f"{topic}_days", "customer string, day date", "n bigint", keep=keep)
    builder.set_bolt("count", SqlStateBolt(days, n=Count()), 2).fields_grouping("orders", "customer")
    return builder.build()
