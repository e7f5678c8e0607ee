"""Orders with the names of who made them: a stream joined with a table of the same topology.

txstream run txstream.examples.lookups:topology --until caught-up

The values of both topics are JSON. Users are {"user": "u1", "name": "Ann", "city": "Oslo"}, the last one of a
user counts, and {"user": "u1", "gone": true} removes one. Orders are {"user": "u1", "amount": "4.50"}. Each
order becomes a row with name and city, as the users were before its batch and after what its own batch has of
them; null if there is no such user. The users are read to their end before the first order. With
`-p versions=true`, `txstream replay` and `why` read the users as they were, too.
"""

from __future__ import annotations

from typing import Any, Literal

from txstream import (
    Decode,
    KafkaSource,
    LookupBolt,
    Semantics,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
    Versions,
    bolt,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "user string, name string, city string, gone boolean, amount decimal(12,2)"
PLACE = ("topic", "partition", "offset")
STREAMS = {
    name: f"{fields}, topic string, partition int, offset bigint"
    for name, fields in {
        "users": "user string, name string, city string, gone boolean",
        "orders": "user string, amount decimal(12,2)",
    }.items()
}


def graph(
    spout: SourceSpout[Any],
    users: str = "users",
    orders: str = "orders",
    *,
    versions: bool = False,
    driver_commit_rows: int | None = None,
) -> Topology:
    """Return the topology over any source of both topics. Its tables have the names of the topics."""

    @bolt(output=STREAMS)
    def by_topic(record: Any, collector: Any) -> None:
        place = tuple(record[name] for name in PLACE)
        if record["topic"] == users:
            fields = ("user", "name", "city", "gone")
            collector.emit((*(record[name] for name in fields), *place), stream="users")
        else:
            collector.emit((record["user"], record["amount"], *place), stream="orders")

    builder = TransactionalTopologyBuilder("lookups", "records", spout, driver_commit_rows=driver_commit_rows)
    builder.set_bolt("by_topic", by_topic).local_or_shuffle_grouping("records")
    table = SqlTable(
        users,
        "name string, city string",
        key="user string",
        on_conflict="replace",
        removed_by="gone",
        semantics=Semantics.OPAQUE if versions else None,
        changes_to=Versions() if versions else None,
    )
    builder.set_bolt("users", SqlAppendBolt(table)).local_or_shuffle_grouping("by_topic", stream="users")
    named = builder.set_bolt("named", LookupBolt(table, on="user"), parallelism=2)
    named.fields_grouping("by_topic", "user", stream="orders")
    rows = SqlTable(orders, "user string, amount decimal(12,2), name string, city string")
    builder.set_bolt("orders", SqlAppendBolt(rows), parallelism=2).local_or_shuffle_grouping("named")
    return builder.build()


def topology(
    users: str = "users",
    orders: str = "orders",
    semantics: Literal["opaque", "transactional"] = "opaque",
    max_records_per_partition: int = 10_000,
    versions: bool = False,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(
        [users, orders],
        decode=Decode("json", FIELDS),
        kafka_columns=PLACE,
        table_first=users,
        max_records_per_partition=max_records_per_partition,
    )
    spout = SPOUTS[semantics](source)
    return graph(spout, users, orders, versions=versions, driver_commit_rows=driver_commit_rows)
