"""The stages of a batch, run in this process: the same results at any width, and no tuple lost unseen."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from support.bolts import (
    LINES,
    CountByHand,
    Passing,
    Split,
    chain,
    compiled,
    count_words,
    merged,
    run,
    word_count,
    words_state,
)
from support.inmemory import MemoryLog, MemorySource, attempt
from support.lists import each

import txstream.engine.batch.collector
import txstream.engine.batch.worker
from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, Committer, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.stable_hash import task_of
from txstream.api.topology import Topology
from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import (
    ShortBatchError,
)
from txstream.engine.batch.edge_counts import EdgeName
from txstream.engine.batch.messages import Answer, Element, pack, unpack
from txstream.engine.batch.task_answers import collect_result
from txstream.engine.batch.worker import _JoinedChunks
from txstream.testing import InProcessRunner

# --- the same results ------------------------------------------------------------------------------


@each("width", [1, 2, 4, None])
@each("count", [CountBolt("word"), CountByHand()], ids=["one stage", "exchange"])
@each("tasks", [4, 7])
def test_a_word_count_is_the_same_however_wide(count: Bolt, width: int | None, tasks: int) -> None:
    log = MemoryLog(LINES)
    topology = word_count(log, count, tasks=tasks)
    result = run(topology, log, width)
    assert merged(topology, result) == count_words(LINES)
    assert result.records == 12
    assert result.width == (width or 1)


TEXTS = st.dictionaries(
    st.sampled_from("abcde"),
    st.lists(
        st.one_of(st.none(), st.lists(st.sampled_from(["x", "y", "zz", "ß"]), max_size=5).map(" ".join))
    ),
    max_size=5,
)


@settings(max_examples=40)
@given(TEXTS, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_any_text_is_counted_right(
    lines: dict[str, list[Any]], width: int, parallelism: int, by_hand: bool
) -> None:
    log = MemoryLog(lines)
    topology = word_count(log, CountByHand() if by_hand else None, parallelism=parallelism)
    assert merged(topology, run(topology, log, width)) == count_words(lines)


@pytest.mark.parametrize("width", [1, 3])
def test_several_exchanges_in_a_row(width: int) -> None:
    log = MemoryLog(LINES)
    topology = chain(log, Split(), Passing(), Passing(), parallelism=3)
    result = run(topology, log, width)
    assert merged(topology, result) == count_words(LINES)
    assert result.records == 12


def test_a_batch_with_nothing_in_it_still_finishes_every_task() -> None:
    log = MemoryLog({})
    topology = one_row_per_task(log, 3)
    for width in (1, 3):
        assert merged(topology, run(topology, log, width)) == {"rows": 0}


class CountRows(BatchBolt):
    """Emits one row per task, even if the task got nothing."""

    output = "word string, n bigint"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.n = 0

    def execute(self, tup: Tuple) -> None:
        self.n += 1

    def finish_batch(self) -> None:
        self.collector.emit(("rows", self.n))


def one_row_per_task(log: MemoryLog, parallelism: int) -> Topology:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log)), parallelism)
    builder.set_bolt("count", CountRows(), parallelism).local_or_shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state())).global_grouping("count")
    return builder.build()


@each("width", [1, 2, 4])
def test_a_state_with_one_task_behind_several_spark_tasks(width: int) -> None:
    log = MemoryLog(LINES)
    topology = one_row_per_task(log, 4)
    result = run(topology, log, width)
    assert merged(topology, result) == {"rows": 12}
    assert len(result.deltas["store"]) == width


class WhereAmI(BatchBolt):
    """Emits which task got which tuple from which task."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        assert self.batch_id == self.context.attempt == attempt(1)
        assert tup.source_component == "b0"
        where = f"{tup['word']} by {tup.source_task} to {self.context.task_index}/{self.context.task_count}"
        self.collector.emit([where])


class Tag(BatchBolt):
    """Emits its own task index."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((f"task {self.context.task_index}",))


def tagged(log: MemoryLog, tasks: int) -> Topology:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log)), 3)
    builder.set_bolt("b0", Tag(), 3).local_or_shuffle_grouping("lines")
    builder.set_bolt("where", WhereAmI(), 3).fields_grouping("b0", "word").set_num_tasks(tasks)
    builder.set_bolt("count", CountBolt("word"), 3).fields_grouping("where", "word")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("count", "word")
    return builder.build()


@pytest.mark.parametrize("width", [1, 3])
def test_a_fields_grouping_chooses_the_task_by_the_stable_hash_and_tasks_keep_their_names(width: int) -> None:
    log = MemoryLog({name: ["x"] * 6 for name in "abc"})
    topology = tagged(log, tasks=5)
    counts = merged(topology, run(topology, log, width))
    assert sum(counts.values()) == 18
    for shown in counts:
        word, _, rest = shown.partition(" by ")
        source, _, place = rest.partition(" to ")
        assert word == f"task {source}"
        assert place == f"{task_of((word,), 5)}/5"
    assert {shown.partition(" by ")[0] for shown in counts} == {"task 0", "task 1", "task 2"}


class Hear(BatchBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((str(self.context.task_index),))


@pytest.mark.parametrize("width", [1, 2])
def test_a_shuffle_spreads_evenly_also_in_small_batches(width: int) -> None:
    log = MemoryLog({name: ["x"] * 40 for name in "ab"})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log, chunk=1)), 4)
    builder.set_bolt("hear", Hear(), 4).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("hear", "word")
    topology = builder.build()
    assert merged(topology, run(topology, log, width)) == {"0": 20, "1": 20, "2": 20, "3": 20}


class TwoStreams(BasicBolt):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("word string")
        declarer.declare("reason string, n int", stream="errors")

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(("good",))
        if "cat" in (tup["value"] or ""):
            collector.emit(("bad", 1), stream="errors")


@each("width", [1, 2])
@each(("stream", "key", "expected"), [("default", "word", 12), ("errors", "reason", 2)])
@each("pass_on", [True, False])
def test_a_bolt_gets_only_the_stream_that_it_subscribes_to(
    stream: str, key: str, expected: int, width: int, pass_on: bool
) -> None:
    class Rename(Passing):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("word string")

        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            assert tup.source_stream == stream
            collector.emit((tup[key],))

    log = MemoryLog(LINES)
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log)), 2)
    builder.set_bolt("two", TwoStreams(), 2).local_or_shuffle_grouping("lines")
    rename = builder.set_bolt("rename", Rename(), 2)
    if pass_on:
        rename.local_or_shuffle_grouping("two", stream)
    else:
        rename.shuffle_grouping("two", stream)
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("rename", "word")
    topology = builder.build()
    assert sum(merged(topology, run(topology, log, width)).values()) == expected


def test_many_tuples_of_one_task_are_sent_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txstream.engine.batch.collector, "_FLUSH_ROWS", 2)
    log = MemoryLog(LINES)
    topology = word_count(log, CountByHand())
    assert merged(topology, run(topology, log, 2)) == count_words(LINES)


class ChunkSizes(BatchBolt):
    """Emits how many rows each chunk has."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        raise AssertionError

    def execute_chunk(self, chunk: Chunk) -> None:
        self.collector.emit((str(len(chunk)),))


def test_small_pieces_of_many_partitions_come_as_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunks() -> dict[str, int]:
        log = MemoryLog({f"p{number}": ["a b"] * 2 for number in range(50)})
        topology = chain(log, ChunkSizes(), parallelism=1)
        return merged(topology, run(topology, log, 1))

    assert chunks() == {"100": 1}
    monkeypatch.setattr(txstream.engine.batch.worker, "_CHUNK_ROWS", 30)
    assert chunks() == {"30": 3, "10": 1}


ROWS = st.lists(st.integers(0, 9), max_size=8)


@given(st.lists(st.tuples(st.sampled_from([pa.int64(), pa.int32()]), ROWS)), st.integers(1, 6))
def test_joined_chunks_have_the_same_rows_in_the_same_order(
    pieces: list[tuple[pa.DataType, list[int]]], large: int
) -> None:
    pushed: list[pa.RecordBatch] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(txstream.engine.batch.worker, "_CHUNK_ROWS", large)
        joined = _JoinedChunks(pushed.append)
        for kind, values in pieces:
            joined.add(pa.record_batch({"n": pa.array(values, kind)}))
        joined.push()
    assert [(kind, value) for kind, values in pieces for value in values] == [
        (batch.schema.field("n").type, value) for batch in pushed for value in batch["n"].to_pylist()
    ]
    assert all(batch.num_rows for batch in pushed)
    for before, after in itertools.pairwise(pushed):
        assert before.num_rows >= large or after.num_rows >= large or before.schema != after.schema


def test_the_runner_keeps_its_emitters_between_batches_and_closes_them_at_the_end() -> None:
    log = MemoryLog(LINES)
    runner = InProcessRunner(compiled(word_count(log)), width=2)
    for txid in (1, 2, 3):
        runner.run(attempt(txid), BatchMetas(log.everything()))
    assert log.opened == 1
    assert log.closed == 0
    runner.cancel(attempt(2))
    assert runner.cancelled == {attempt(2)}
    runner.close()
    assert log.closed == 1


# --- tuples that are lost --------------------------------------------------------------------------


class Losing(InProcessRunner):
    """A runner whose exchange damages the messages."""

    def __init__(self, topology: Topology, harm: Callable[[list[bytes]], list[bytes]]) -> None:
        super().__init__(compiled(topology), width=2)
        self.harm = harm

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        inboxes = super().exchange(elements, width)
        return [self.harm(inboxes[0]), *inboxes[1:]]


def drop_a_tuple(messages: list[bytes]) -> list[bytes]:
    header, tables = unpack(messages[0])
    name = next(iter(tables))
    tables[name] = tables[name].slice(1)
    return [pack(header, tables), *messages[1:]]


def drop_a_table(messages: list[bytes]) -> list[bytes]:
    header, tables = unpack(messages[0])
    del tables[next(iter(tables))]
    return [pack(header, tables), *messages[1:]]


def double_a_tuple(messages: list[bytes]) -> list[bytes]:
    header, tables = unpack(messages[0])
    name = next(iter(tables))
    tables[name] = pa.concat_tables([tables[name], tables[name].slice(0, 1)])
    return [pack(header, tables), *messages[1:]]


@each(
    ("harm", "message"),
    [
        (drop_a_tuple, r"task \d of 'count' got \d+ tuples from task \d of 'split', which sent \d+"),
        (drop_a_table, r"task \d of 'count' got 0 tuples from task \d of 'split', which sent \d+"),
        (double_a_tuple, r"task \d of 'count' got \d+ tuples from task \d of 'split', which sent \d+"),
        (lambda messages: messages[1:], "'count' heard from 1 of 2 Spark tasks before it"),
        (lambda messages: [], "'count' heard from 0 of 2 Spark tasks before it"),
    ],
    ids=["a tuple", "a table", "a tuple twice", "a message", "all messages"],
)
def test_what_is_lost_on_the_way_fails_the_attempt(
    harm: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    log = MemoryLog(LINES)
    runner = Losing(word_count(log, CountByHand(), parallelism=2), harm)
    with pytest.raises(ShortBatchError, match=message):
        runner.run(attempt(1), BatchMetas(log.everything()))


class Ends(BatchBolt, Committer):
    output = "n bigint"

    def execute(self, tup: Tuple) -> None: ...


def test_tuples_for_the_commit_phase_are_counted_in_it_and_not_before() -> None:
    log = MemoryLog({})
    builder = TransactionalTopologyBuilder("ends", "lines", OpaqueSpout(MemorySource(log)))
    builder.set_bolt("ends", Ends()).global_grouping("lines")
    plan = compiled(builder.build())
    edge = EdgeName("ends", "lines", DEFAULT_STREAM)
    processed = collect_result(plan, attempt(1), [Answer(sent=Counter({edge: 2}))], 0.0, 1)
    assert processed.crossing == {edge: 2}
    for received in (1, 2, 3):
        answers = [Answer(received=Counter({edge: received}))]
        if received == 2:
            collect_result(plan, attempt(1), answers, 0.0, 1, crossing=processed.crossing)
            continue
        with pytest.raises(ShortBatchError, match=r"'ends' got 1 tuple (less|more) from stream"):
            collect_result(plan, attempt(1), answers, 0.0, 1, crossing=processed.crossing)
