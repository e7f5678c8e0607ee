"""Counts the clicks on each page by the hour in the table ${table}, and says which hours are complete.

txstream run ${name}:topology --until caught-up
"""

from __future__ import annotations

from typing import Any

from txstream import (
    Count,
    Decode,
    KafkaSource,
    OpaqueSpout,
    Topology,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
)


def build(source: Any) -> Topology:
    """Return the topology over any source of rows with `page`, `at` and their partition, for the test."""
    hours = WindowState(
        "${table}",
        key="page string",
        value="n bigint",
        window=Tumbling("1h", time="at", grace="10m"),
        late="amend",  # a late click counts in its closed hour; "dead-letter" keeps it aside instead
    )
    builder = TransactionalTopologyBuilder("${name}", "clicks", OpaqueSpout(source))
    builder.set_bolt("count", WindowBolt(hours, n=Count())).fields_grouping("clicks", "page")
    return builder.build()


def topology(topic: str = "clicks") -> Topology:
    """What `txstream run` calls; `-p topic=NAME` reads another topic."""
    place = ("topic", "partition", "offset")  # how far time has come is known by partition
    return build(KafkaSource(topic, decode=Decode("json", "page string, at timestamp"), kafka_columns=place))
