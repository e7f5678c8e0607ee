"""A topology for tests of `replay` and `why`, and the same topology with changed code."""

from __future__ import annotations

from typing import Any

from txstream.api.bolts import BasicBolt, BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Max
from txstream.api.spouts import OpaqueSpout, SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest


class Words(BasicBolt):
    output = "word string, length bigint"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in self.words(tup[0]):
            collector.emit((word, len(word)))

    def words(self, line: str) -> list[str]:
        return line.split()


class Changed(Words):
    """Counts `the` differently, leaves `end` out, and emits one word more."""

    def words(self, line: str) -> list[str]:
        return [*(word for word in line.split() if word != "end"), *(["the", "new"] if "the" in line else [])]


class Summary(BatchBolt, Committer):
    """A committer of the user's, with a state below it."""

    output = "word string, length bigint"
    dry = False

    def execute(self, tup: Any) -> None:
        assert not Summary.dry, "bolts of the commit phase are not run dry"


def topology(
    source: MemorySpout,
    words: type[Words] = Words,
    spout: type[SourceSpout[Any]] = OpaqueSpout,
    *,
    commit: Any = "driver",
    below: bool = False,
) -> Topology:
    builder = TransactionalTopologyBuilder(
        "words", "lines", spout(source, max_batch_records=2), 2, commit=commit
    )
    builder.set_bolt("split", words(), parallelism=2).shuffle_grouping("lines")
    state = SqlState("words", key="word string", value="n bigint, longest bigint")
    store = SqlStateBolt(state, n=Count(), longest=Max("length"))
    builder.set_committer_bolt("store", store, parallelism=2).fields_grouping("split", "word")
    if below:
        builder.set_bolt("summary", Summary()).global_grouping("split")
        later = SqlStateBolt(SqlState("later", key="word string", value="n bigint"), n=Count())
        builder.set_bolt("below", later).fields_grouping("summary", "word")
    return builder.build()


def run(made: Topology, database: str) -> Settings:
    """Run the topology to the end of its source; return the settings for looking at it."""
    with TopologyTest(made, database=database) as test:
        test.run()
    return Settings(database=database)
