"""Bolts and topologies that several tests run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from support.inmemory import CONTEXT, MemoryLog, MemorySource, attempt
from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout, SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import TxstreamError
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.runner_contract import BatchResult
from txstream.state.folding import new_fold
from txstream.testing import InProcessRunner


class Split(BasicBolt):
    """Emits the words of a line; a null has none."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        for word in (tup["value"] or "").split():
            collector.emit((word,))


class CountByHand(BatchBolt):
    """What `CountBolt("word")` does, by a user who does not know it: it needs all tuples of a word."""

    output = "word string, n bigint"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.counts: dict[str, int] = {}

    def execute(self, tup: Tuple) -> None:
        word = tup["word"]
        self.counts[word] = self.counts.get(word, 0) + 1

    def finish_batch(self) -> None:
        for word, count in self.counts.items():
            self.collector.emit((word, count))


class Passing(BasicBolt):
    """Emits what it gets; each subclass changes one thing."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(tup.values)


def words_state(table: str = "words") -> SqlState:
    return SqlState(table, key="word string", value="n bigint")


def word_count(
    log: MemoryLog,
    count: Bolt | None = None,
    *,
    spout: type[SourceSpout[Any]] = OpaqueSpout,
    parallelism: int = 4,
    tasks: int | None = None,
    max_batch_records: int | None = None,
    **options: Any,
) -> Topology:
    """Lines to words to counts to the table `words`."""
    source = MemorySource(log)
    limit = {} if max_batch_records is None else {"max_batch_records": max_batch_records}
    declared = spout(source, **limit)
    builder = TransactionalTopologyBuilder("word-count", "lines", declared, parallelism, **options)
    builder.set_bolt("split", Split(), parallelism).local_or_shuffle_grouping("lines")
    counter = builder.set_bolt("count", count or CountBolt("word"), parallelism)
    counter.fields_grouping("split", "word").set_num_tasks(tasks or parallelism)
    store = SqlStateBolt(words_state(), n=Sum("n"))
    builder.set_committer_bolt("store", store, parallelism).fields_grouping("count", "word")
    return builder.build()


def chain(log: MemoryLog, *bolts: Bolt, parallelism: int = 2, output: str = "value string") -> Topology:
    """lines, then the bolts as b0, b1, ... shuffled, then a count per first field in table `words`."""
    builder = TransactionalTopologyBuilder(
        "chain", "lines", OpaqueSpout(MemorySource(log, output)), parallelism
    )
    above = "lines"
    for position, bolt in enumerate(bolts):
        builder.set_bolt(f"b{position}", bolt, parallelism).shuffle_grouping(above)
        above = f"b{position}"
    builder.set_bolt("count", CountBolt("word"), parallelism).fields_grouping(above, "word")
    builder.set_committer_bolt("store", SqlStateBolt(words_state())).fields_grouping("count", "word")
    return builder.build()


def compiled(topology: Topology, run_id: str = "run-1", *, capture: bool = False) -> ExecutionPlan:
    return compile_topology(topology, CONTEXT, run_id, capture=capture)


def merged(topology: Topology, result: BatchResult) -> dict[Any, Any]:
    """Return the deltas of a batch as key -> value, merged as the driver merges them."""
    committer = topology.states[0][0]
    fold = new_fold(committer)
    for part in result.deltas.get(topology.components[-1].id, []):
        if part.num_rows:
            fold.add_partial(part)
    table: pa.Table = fold.finish()
    rows = [tuple(row.values()) for row in table.to_pylist()]
    keys = len(committer.state.key_names)
    answer = {(row[0] if keys == 1 else row[:keys]): row[keys] for row in rows}
    assert len(answer) == len(rows), "a key came twice"
    return answer


LINES: dict[str, list[Any]] = {
    "a": ["the cat sat", None, "the dog", ""],
    "b": ["a cat a cat a", "the end"],
    "c": ["größe 🙂 größe"],
    "d": ["the", "the", "the", "the", "the"],
}


def run(topology: Topology, log: MemoryLog, width: int | None = None) -> BatchResult:
    return InProcessRunner(compiled(topology), width=width).run(attempt(1), BatchMetas(log.everything()))


def failure(topology: Topology, log: MemoryLog, width: int = 1) -> TxstreamError:
    with pytest.raises(TxstreamError) as caught:
        run(topology, log, width)
    return caught.value


def count_words(lines: dict[str, list[Any]]) -> dict[str, int]:
    return dict(Counter(w for rows in lines.values() for line in rows for w in (line or "").split()))
