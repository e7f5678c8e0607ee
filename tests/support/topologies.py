"""Topologies that tests describe and draw but never run."""

from __future__ import annotations

from support.bolts import CountByHand, Passing, Split, words_state
from support.inmemory import MemoryLog, MemorySource
from txstream.api.bolts import BasicBolt, Committer, DataFrameBolt, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Max, Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.functions import bolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.semantics import Semantics


class Sort(BasicBolt):
    """Two streams, one of them direct."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string")
        declarer.declare("word string, length int", stream="long", direct=True)

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(tup.values)


class Lengths(Passing):
    output = "word string, n bigint"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string, n bigint")


class CommitCount(CountByHand, Committer):
    pass


class Filter(DataFrameBolt):
    output = "word string"


@bolt(output="word string")
def shout(tup: Tuple) -> str:
    return str(tup[0]).upper()


def declared(
    topology_id: str, parallelism: int = 2, output: str = "word string"
) -> TransactionalTopologyBuilder:
    source = OpaqueSpout(MemorySource(MemoryLog({}), output))
    return TransactionalTopologyBuilder(topology_id, "lines", source, parallelism)


def word_count() -> Topology:
    """The README's program."""
    builder = declared("word-count", output="value string")
    builder.set_bolt("split", Split(), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), 2).fields_grouping("split", "word")
    store = builder.set_committer_bolt("store", SqlStateBolt(words_state(), n=Sum("n")), 2)
    store.fields_grouping("count", "word")
    return builder.build()


def branching() -> Topology:
    """Several inputs and streams, a direct one among them, a function, a DataFrame, settings, and two tables,
    one of them with another semantics than the spout."""
    spout = TransactionalSpout(MemorySource(MemoryLog({}), "word string"))
    builder = TransactionalTopologyBuilder(
        "branching",
        "lines",
        spout,
        3,
        max_spout_pending=1,
        message_timeout_seconds=2.5,
        max_attempts=1,
        settings={"password": "secret", "greeting": "hello"},
    )
    builder.set_bolt("sort", Sort(), 2).shuffle_grouping("lines").set_num_tasks(6)
    builder.set_bolt("shout", shout).all_grouping("sort")
    builder.set_bolt("filter", Filter()).none_grouping("sort")
    lengths = builder.set_bolt("lengths", Lengths(), 2).partial_key_grouping("shout", "word")
    lengths.direct_grouping("sort", "long").global_grouping("filter")
    state = SqlState(
        "longest",
        key="word string",
        value="n bigint, best bigint",
        url="sqlite:///secret.db",
        semantics=Semantics.OPAQUE,
    )
    longest = builder.set_bolt("longest", SqlStateBolt(state, n=Count(), best=Max("n")), 2)
    longest.fields_grouping("lengths", "word")
    total = SqlStateBolt(SqlState("total", "word string", "n bigint"))
    builder.set_bolt("total", total).global_grouping("lengths")
    return builder.build()


def storm_example() -> Topology:
    """Storm's documented example: A -> B (committer) -> C -> D (committer), and A -> C."""
    builder = declared("storm")
    builder.set_bolt("A", Split(), 2).shuffle_grouping("lines")
    builder.set_committer_bolt("B", CountByHand(), 2).fields_grouping("A", "word")
    builder.set_bolt("C", Lengths(), 2).local_or_shuffle_grouping("B").shuffle_grouping("A")
    builder.set_bolt("D", CommitCount(), 1).global_grouping("C")
    return builder.build()


def diamond() -> Topology:
    """A bolt that feeds two others, which meet again."""
    builder = declared("diamond")
    builder.set_bolt("split", Sort(), 2).shuffle_grouping("lines").set_num_tasks(4)
    builder.set_bolt("left", Lengths(), 2).fields_grouping("split", "word")
    builder.set_bolt("right", Lengths(), 2).direct_grouping("split", "long")
    both = builder.set_bolt("both", Passing(), 2)
    both.partial_key_grouping("left", "word").partial_key_grouping("right", "word")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Sum("n"))).fields_grouping("both", "word")
    return builder.build()


def eight_bolts() -> Topology:
    """Eight Python bolts in a row, without an exchange."""
    builder = declared("chain", parallelism=4)
    above = "lines"
    for number in range(1, 9):
        builder.set_bolt(f"b{number}", Passing(), 4).local_or_shuffle_grouping(above)
        above = f"b{number}"
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping(above)
    return builder.build()


def eight_components() -> Topology:
    """A graph with crossings to avoid, edges over several layers and a commit phase of three components."""
    builder = declared("eight", 4, "value string")
    builder.set_bolt("split", Sort(), 4).shuffle_grouping("lines")
    builder.set_bolt("clean", Split(), 4).local_or_shuffle_grouping("lines")
    builder.set_bolt("by_word", CountByHand(), 2).fields_grouping("split", "word").set_num_tasks(8)
    builder.set_bolt("by_length", Lengths(), 2).direct_grouping("split", "long")
    builder.set_committer_bolt("total", CountByHand()).global_grouping("clean").global_grouping("by_word")
    below = builder.set_bolt("report", Lengths(), 2)
    below.shuffle_grouping("total").all_grouping("by_length").none_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Sum("n"))).fields_grouping("report", "word")
    return builder.build()
