"""Exactly-once word count: lines from Kafka, words into a table.

txstream run txstream.examples.word_count:topology -p topic=lines --until caught-up
"""

from __future__ import annotations

from typing import Literal

from txstream import (
    BasicBolt,
    CountBolt,
    KafkaSource,
    NonTransactionalSpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)

SPOUTS = {
    "opaque": OpaqueSpout,
    "transactional": TransactionalSpout,
    "non-transactional": NonTransactionalSpout,
}


class SplitLine(BasicBolt):
    """Splits a line at whitespace and emits its words unchanged. A null value has no words."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        line = tup["value"]
        if line is not None:
            for word in line.split():
                collector.emit((word,))


def topology(
    topic: str = "lines",
    semantics: Literal["opaque", "transactional", "non-transactional"] = "opaque",
    table: str = "word_count",
    max_records_per_partition: int = 1000,
    max_spout_pending: int = 2,
    parallelism: int = 2,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(topic, max_records_per_partition=max_records_per_partition)
    builder = TransactionalTopologyBuilder(
        "word-count",
        "lines",
        SPOUTS[semantics](source),
        parallelism,
        max_spout_pending=max_spout_pending,
        driver_commit_rows=driver_commit_rows,
    )
    builder.set_bolt("split", SplitLine(), parallelism).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), parallelism).fields_grouping("split", "word")
    state = SqlState(table, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), parallelism).fields_grouping(
        "count", "word"
    )
    return builder.build()
