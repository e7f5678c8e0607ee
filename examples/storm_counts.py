"""Storm's transactional test topology: counts the same records in both phases of a transaction.

txstream run txstream.examples.storm_counts:topology -p topic=amounts --until caught-up

The topic's values are JSON: {"word": "oak", "amount": 5}. `id1`, `id2`, `global` and `sum` run in the
processing phase, where several batches are in work at once. `gcommit`, `count` and `count2` run in the commit
phase, one txid after the other: `gcommit` counts as `global` does, and `count2` is a committer below a
committer. What `count2` emits goes nowhere; the other results are kept in three tables.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from txstream import (
    BasicBolt,
    BatchBolt,
    Committer,
    Decode,
    KafkaSource,
    OutputCollector,
    OutputFieldsDeclarer,
    SqlState,
    SqlStateBolt,
    Topology,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "word string, amount bigint"


class Identity(BasicBolt):
    """Emits its input unchanged."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(tup.values)


class CountAll(BatchBolt):
    """Counts the batch's tuples: one row per task, even if the task got nothing."""

    output = "counter string, n bigint"

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.n = 0

    def execute(self, tup: Tuple) -> None:
        self.n += 1

    def finish_batch(self) -> None:
        self.collector.emit((self.context.component, self.n))


class CountAllInCommit(CountAll, Committer):
    """The same, in the commit phase."""


class SumByWord(BatchBolt):
    """Sums the batch's amounts by word."""

    output = FIELDS

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.sums: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.sums[tup["word"]] += tup["amount"]

    def finish_batch(self) -> None:
        for word, amount in self.sums.items():
            self.collector.emit((word, amount))


class CountByWord(BatchBolt):
    """Counts the batch's tuples by word, whichever inputs they come from."""

    output = "word string, n bigint"

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.counts: Counter[str] = Counter()

    def execute(self, tup: Tuple) -> None:
        self.counts[tup["word"]] += 1

    def finish_batch(self) -> None:
        for word, n in self.counts.items():
            self.collector.emit((word, n))


class CountByWordInCommit(CountByWord, Committer):
    """The same, in the commit phase."""


def graph(spout: SourceSpout[Any], *, prefix: str = "storm", max_spout_pending: int = 2) -> Topology:
    """Return the topology over any source of words and amounts. Its tables' names begin with `prefix`."""
    builder = TransactionalTopologyBuilder(
        "storm-counts", "spout", spout, parallelism=2, max_spout_pending=max_spout_pending
    )
    builder.set_bolt("id1", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("id2", Identity(), 3).shuffle_grouping("spout")
    builder.set_bolt("global", CountAll(), 1).global_grouping("spout")
    builder.set_bolt("gcommit", CountAllInCommit(), 1).global_grouping("spout")
    builder.set_bolt("sum", SumByWord(), 2).fields_grouping("id1", "word")
    builder.set_committer_bolt("count", CountByWord(), 2).fields_grouping("id2", "word")
    count2 = builder.set_bolt("count2", CountByWordInCommit(), 3)
    count2.fields_grouping("sum", "word").fields_grouping("count", "word")

    totals = SqlState(f"{prefix}_totals", key="counter string", value="n bigint")
    store = builder.set_bolt("store_totals", SqlStateBolt(totals))
    store.fields_grouping("global", "counter").fields_grouping("gcommit", "counter")
    sums = SqlState(f"{prefix}_sums", key="word string", value="amount bigint")
    builder.set_bolt("store_sums", SqlStateBolt(sums)).fields_grouping("sum", "word")
    counts = SqlState(f"{prefix}_counts", key="word string", value="n bigint")
    builder.set_bolt("store_counts", SqlStateBolt(counts)).fields_grouping("count", "word")
    return builder.build()


def topology(
    topic: str = "amounts",
    semantics: Literal["opaque", "transactional"] = "opaque",
    prefix: str = "storm",
    max_records_per_partition: int = 1000,
    max_spout_pending: int = 2,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        max_records_per_partition=max_records_per_partition,
    )
    return graph(SPOUTS[semantics](source), prefix=prefix, max_spout_pending=max_spout_pending)
