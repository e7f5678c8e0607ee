"""Graphs of bolts, run in this process: which bolt gets which tuple, how often, and in which phase."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from support.bolts import CountByHand, Passing, compiled, words_state
from support.inmemory import CONTEXT, MemoryLog, MemorySource, attempt
from support.lists import each

from txstream.api.bolts import BasicBolt, BatchBolt, OutputCollector, OutputFieldsDeclarer, TopologyContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.declarer import BoltDeclarer
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.stable_hash import task_of, tasks_of_partial_key
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import ShortBatchError, TopologyError, TupleError, TxstreamError
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.messages import Element, pack, unpack
from txstream.engine.batch.runner_contract import BatchResult
from txstream.plugins.local.local_runner import InProcessRunner

WORDS = {"p0": [f"w{i % 13}" for i in range(60)], "p1": ["hot"] * 30 + ["cold"], "p2": ["w1", "w2"]}


def graph(log: MemoryLog, parallelism: int = 3) -> TransactionalTopologyBuilder:
    source = OpaqueSpout(MemorySource(log, "word string", chunk=7))
    return TransactionalTopologyBuilder("t", "lines", source, parallelism)


def stored(builder: TransactionalTopologyBuilder, above: str) -> Topology:
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping(above)
    return builder.build()


class Outcome:
    """One attempt, run through both phases, with all that was emitted."""

    def __init__(self, topology: Topology, log: MemoryLog, width: int | None = None) -> None:
        self.plan: ExecutionPlan = compile_topology(topology, CONTEXT, "run", capture=True)
        runner = InProcessRunner(self.plan, width=width)
        self.processed = runner.run(attempt(1), BatchMetas(log.everything()))
        self.committed = runner.commit(attempt(1), self.processed)

    def rows(self, component: str, stream: str = "default") -> list[tuple[Any, ...]]:
        """The tuples that a component emitted."""
        return [
            tuple(row.values())
            for result in (self.processed, self.committed)
            for emitted in result.emitted
            if (emitted.component, emitted.stream) == (component, stream)
            for row in emitted.tuples.to_pylist()
        ]

    def executed(self, component: str) -> dict[int, int]:
        """How many tuples each task of a component was given."""
        return {
            place.task: place.tuples
            for result in (self.processed, self.committed)
            for place in result.places
            if place.component == component
        }

    def deltas(self, component: str = "store") -> dict[Any, int]:
        counts: Counter[Any] = Counter()
        for result in (self.processed, self.committed):
            for table in result.deltas.get(component, []):
                for row in table.to_pylist():
                    counts[row["word"]] += row["n"]
        return dict(counts)


def total(log: MemoryLog) -> int:
    return sum(len(rows) for rows in log.partitions.values())


# --- any graph ---------------------------------------------------------------------------------------

KINDS = ("shuffle", "local_or_shuffle", "fields", "partial_key", "all", "global", "none")


@st.composite
def graphs(draw: Any) -> tuple[MemoryLog, Topology, dict[str, int]]:
    """A graph of bolts that pass on what they get, and the number of tuples that each of them must emit."""
    log = MemoryLog({f"p{i}": [f"w{j % 5}" for j in range(draw(st.integers(0, 12)))] for i in range(3)})
    builder = graph(log, draw(st.integers(1, 3)))
    expected = {"lines": total(log)}
    for position in range(draw(st.integers(1, 6))):
        name, tasks = f"b{position}", draw(st.integers(1, 4))
        commits = draw(st.integers(0, 3)) == 0
        bolt: BoltDeclarer
        if commits:
            bolt = builder.set_committer_bolt(name, Collecting(), draw(st.integers(1, tasks)))
        else:
            bolt = builder.set_bolt(name, Passing(), draw(st.integers(1, tasks)))
        bolt.set_num_tasks(tasks)
        expected[name] = 0
        sources = st.sampled_from(sorted(set(expected) - {name}))
        for source in draw(st.lists(sources, min_size=1, max_size=3, unique=True)):
            kind = draw(st.sampled_from(KINDS))
            choose = getattr(bolt, f"{kind}_grouping")
            _ = choose(source, "word") if kind in ("fields", "partial_key") else choose(source)
            expected[name] += expected[source] * (tasks if kind == "all" else 1)
    return log, stored(builder, f"b{position}"), expected


class Collecting(BatchBolt):
    """Emits all that it got when the batch is finished."""

    output = "word string"

    def prepare(self, context: TopologyContext, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.words: list[str] = []

    def execute(self, tup: Tuple) -> None:
        self.words.append(tup["word"])

    def finish_batch(self) -> None:
        for word in self.words:
            self.collector.emit((word,))


@settings(max_examples=80, deadline=None)
@given(graphs(), st.integers(1, 4))
def test_any_graph_gives_every_subscriber_every_tuple_once(
    drawn: tuple[MemoryLog, Topology, dict[str, int]], width: int
) -> None:
    log, topology, expected = drawn
    one, many = Outcome(topology, log, 1), Outcome(topology, log, width)
    for component, count in expected.items():
        assert len(many.rows(component)) == count, component
        assert sorted(many.rows(component)) == sorted(one.rows(component))
    assert one.deltas() == many.deltas()


# --- several streams, several readers ----------------------------------------------------------------


class Sorted(BasicBolt):
    """Hot words to one stream, the others to another."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string")
        declarer.declare("word string, length int", stream="hot")

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "hot":
            collector.emit((tup["word"], len(tup["word"])), stream="hot")
        else:
            collector.emit(tup.values)


class WhoSaid(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((f"{tup.source_component}.{tup.source_stream}",))


@pytest.mark.parametrize("width", [1, 3])
def test_a_bolt_hears_several_components_and_several_streams(width: int) -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("sorted", Sorted(), 3).shuffle_grouping("lines")
    who = builder.set_bolt("who", WhoSaid(), 2).shuffle_grouping("lines")
    who.fields_grouping("sorted", "word", stream="hot").local_or_shuffle_grouping("sorted")
    outcome = Outcome(stored(builder, "who"), log, width)
    hot = sum(word == "hot" for rows in WORDS.values() for word in rows)
    assert Counter(word for (word,) in outcome.rows("who")) == {
        "lines.default": total(log),
        "sorted.hot": hot,
        "sorted.default": total(log) - hot,
    }


@pytest.mark.parametrize("width", [1, 3])
def test_what_feeds_several_bolts_is_computed_once(width: int) -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("dear", Passing(), 3).shuffle_grouping("lines")
    for name in ("one", "two", "three"):
        builder.set_bolt(name, Passing(), 2).fields_grouping("dear", "word")
    builder.set_committer_bolt("late", Collecting(), 2).fields_grouping("dear", "word")
    outcome = Outcome(stored(builder, "late"), log, width)
    assert sum(outcome.executed("dear").values()) == total(log)
    for name in ("one", "two", "three", "late"):
        assert sum(outcome.executed(name).values()) == total(log)
    assert sum(outcome.deltas().values()) == total(log)


def test_inputs_of_one_field_must_agree_on_its_type() -> None:
    class Number(Passing):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("word bigint")

    builder = graph(MemoryLog(WORDS))
    builder.set_bolt("number", Number()).shuffle_grouping("lines")
    store = builder.set_bolt("store", SqlStateBolt(words_state(), n=Count()))
    store.fields_grouping("lines", "word").fields_grouping("number", "word")
    with pytest.raises(
        TopologyError,
        match="'store' needs a field 'word' of one type, but its inputs have it as bigint",
    ):
        builder.build()


@pytest.mark.parametrize("width", [1, 3])
def test_a_state_with_two_inputs_takes_both(width: int) -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("again", Collecting(), 3).fields_grouping("lines", "word")
    store = builder.set_bolt("store", SqlStateBolt(words_state(), n=Count()), 2)
    store.fields_grouping("lines", "word").fields_grouping("again", "word")
    outcome = Outcome(builder.build(), log, width)
    counts = Counter(word for rows in WORDS.values() for word in rows)
    assert outcome.deltas() == {word: 2 * n for word, n in counts.items()}


def test_a_state_whose_inputs_are_spread_differently_is_refused() -> None:
    builder = graph(MemoryLog(WORDS))
    builder.set_bolt("again", Passing(), 3).shuffle_grouping("lines")
    store = builder.set_bolt("store", SqlStateBolt(words_state(), n=Count()), 2)
    store.fields_grouping("lines", "word").global_grouping("again")
    with pytest.raises(TopologyError, match=r"'store': group all its inputs alike, .* can send one key"):
        builder.build()


@pytest.mark.parametrize("kind", ["partial_key", "all"])
def test_a_state_must_get_each_key_in_one_task(kind: str) -> None:
    builder = graph(MemoryLog(WORDS))
    store = builder.set_bolt("store", SqlStateBolt(words_state(), n=Count()), 2)
    choose = getattr(store, f"{kind}_grouping")
    _ = choose("lines", "word") if kind == "partial_key" else choose("lines")
    with pytest.raises(TopologyError, match="'store': group its input by the key of table 'words'"):
        builder.build()


# --- groupings, through a topology --------------------------------------------------------------------


class Where(BatchBolt):
    """Emits its own task and the word."""

    output = "word string, task int, source int"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["word"], self.context.task_index, tup.source_task))


def heard(log: MemoryLog, kind: str, width: int, *fields: str, tasks: int = 5) -> list[tuple[str, int, int]]:
    builder = graph(log)
    builder.set_bolt("above", Passing(), 3).shuffle_grouping("lines")
    bolt = builder.set_bolt("where", Where(), 3).set_num_tasks(tasks)
    getattr(bolt, f"{kind}_grouping")("above", *fields)
    return Outcome(stored(builder, "where"), log, width).rows("where")


@each("width", [1, 2, 3])
def test_fields_same_key_same_task_however_wide(width: int) -> None:
    rows = heard(MemoryLog(WORDS), "fields", width, "word")
    assert len(rows) == 93
    assert all(task == task_of((word,), 5) for word, task, _ in rows)


@each("width", [1, 2, 3])
def test_all_every_task_gets_every_tuple(width: int) -> None:
    rows = heard(MemoryLog(WORDS), "all", width)
    words = sorted(word for partition in WORDS.values() for word in partition)
    for task in range(5):
        assert sorted(word for word, at, _ in rows if at == task) == words


@each("width", [1, 2, 3])
def test_global_exactly_task_0(width: int) -> None:
    rows = heard(MemoryLog(WORDS), "global", width)
    assert {task for _, task, _ in rows} == {0}
    assert len(rows) == 93


@each("width", [1, 2, 3])
@each("kind", ["shuffle", "none"])
def test_shuffle_and_none_differ_by_at_most_one_tuple_per_emitting_spark_task(kind: str, width: int) -> None:
    log = MemoryLog({name: ["x"] * 50 for name in "abc"})
    per_task = Counter(task for _, task, _ in heard(log, kind, width))
    assert sum(per_task.values()) == 150
    assert max(per_task.values()) - min(per_task[task] for task in range(5)) <= width


@each("width", [1, 2, 3])
def test_local_or_shuffle_stays_in_the_spark_task_and_uses_all_tasks_there(width: int) -> None:
    log = MemoryLog({name: ["x"] * 50 for name in "abc"})
    rows = heard(log, "local_or_shuffle", width)
    assert {task for _, task, _ in rows} == set(range(5))
    assert all(task % width == source % width for _, task, source in rows)


@each("width", [1, 2, 3])
def test_partial_key_one_of_two_tasks_and_a_hot_key_uses_both(width: int) -> None:
    rows = heard(MemoryLog(WORDS), "partial_key", width, "word")
    assert all(task in tasks_of_partial_key((word,), 5) for word, task, _ in rows)
    assert {task for word, task, _ in rows if word == "hot"} == set(tasks_of_partial_key(("hot",), 5))


class Choosing(BatchBolt):
    """Sends each word to one of the reader's tasks, which the word's length selects."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string", direct=True)
        declarer.declare("word string", stream="plain")

    def execute(self, tup: Tuple) -> None:
        tasks = self.context.task_counts["where"]
        self.collector.emit_direct(len(tup["word"]) % tasks, tup.values)


def direct(log: MemoryLog, bolt: BatchBolt) -> Topology:
    builder = graph(log)
    builder.set_bolt("above", bolt, 3).shuffle_grouping("lines")
    builder.set_bolt("where", Where(), 3).direct_grouping("above").set_num_tasks(5)
    return stored(builder, "where")


@each("width", [1, 2, 3])
def test_direct_the_emitter_chooses(width: int) -> None:
    log = MemoryLog({"a": ["x" * n for n in range(1, 12)]})
    rows = Outcome(direct(log, Choosing()), log, width).rows("where")
    assert len(rows) == 11
    assert all(task == len(word) % 5 for word, task, _ in rows)


class TooFar(Choosing):
    def execute(self, tup: Tuple) -> None:
        self.collector.emit_direct(5, tup.values)


class NotATask(Choosing):
    def execute(self, tup: Tuple) -> None:
        self.collector.emit_direct("0", tup.values)  # type: ignore[arg-type]


class Undirected(Choosing):
    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values)


class WrongStream(Choosing):
    def execute(self, tup: Tuple) -> None:
        self.collector.emit_direct(0, tup.values, stream="plain")


@each(
    ("bolt", "message"),
    [
        (TooFar(), r"component 'above', task \d: .*'where'.* 5"),
        (NotATask(), r"component 'above', task \d: .*for task '0'; a task is a number from 0 on"),
        (Undirected(), r"component 'above', task \d: .*emit_direct"),
        (
            WrongStream(),
            r"component 'above', task \d: .*stream 'plain', which is not declared with direct=True",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_direct_streams_are_checked_when_tuples_are_emitted(bolt: BatchBolt, message: str) -> None:
    log = MemoryLog(WORDS)
    with pytest.raises(TupleError, match=message):
        Outcome(direct(log, bolt), log)


def test_direct_streams_are_checked_when_the_topology_is_built() -> None:
    builder = graph(MemoryLog(WORDS))
    builder.set_bolt("above", Choosing()).shuffle_grouping("lines")
    builder.set_bolt("where", Where()).shuffle_grouping("above")
    with pytest.raises(TopologyError, match="'where' subscribes to the direct stream 'default' of 'above'"):
        stored(builder, "where")
    builder = graph(MemoryLog(WORDS))
    builder.set_bolt("where", Where()).direct_grouping("lines")
    with pytest.raises(TopologyError, match="that stream is not direct; declare it with direct=True"):
        stored(builder, "where")


# --- what is lost on the way --------------------------------------------------------------------------


class Losing(InProcessRunner):
    """Removes a tuple from the first message with any. Unless `honest`, the message's count agrees."""

    def __init__(self, plan: ExecutionPlan, position: int, *, honest: bool) -> None:
        super().__init__(plan, width=2)
        self.position, self.honest, self.exchanges = position, honest, 0

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        inboxes = super().exchange(elements, width)
        if self.exchanges == self.position:
            inboxes = [[self._take(message) for message in inbox] for inbox in inboxes]
        self.exchanges += 1
        return inboxes

    def _take(self, message: bytes) -> bytes:
        header, tables = unpack(message)
        for name, table in tables.items():
            if table.num_rows and self.position >= 0:
                tables[name] = table.slice(1)
                if not self.honest:
                    header["parcels"][int(name)][-1] -= 1
                self.position = -1
        return pack(header, tables)


def test_a_tuple_that_is_lost_between_two_bolts_fails_the_attempt() -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("count", CountByHand(), 3).fields_grouping("lines", "word")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Sum("n"))).fields_grouping("count", "word")
    runner = Losing(compiled(builder.build()), 0, honest=True)
    with pytest.raises(
        ShortBatchError, match=r"of 'count' got \d+ tuples from task \d of 'lines', which sent"
    ):
        runner.run(attempt(1), BatchMetas(log.everything()))


@pytest.mark.parametrize("position", [0, 1], ids=["processing", "commit"])
def test_a_tuple_that_is_lost_with_its_count_is_missed_at_the_end_of_the_phase(position: int) -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("count", CountByHand(), 3).fields_grouping("lines", "word")
    builder.set_committer_bolt("late", CountByHand(), 2).fields_grouping("count", "word")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Sum("n"))).fields_grouping("late", "word")
    runner = Losing(compiled(builder.build()), position, honest=False)

    def both_phases() -> None:
        runner.commit(attempt(1), runner.run(attempt(1), BatchMetas(log.everything())))

    reader, source = (("count", "lines"), ("late", "count"))[position]
    with pytest.raises(
        ShortBatchError, match=f"'{reader}' got 1 tuple less from stream 'default' of '{source}'"
    ):
        both_phases()


class Shuffled(InProcessRunner):
    """Changes the order of messages each time, as Spark's shuffle may."""

    order = 0

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        self.order += 1
        inboxes = super().exchange(elements, width)
        return [inbox[:: -1 if self.order % 2 else 1] for inbox in inboxes]


def test_the_order_in_which_messages_come_changes_nothing() -> None:
    log = MemoryLog(WORDS)
    builder = graph(log)
    builder.set_bolt("above", Passing(), 3).shuffle_grouping("lines")
    builder.set_bolt("where", Where(), 3).shuffle_grouping("above").set_num_tasks(5)
    topology = stored(builder, "where")
    found: list[list[pa.Table]] = []
    runner = Shuffled(compile_topology(topology, CONTEXT, "run", capture=True), width=3)
    for _ in range(3):
        result: BatchResult = runner.run(attempt(1), BatchMetas(log.everything()))
        found.append([emitted.tuples for emitted in result.emitted])
    assert found[0] == found[1] == found[2]


def test_dataframe_bolts_need_spark() -> None:
    from txstream.api.bolts import DataFrameBolt

    class Same(DataFrameBolt):
        output = "word string"

    builder = graph(MemoryLog(WORDS))
    builder.set_bolt("same", Same()).shuffle_grouping("lines")
    with pytest.raises(TxstreamError, match="'same' is a DataFrameBolt, which Spark computes"):
        InProcessRunner(compiled(stored(builder, "same")))
    with pytest.raises(TopologyError, match=r"Same must override transform\(df\), or transform_streams"):
        Same().transform(None)
    with pytest.raises(TopologyError, match=r"Same has inputs 'a', 'b'; with several of them, override tra"):
        Same().transform_streams({"a": None, "b": None})
