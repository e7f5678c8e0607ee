"""`TopologyBuilder`: what it builds, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.lists import each
from support.tracked import Lines

import txstream
from txstream import BasicBolt, BatchBolt, RichBolt, TopologyBuilder, Tuple
from txstream.spouts.memory import MemorySpout


class Split(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        for word in tup["line"].split():
            self.collector.emit(tup, [word])
        self.collector.ack(tup)


class Print(BasicBolt):
    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        """Print it."""


class Total(BatchBolt):
    def execute(self, tup: Tuple) -> None:
        """Add it."""


def builder() -> TopologyBuilder:
    made = TopologyBuilder("words", ackers=2, max_spout_pending=100, message_timeout_seconds=5)
    made.set_spout("lines", Lines(), 2)
    return made


def test_spouts_come_first_then_bolts_as_in_every_topology() -> None:
    made = builder()
    made.set_bolt("print", Print()).shuffle_grouping("split")
    made.set_bolt("split", Split(), 2).shuffle_grouping("lines").shuffle_grouping("more")
    made.set_spout("more", Lines())
    topology = made.build()
    assert [component.id for component in topology.components] == ["lines", "more", "split", "print"]
    assert [component.id for component in topology.spouts] == ["lines", "more"]
    assert [component.id for component in topology.bolts] == ["split", "print"]
    assert (topology.ackers, topology.max_spout_pending, topology.message_timeout_seconds) == (2, 100, 5.0)
    assert repr(topology) == "<Topology words (tracked): lines, more, split, print>"


def test_it_is_described_as_every_topology_is() -> None:
    made = builder()
    made.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    described = made.build().describe()
    assert (
        "topology words (tracked)\n100 trees of a spout task at once, 2 ackers, 5 s for a tree" in described
    )
    assert "    emits   default  line string\n" in described
    document = made.build().to_document()
    assert (document["semantics"], document["ackers"]) == ("tracked", 2)
    assert [component["kind"] for component in document["components"]] == ["spout", "bolt"]


class Silent(Lines):
    def declare_output_fields(self, declarer: txstream.OutputFieldsDeclarer) -> None:
        """Nothing."""


class InColumns(BasicBolt):
    def execute_batch(self, batch: Any, collector: Any) -> None:
        raise NotImplementedError


class Yields(Lines):
    def next_tuple(self) -> Any:
        yield ["a"]


def no_tasks(made: TopologyBuilder) -> None:
    TopologyBuilder("words", ackers=-1)


@each(
    ("declare", "message"),
    [
        (
            lambda made: made.set_bolt("total", Total()).shuffle_grouping("lines"),
            r"component 'total': Total needs batches, but tracked tuples come one by one",
        ),
        (
            lambda made: made.set_bolt("columns", InColumns()).shuffle_grouping("lines"),
            r"component 'columns': InColumns has no execute, but tracked tuples come one by one, never to",
        ),
        (lambda made: made.set_spout("lines", Lines()), r"two components are called 'lines'"),
        (lambda made: made.set_spout("more", Lines), r"<class .*Lines'> is not a Spout \(pass an instance"),
        (
            lambda made: made.set_spout("log", txstream.OpaqueSpout(MemorySpout("value string"))),
            r"component 'log': OpaqueSpout emits batches of a log; use TransactionalTopologyBuilder",
        ),
        (lambda made: made.set_spout("more", Silent()), r"component 'more': Silent declares no output"),
        (lambda made: made.set_spout("more", Yields()), r"'more': Yields.next_tuple is a generator"),
        (lambda made: made.set_bolt("split", Split()), r"component 'split' has no input; .*\('lines'\)"),
        (no_tasks, r"ackers is -1"),
    ],
)
def test_what_is_refused(declare: Callable[[Any], Any], message: str) -> None:
    made = builder()

    def declare_and_build() -> None:
        declare(made)
        made.build()

    with pytest.raises(txstream.TopologyError, match=message):
        declare_and_build()


def test_a_topology_needs_a_spout() -> None:
    with pytest.raises(txstream.TopologyError, match="topology 'none' has no spout; add one with set_spout"):
        TopologyBuilder("none").build()


def test_a_method_that_nobody_calls_is_warned_of() -> None:
    class Cased(Lines):
        def nextTuple(self) -> None:  # noqa: N802 - Storm's spelling is what is tested
            """Storm's name for it."""

    made = builder()
    made.set_spout("cased", Cased())
    with pytest.warns(txstream.TopologyWarning, match=r"'cased': Cased.nextTuple is never called; did you"):
        made.build()


def test_a_transactional_topology_has_no_rich_bolts() -> None:
    spout = txstream.OpaqueSpout(MemorySpout("line string"))
    made = txstream.TransactionalTopologyBuilder("t", "lines", spout)
    with pytest.raises(
        txstream.TopologyError, match="'split': Split is a RichBolt, which acks single tuples"
    ):
        made.set_bolt("split", Split())
