"""A bolt of one's own that reads a table of its topology (`TableReader`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txstream import (
    BatchBolt,
    Count,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TableReader,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.core.errors import TopologyError
from txstream.core.fault_points import Point
from txstream.testing import TopologyTest


class SeenBefore(TableReader):
    """Emits how often a word was there before this batch."""

    output = "at bigint, n bigint"
    reads = "counts"

    def prepare(self, context: Any, collector: Any, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.words: dict[str, int] = {}

    def execute(self, tup: Tuple) -> None:
        self.words.setdefault(tup["word"], tup["at"])

    def finish_batch(self) -> None:
        assert self.context.open_table is not None
        store, spec = self.context.open_table()
        found = store.read(spec, pa.table({"word": [*self.words]}), before=self.batch_id.txid).to_pylist()
        counts = {row["word"]: row["n"] for row in found}
        for word, at in self.words.items():
            self.collector.emit((at, counts.get(word, 0)))


def graph(source: MemorySpout, reader: BatchBolt, **options: Any) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder(
        "readers", "words", OpaqueSpout(source, max_batch_records=2), **options
    )
    state = SqlState("counts", key="word string", value="n bigint")
    builder.set_bolt("counts", SqlStateBolt(state, n=Count())).fields_grouping("words", "word")
    builder.set_bolt("before", reader).fields_grouping("words", "word")
    kept = SqlAppendBolt(SqlTable("seen", "n bigint", key="at bigint"))
    builder.set_bolt("seen", kept).local_or_shuffle_grouping("before")
    return builder


@pytest.mark.parametrize("at", [Point.BEFORE_COMMIT, Point.AFTER_WRITE])
def test_a_reader_sees_the_batches_before_its_own(at: Point) -> None:
    words = list(enumerate("abacabbcaa"))
    with (
        MemorySpout("at bigint, word string", {"p": words}) as source,
        TopologyTest(graph(source, SeenBefore(), max_spout_pending=3, commit="executors")) as test,
    ):
        for txid in (2, 4):
            test.crash(at=at, txid=txid)
            test.restart()
        test.run()
        text = "abacabbcaa"
        first = [at for at in range(10) if at % 2 == 0 or text[at] != text[at - 1]]  # two of a batch are one
        assert test.table("seen") == {at: text[: at - at % 2].count(text[at]) for at in first}


def test_what_a_reader_reads_is_a_table_of_the_topology() -> None:
    other = SeenBefore()
    other.reads = "words"
    with MemorySpout("at bigint, word string") as source:
        with pytest.raises(
            TopologyError, match="'words', which is no bolt that fills a table; those are 'counts'"
        ):
            graph(source, other).build()
        with pytest.raises(TopologyError, match="table 'counts' is read by executors, but commit='driver'"):
            graph(source, SeenBefore(), commit="driver").build()
        assert graph(source, SeenBefore(), max_spout_pending=3).build().max_spout_pending == 1
