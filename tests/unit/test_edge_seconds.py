"""What an edge takes outside of bolts: choosing tasks, encoding, fetching, decoding, by a clock that only
these move."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.bolts import LINES, CountByHand, compiled, run, word_count, words_state
from support.inmemory import MemoryLog, MemorySource, attempt
from support.word_topologies import word_topology

import txstream.engine.batch.collector as collector_module
import txstream.engine.spark.spark_runner as spark_module
from txstream.api.bolts import BasicBolt, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.tuples import DEFAULT_STREAM, Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.batch.edge_counts import EdgeName
from txstream.engine.batch.messages import ANSWER, Element, Message, WorkOrder
from txstream.engine.batch.runner_contract import edges_of
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

SECOND = 10**9
TO_COUNT = EdgeName("count", "split", DEFAULT_STREAM)


class Clock:
    """Choosing tasks takes 1 s for each batch, encoding a message 100 s, decoding one 10 s. `reads` are those
    in nanoseconds, `routed` the batches whose tasks were chosen, by consumer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.reads = 0
        self.routed: dict[str, int] = {}
        monkeypatch.setattr(time, "perf_counter_ns", self._read)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now / SECOND)
        for name, consumer in (("open_router", 2), ("open_local_router", 1)):
            monkeypatch.setattr(collector_module, name, self._routing(name, consumer))
        for name, seconds in (("encode", 100), ("decode", 10)):
            monkeypatch.setattr(Message, name, self._taking(name, seconds))

    def _read(self) -> int:
        self.reads += 1
        return self.now

    def _routing(self, name: str, consumer: int) -> Any:
        open_router = getattr(collector_module, name)

        def opened(*given: Any, **options: Any) -> Any:
            router = open_router(*given, **options)
            route = router.route

            def slow(*batch: Any) -> Any:
                self.now += SECOND
                self.routed[given[consumer]] = self.routed.get(given[consumer], 0) + 1
                return route(*batch)

            router.route = slow
            return router

        return opened

    def _taking(self, name: str, seconds: int) -> Any:
        call = getattr(Message, name)

        def slow(*given: Any) -> Any:
            self.now += seconds * SECOND
            return call(*given)

        return slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_an_edge_between_stages_has_its_time_and_no_bolt_has_it_too(clock: Clock) -> None:
    log = MemoryLog(LINES)
    result = run(word_count(log, CountByHand(), parallelism=2), log, 2)
    assert clock.routed.keys() == {"split", "count", "store"}
    routed, messages = clock.routed["count"], 4  # from each of two Spark tasks to each of two
    # The other two edges pass tuples on in place.
    assert result.sending_ns == {TO_COUNT: pytest.approx((routed + messages * 100) * SECOND)}
    assert result.taking_ns == {TO_COUNT: pytest.approx(messages * 10 * SECOND)}
    seconds = dict.fromkeys(("lines", "split", "count", "store"), 0.0)
    for place in result.places:
        seconds[place.component] += place.seconds
    assert seconds == {"lines": 0, "split": 0, "count": clock.routed["store"], "store": 0}


def test_a_batch_of_one_stage_has_no_seconds_on_its_edges_and_reads_no_clock_for_them(clock: Clock) -> None:
    log = MemoryLog(LINES)
    result = run(word_count(log, CountByHand(), parallelism=2), log, 1)
    assert result.edges.keys() == {EdgeName("split", "lines", DEFAULT_STREAM), TO_COUNT} | {
        EdgeName("store", "count", DEFAULT_STREAM)
    }
    assert (result.sending_ns, result.taking_ns, clock.reads) == ({}, {}, 0)


class Apart(BasicBolt):
    """Emits a line to one stream and its length to another."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("line string", "wide")
        declarer.declare("n bigint", "narrow")

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["word"],), stream="wide")
        collector.emit((len(tup["word"]),), stream="narrow")


class Reads(BasicBolt):
    def execute(self, tup: Tuple, collector: OutputCollector) -> None: ...


def test_edges_share_what_they_take_together_by_their_bytes(clock: Clock) -> None:
    log = MemoryLog({"a": ["x" * 100_000] * 10})
    source = MemorySource(log, "word string")
    builder = TransactionalTopologyBuilder("apart", "lines", OpaqueSpout(source), 2)
    builder.set_bolt("apart", Apart(), 2).local_or_shuffle_grouping("lines")
    for stream in ("wide", "narrow"):
        builder.set_bolt(stream, Reads(), 2).shuffle_grouping("apart", stream=stream)
    builder.set_committer_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping(
        "lines", "word"
    )
    result = run(builder.build(), log, 2)
    wide, narrow = (EdgeName(stream, "apart", stream) for stream in ("wide", "narrow"))
    for spent, seconds in ((result.sending_ns, 100), (result.taking_ns, 10)):
        assert spent.keys() == {wide, narrow}
        assert spent.total() >= 2 * seconds * SECOND
        assert spent[wide] > 100 * spent[narrow]


@pytest.mark.parametrize("fetches", [True, False], ids=["fetched", "in the same call"])
def test_a_stage_on_spark_says_how_long_its_messages_took_to_come(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, fetches: bool
) -> None:
    """Where Spark runs two stages in one call, the time until a message comes is that of the bolts above."""
    told: list[Any] = []

    def stage(*given: Any) -> list[Element]:
        told.extend(given)
        return [(ANSWER, b"its own")]

    def elements() -> Iterator[Element]:
        yield ANSWER, b"from above"
        clock.now += 5 * SECOND
        yield 0, b"message"

    plan = compiled(word_count(MemoryLog(LINES)))
    for name, found in (
        ("shipped_plan", plan),
        ("current_order", WorkOrder(attempt(1), 1, [{}])),
        ("worker_process", None),
    ):
        monkeypatch.setattr(spark_module, name, lambda *_, found=found: found)
    monkeypatch.setattr(spark_module, "run_later_stage", stage)
    later = spark_module._later_stage(None, "run", 1, {"": 1}, fetches, 0, elements())  # type: ignore[arg-type]
    assert list(later) == [(ANSWER, b"from above"), (ANSWER, b"its own")]
    assert told[-1] == (5 * SECOND if fetches else 0)
    assert [b"message"] in told


def test_an_edge_into_the_commit_phase_is_sent_in_one_phase_and_taken_in_in_the_other(clock: Clock) -> None:
    source = MemorySpout("value string", {"p": ["a b", "b"]})
    with source, TopologyTest(word_topology(source)) as test:
        batch = test.commit(1)
        assert batch.processed is not None
        assert batch.finished is not None
        edges = {(one.source, one.target): one for one in edges_of(batch.processed, batch.finished)}
    assert {pair for pair, one in edges.items() if one.send_seconds} == {("split", "total")}
    into = edges["split", "total"]
    assert (into.tuples, into.send_seconds, into.take_seconds) == (3, 101, 10)
    inside = edges["lines", "split"]
    assert (inside.tuples, inside.send_seconds, inside.take_seconds) == (2, 0, 0)
