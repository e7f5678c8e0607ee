"""Counts clicks by page and hour, each exactly once; an hour closes once no click of it is to come any more.

txstream run ${name}:topology --until caught-up
"""

from __future__ import annotations

from typing import Any

from txstream import (
    Count,
    DeadLetters,
    Decode,
    KafkaSource,
    OpaqueSpout,
    Topology,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
)

HOURS = WindowState(
    "${table}",
    key="page string",
    value="n bigint",
    window=Tumbling("1h", time="at", grace="10m"),
    late="dead-letter",
)


def build(source: Any) -> Topology:
    """Return the topology over any source of clicks with the partition of each, for the test."""
    spout, letters = OpaqueSpout(source), DeadLetters()
    builder = TransactionalTopologyBuilder("${name}", "clicks", spout, dead_letters=letters)
    builder.set_bolt("count", WindowBolt(HOURS, n=Count())).fields_grouping("clicks", "page")
    return builder.build()


def topology(topic: str = "clicks") -> Topology:
    """What `txstream run` calls; `-p topic=NAME` reads another topic."""
    place = ("topic", "partition", "offset")
    return build(KafkaSource(topic, decode=Decode("json", "page string, at timestamp"), kafka_columns=place))
