"""How many files one batch runs through: what a newcomer would have to read to follow it."""

from __future__ import annotations

from rooms import called_files
from txstream import MemorySpout, OpaqueSpout, SqlState, SqlStateBolt, Sum, TransactionalTopologyBuilder
from txstream.testing import TopologyTest

MOST = 67


def test_a_batch_runs_through_few_files() -> None:
    """From plan to advance, in this process, once the batches before it have loaded what is loaded once.

    A plug-in's files are not counted: the test's own, SQLite's. Kafka with JSON adds 19 to what a source in
    memory needs. On Spark, with Kafka and PostgreSQL, 99 were counted between two commits, two batches
    overlapping."""
    with MemorySpout("word string, n bigint", {"p": [("a", 1)] * 9}, max_records_per_partition=3) as source:
        builder = TransactionalTopologyBuilder("words", "words", OpaqueSpout(source), parallelism=2)
        state = SqlState("words", key="word string", value="n bigint")
        store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), parallelism=2)
        store.fields_grouping("words", "word")
        with called_files() as called, TopologyTest(builder.build()) as test:
            test.commit(2)
            called.clear()
            test.commit(3)
            files = sorted(map(str, called))
    assert {"txstream/engine/loop/planning.py", "txstream/engine/batch/worker.py"} <= set(files)
    assert len(files) <= MOST, "\n".join(files)
