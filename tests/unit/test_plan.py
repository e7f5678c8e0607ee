"""Topologies compiled into stages: what stays in a Spark task, what is exchanged, how wide a batch is."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.bolts import CountByHand, Passing, Split, chain, compiled, word_count, words_state
from support.inmemory import CONTEXT, MemoryLog, MemorySource, Range, attempt
from support.lists import each
from support.topologies import CommitCount

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Last, Max, Min, Reducer, Sum, custom
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.aggregate import CountBolt, ReduceBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import TopologyError
from txstream.engine.batch.execution_plan import Edge, ExecutionPlan, compile_topology
from txstream.engine.batch.layout import lay_out, max_width
from txstream.engine.batch.sizing import RecordCost, batch_width, resident_tasks, work_order

LOG = MemoryLog({})


def layout(plan: ExecutionPlan, width: int) -> list[tuple[int, list[str]]]:
    """Return each stage's width and bolts."""
    return [(stage.width, [bolt.id for bolt in stage.bolts]) for stage in lay_out(plan, width).stages]


def edges(plan: ExecutionPlan) -> list[Edge]:
    return [given.edge for bolt in plan.bolts for given in bolt.inputs]


def test_word_count_compiles_to_one_stage_however_wide() -> None:
    plan = compiled(word_count(LOG))
    assert edges(plan) == [Edge.PASS, Edge.PASS, Edge.PASS]
    for width in (1, 2, 4):
        assert layout(plan, width) == [(width, ["split", "count", "store"])]


def test_a_users_bolt_behind_a_fields_grouping_makes_an_exchange_when_there_is_more_than_one_spark_task() -> (
    None
):
    plan = compiled(word_count(LOG, CountByHand()))
    assert edges(plan) == [Edge.PASS, Edge.EXCHANGE, Edge.PASS]
    assert layout(plan, 1) == [(1, ["split", "count", "store"])]
    assert layout(plan, 3) == [(3, ["split"]), (3, ["count", "store"])]


def test_an_exchange_right_behind_the_spout_leaves_a_stage_without_bolts() -> None:
    plan = compiled(chain(LOG, Split()))
    assert layout(plan, 2) == [(2, []), (2, ["b0", "count", "store"])]


def test_a_stage_is_no_wider_than_the_slots_of_its_bolts() -> None:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG)), 3)
    builder.set_bolt("split", Split(), 8).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountByHand(), 2).fields_grouping("split", "word")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("count", "word")
    plan = compiled(builder.build())
    assert max_width(plan, {}) == 8
    assert layout(plan, 8) == [(3, ["split"]), (2, ["count", "store"])]


def test_a_state_with_one_slot_does_not_make_the_whole_batch_one_spark_task() -> None:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG)), 4)
    builder.set_bolt("split", Split(), 4).local_or_shuffle_grouping("lines")
    state = SqlStateBolt(words_state(), n=Count())
    builder.set_bolt("store", state).global_grouping("split")
    plan = compiled(builder.build())
    assert layout(plan, 4) == [(4, ["split", "store"])]
    split, store = plan.bolts
    wide, narrow = lay_out(plan, 4).stages[0], lay_out(plan, 3).stages[0]
    assert [list(wide.hosted(store, spark_task)) for spark_task in range(4)] == [[0], [0], [0], [0]]
    assert [list(narrow.hosted(split, spark_task)) for spark_task in range(3)] == [[0, 3], [1], [2]]


def with_state(reduce: ReduceBolt, state: SqlState, **reducers: Reducer) -> Edge:
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG, "word string, x int")))
    builder.set_bolt("reduce", reduce).fields_grouping("lines", *reduce.keys)
    builder.set_bolt("store", SqlStateBolt(state, **reducers)).fields_grouping("reduce", *state.key_names)
    return edges(compiled(builder.build()))[0]


def shown(value: Any) -> str:
    """Return a text that is the same in every process, for the names of tests."""
    if isinstance(value, ReduceBolt):
        return ",".join([*value.keys, *(f"{name}={reducer}" for name, reducer in value.reducers.items())])
    if isinstance(value, dict):
        return ",".join(f"{name}={reducer}" for name, reducer in value.items())
    return str(value)


@each(
    ("reduce", "reducers", "edge"),
    [
        (ReduceBolt("word", n=Count()), {"n": Sum("n")}, Edge.PASS),
        (ReduceBolt("word", n=Count("x")), {}, Edge.PASS),
        (ReduceBolt("word", n=Sum("x")), {"n": Sum("n")}, Edge.PASS),
        (ReduceBolt("word", n=Max("x")), {"n": Max("n")}, Edge.PASS),
        # This does not merge partial results: only complete rows of a key give the right answer.
        (ReduceBolt("word", n=Count()), {"n": Max("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Count()), {"n": Count()}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Count()), {"n": Count("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Max("x")), {"n": Sum("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Max("x")), {"n": Min("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", "x", n=Count()), {"n": Sum("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Max("x"), m=Count()), {"n": Sum("m")}, Edge.PASS),
        # The rows lack the fields that say which of them is the last one.
        (ReduceBolt("word", n=Last("x", by="x")), {"n": Last("n", by="n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Max("x")), {"n": Last("n", by="n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Last("x", by="x")), {"n": Max("n")}, Edge.EXCHANGE),
        (ReduceBolt("word", n=custom(max, 0, field="x")), {"n": custom(max, 0)}, Edge.EXCHANGE),
        (ReduceBolt("word", n=Last("x", by="x"), m=Count()), {"n": Sum("m")}, Edge.PASS),
    ],
    ids=shown,
)
def test_tuples_stay_where_they_are_only_when_the_state_merges_rows_as_the_bolt_would_have(
    reduce: ReduceBolt, reducers: dict[str, Reducer], edge: Edge
) -> None:
    assert with_state(reduce, words_state(), **reducers) is edge


def test_a_merging_bolt_that_feeds_another_bolt_gets_whole_keys() -> None:
    plan = compiled(chain(LOG, Split()))
    assert edges(plan) == [Edge.EXCHANGE, Edge.PASS, Edge.PASS]
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG, "word string")), 2)
    builder.set_bolt("count", CountBolt("word"), 2).fields_grouping("lines", "word")
    builder.set_bolt("pass", Passing(), 2).local_or_shuffle_grouping("count")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("pass", "word")
    assert edges(compiled(builder.build()))[0] is Edge.EXCHANGE


def test_a_fresh_instance_for_each_task() -> None:
    plan = compiled(word_count(LOG))
    assert plan.bolts[1].create() is not plan.bolts[1].create()
    assert plan.codec.meta_type is Range


class Holding(Passing):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_bolt_that_cannot_be_shipped_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        TopologyError,
        match=r"component 'b1' cannot be shipped to executors: .*lock.*; keep connections, locks and open "
        r"files out of its constructor and open them in prepare\(\)",
    ):
        chain(LOG, Split(), Holding())


class Connection:
    def __reduce__(self) -> Any:
        raise TypeError("a connection stays here")


class Opening(Passing):
    def __init__(self) -> None:
        self.connection = Connection()


def test_what_only_the_engines_pickling_can_tell_is_refused_before_the_run() -> None:
    topology: Topology = chain(LOG, Split(), Opening())
    with pytest.raises(TopologyError, match=r"'b1' cannot be shipped .*a connection stays here; keep conn"):
        compile_topology(topology, CONTEXT, "run")


# --- how wide a batch is -----------------------------------------------------------------------------


@each(
    ("records", "partitions", "width"),
    [
        (0, 0, 1),
        (1_000, 4, 1),
        (10_000, 4, 2),
        (10_000, 1, 1),
        (100_000, 3, 8),
        (100_000, 1, 8),
        (100_000, 64, 8),
        (None, 4, 4),
        (None, 1, 1),
    ],
)
def test_a_batch_gets_as_many_spark_tasks_as_it_is_worth(
    records: int | None, partitions: int, width: int
) -> None:
    assert batch_width(records, partitions, max_width=8) == width


@each(
    ("records", "record_seconds", "width"),
    [(10_000, 3e-6, 1), (100_000, 1.2e-6, 3), (10, 0.01, 2), (1_000, 0.01, 8), (500_000, 0.0, 1)],
)
def test_what_records_have_taken_says_what_a_batch_is_worth(
    records: int, record_seconds: float, width: int
) -> None:
    assert batch_width(records, 4, 8, record_seconds) == width


@pytest.mark.parametrize(("records", "width"), [(10_000, 1), (10_001, 2)])
def test_a_first_batch_that_a_resident_can_do_in_a_moment_gets_one_task(records: int, width: int) -> None:
    assert batch_width(records, 4, 8, can_stay=True) == width


def test_large_and_late_batches_say_what_a_record_takes() -> None:
    cost = RecordCost()
    assert cost.seconds is None
    for _ in range(50):
        cost.add(10, 0.01)
        cost.add(0, 0.5)  # a batch without records takes time too, but must not count
    assert cost.seconds == pytest.approx(0.001)
    cost.add(10_000, 0.02)
    assert cost.seconds == pytest.approx(5e-6, rel=0.5)
    for _ in range(100):
        cost.add(10, 1.0)
    assert cost.seconds == pytest.approx(0.1, rel=0.01)


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 200_000), max_size=9),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 9)),
    st.integers(1, 4),
)
def test_every_partition_is_assigned_once(
    sizes: dict[str, int], slots: int, width: int | None, split_slots: int
) -> None:
    metas = BatchMetas({name: Range(5, 5 + size) for name, size in sizes.items()})
    codec: MetaCodec[Any] = MetaCodec(Range)
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG)), slots)
    builder.set_bolt("split", Split(), split_slots).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("split", "word")
    plan = compiled(builder.build())
    order = work_order(attempt(1), metas, plan, {}, width=width)
    assert 1 <= order.width <= max(slots, split_slots)
    assert len(order.assignments) == lay_out(plan, order.width).stages[0].width <= slots
    assigned = [name for part in order.assignments for name in part]
    assert sorted(assigned) == sorted(sizes)
    for part in order.assignments:
        assert all(part[name] == codec.encode_meta(metas.partitions[name]) for name in part)


def test_tasks_stay_for_plans_whose_small_batches_have_one_stage() -> None:
    plan = compiled(word_count(LOG, parallelism=2))
    assert [resident_tasks(plan, asked) for asked in (None, 0, 3)] == [1, 0, 3]
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(LOG)))
    builder.set_committer_bolt("commit", CommitCount()).shuffle_grouping("lines")
    with_commit_phase = compiled(builder.build())
    assert [resident_tasks(with_commit_phase, asked) for asked in (None, 0, 3)] == [0, 0, 0]


def test_the_largest_partitions_are_spread_first() -> None:
    metas = BatchMetas({name: Range(0, size) for name, size in {"a": 90, "b": 50, "c": 40, "d": 1}.items()})
    plan = compiled(word_count(LOG, parallelism=2))
    order = work_order(attempt(1), metas, plan, {}, width=2)
    assert [sorted(part) for part in order.assignments] == [["a", "d"], ["b", "c"]]
