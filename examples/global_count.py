"""Exactly-once count of all records of a topic: each task counts its own records, the table adds them up.

txstream run txstream.examples.global_count:topology -p topic=lines --until caught-up
"""

from __future__ import annotations

from typing import Literal

from txstream import (
    BatchBolt,
    KafkaSource,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txstream.examples.word_count import SPOUTS


class CountRecords(BatchBolt):
    """Emits one row per task and batch, even if the task got nothing."""

    output = "id string, n bigint"

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        self.collector = collector
        self.n = 0

    def execute(self, tup: Tuple) -> None:
        self.n += 1

    def finish_batch(self) -> None:
        self.collector.emit(("all", self.n))


def topology(
    topic: str = "lines",
    semantics: Literal["opaque", "transactional", "non-transactional"] = "opaque",
    table: str = "global_count",
    max_records_per_partition: int = 1000,
    max_spout_pending: int = 2,
    parallelism: int = 2,
) -> Topology:
    source = KafkaSource(topic, max_records_per_partition=max_records_per_partition)
    builder = TransactionalTopologyBuilder(
        "global-count", "lines", SPOUTS[semantics](source), parallelism, max_spout_pending=max_spout_pending
    )
    builder.set_bolt("count", CountRecords(), parallelism).local_or_shuffle_grouping("lines")
    state = SqlState(table, key="id string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n"))).global_grouping("count")
    return builder.build()
