"""Counts the words of a Kafka topic, each line exactly once: the table ${table} has a row for each word.

txstream run ${name}:topology --until caught-up
"""

from __future__ import annotations

from typing import Any

from txstream import (
    BasicBolt,
    Count,
    KafkaSource,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)


class SplitLine(BasicBolt):
    """Emits the words of a line, in lower case. A record without a value has none."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in (tup["value"] or "").lower().split():
            collector.emit((word,))


def build(source: Any) -> Topology:
    """Return the topology over any source of lines, so that the test needs no Kafka."""
    builder = TransactionalTopologyBuilder("${name}", "lines", OpaqueSpout(source))
    builder.set_bolt("split", SplitLine()).local_or_shuffle_grouping("lines")
    state = SqlState("${table}", key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("split", "word")
    return builder.build()


def topology(topic: str = "lines") -> Topology:
    """What `txstream run` calls; `-p topic=NAME` reads another topic."""
    return build(KafkaSource(topic))
