"""Topologies over rows in memory or in files, for tests of the testing kit."""

from __future__ import annotations

from typing import Any

from support.bolts import CountByHand, Split, words_state
from support.row_files import RowFiles
from txstream.api.bolts import BatchBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout, SourceSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.spouts.memory import MemorySpout


class Total(BatchBolt):
    """Emits how many tuples the batch has."""

    output = "n bigint"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.n = 0

    def execute(self, tup: Tuple) -> None:
        self.n += 1

    def finish_batch(self) -> None:
        self.collector.emit((self.n,))


def word_topology(
    source: MemorySpout | RowFiles,
    *,
    spout: type[SourceSpout[Any]] = OpaqueSpout,
    max_batch_records: int = 2,
    parallelism: int = 1,
    count_tasks: int | None = None,
    topology_id: str = "words",
    **options: Any,
) -> Topology:
    """lines -> split -> count -> the table `words`; a committer `total` counts the words of a batch."""
    builder = TransactionalTopologyBuilder(
        topology_id, "lines", spout(source, max_batch_records=max_batch_records), parallelism, **options
    )
    builder.set_bolt("split", Split(), parallelism).shuffle_grouping("lines")
    count = builder.set_bolt("count", CountByHand(), parallelism).fields_grouping("split", "word")
    count.set_num_tasks(count_tasks or parallelism)
    builder.set_committer_bolt("total", Total()).global_grouping("split")
    store = SqlStateBolt(words_state(), n=Sum("n"))
    builder.set_committer_bolt("store", store, parallelism).fields_grouping("count", "word")
    return builder.build()
