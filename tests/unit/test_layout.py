"""Graphs laid out in stages: what shares a Spark task, what is carried on, what waits for the commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.bolts import CountByHand, Passing, Split, chain, compiled, words_state
from support.inmemory import MemoryLog, MemorySource

from txstream.api.bolts import BatchBolt, Committer, DataFrameBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Phase
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import Layout, lay_out, max_width

LOG = MemoryLog({})


class Committing(CountByHand, Committer):
    """A committer that a user wrote."""


class Upper(DataFrameBolt):
    output = "word string, n bigint"


def graph(parallelism: int = 4) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder(
        "t", "lines", OpaqueSpout(MemorySource(LOG, "word string")), parallelism
    )


def rows(layout: Layout) -> list[tuple[str, int, list[str]]]:
    """Return phase, width and components of each stage; components that Spark computes are in brackets."""
    return [
        (
            stage.phase,
            stage.width,
            [bolt.id for bolt in stage.bolts] + [f"[{bolt.id}]" for bolt in stage.dataframes],
        )
        for stage in layout.stages
    ]


def storms_example() -> ExecutionPlan:
    """A -> B (committer) -> C -> D (committer), and A -> C."""
    builder = graph()
    builder.set_bolt("a", CountByHand(), 4).fields_grouping("lines", "word")
    builder.set_committer_bolt("b", CountByHand(), 4).fields_grouping("a", "word")
    builder.set_bolt("c", CountByHand(), 4).fields_grouping("b", "word").fields_grouping("a", "word")
    builder.set_committer_bolt("d", CountByHand(), 2).fields_grouping("c", "word")
    return compiled(builder.build())


def test_committers_and_what_is_below_them_wait_for_the_commit() -> None:
    plan = storms_example()
    assert [bolt.id for bolt in plan.bolts if bolt.in_commit] == ["b", "c", "d"]
    assert rows(lay_out(plan, 4)) == [
        ("process", 4, []),
        ("process", 4, ["a"]),
        ("commit", 4, ["b"]),
        ("commit", 4, ["c"]),
        ("commit", 2, ["d"]),
    ]
    assert rows(lay_out(plan, 1)) == [("process", 1, ["a"]), ("commit", 1, ["b", "c", "d"])]
    assert [stage.relays for stage in lay_out(plan, 4).stages] == [False, False, True, False, False]


def test_a_state_below_a_committer_folds_in_the_commit_phase_and_others_do_not() -> None:
    builder = graph()
    builder.set_bolt("own", Committing(), 4).fields_grouping("lines", "word")
    builder.set_bolt("below", SqlStateBolt(words_state("b"))).fields_grouping("own", "word")
    builder.set_bolt("beside", SqlStateBolt(words_state("c"), n=Count())).fields_grouping("lines", "word")
    plan = compiled(builder.build())
    assert rows(lay_out(plan, 4)) == [("process", 4, ["beside"]), ("commit", 4, ["own", "below"])]


def test_a_diamond_meets_behind_its_longer_side() -> None:
    builder = graph()
    builder.set_bolt("left", Passing(), 4).local_or_shuffle_grouping("lines")
    builder.set_bolt("right", CountByHand(), 4).fields_grouping("lines", "word")
    meet = builder.set_bolt("meet", CountByHand(), 4)
    meet.local_or_shuffle_grouping("left").local_or_shuffle_grouping("right")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("meet", "word")
    plan = compiled(builder.build())
    assert rows(lay_out(plan, 4)) == [("process", 4, ["left"]), ("process", 4, ["right", "meet", "store"])]


def test_tasks_that_pass_tuples_in_place_are_spread_alike_and_others_are_not_held_back() -> None:
    builder = graph(parallelism=4)
    builder.set_bolt("wide", CountByHand(), 4).fields_grouping("lines", "word")
    builder.set_bolt("narrow", Passing(), 2).local_or_shuffle_grouping("wide").set_num_tasks(5)
    builder.set_bolt("other", CountByHand(), 3).fields_grouping("lines", "word")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("narrow", "word")
    builder.set_bolt("more", SqlStateBolt(words_state("more"))).fields_grouping("other", "word")
    plan = compiled(builder.build())
    stage = lay_out(plan, 4).stages[1]
    assert dict(stage.hosts) == {"wide": 2, "narrow": 2, "other": 3}
    assert stage.width == 3
    assert [list(stage.hosted(plan.bolt("narrow"), task)) for task in range(3)] == [[0, 2, 4], [1, 3], []]
    assert [list(stage.hosted(plan.bolt("store"), task)) for task in range(3)] == [[0], [0], [0]]


def test_slots_that_were_changed_change_where_tasks_live_and_nothing_else() -> None:
    plan = storms_example()
    before, after = lay_out(plan, 4), lay_out(plan, 4, {"c": 1})
    assert rows(after)[3] == ("commit", 1, ["c"])
    assert rows(before)[:3] == rows(after)[:3]
    assert list(after.home["c"].hosted(plan.bolt("c"), 0)) == [0, 1, 2, 3]
    assert max_width(plan, {"c": 7}) == 7


def test_a_plan_is_laid_out_once_and_a_changed_plan_by_itself() -> None:
    plan = storms_example()
    assert lay_out(plan, 2, {}) is lay_out(plan, 2)
    assert lay_out(plan, 2) is not lay_out(plan, 3)
    changed = replace(plan, bolts=plan.bolts[:1])
    assert len(lay_out(changed, 2).stages) < len(lay_out(plan, 2).stages)


def test_what_spark_computes_has_a_stage_of_its_own_even_in_a_small_batch() -> None:
    builder = graph()
    builder.set_bolt("count", CountByHand(), 2).fields_grouping("lines", "word")
    builder.set_bolt("upper", Upper()).shuffle_grouping("count")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("upper", "word")
    builder.set_bolt("beside", SqlStateBolt(words_state("b"))).fields_grouping("count", "word")
    plan = compiled(builder.build())
    assert rows(lay_out(plan, 1)) == [
        ("process", 1, ["count", "beside"]),
        ("process", 1, ["[upper]"]),
        ("process", 1, ["store"]),
    ]


def test_a_long_chain_in_place_is_one_stage() -> None:
    builder = graph()
    above = "lines"
    for position in range(8):
        builder.set_bolt(f"b{position}", Passing(), 4).local_or_shuffle_grouping(above)
        above = f"b{position}"
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping(above, "word")
    assert len(lay_out(compiled(builder.build()), 4).stages) == 1


def test_every_exchange_of_a_chain_is_a_stage() -> None:
    plan = compiled(chain(LOG, Split(), Passing(), Passing()))
    assert [stage.position for stage in lay_out(plan, 2).stages] == [0, 1, 2, 3]
    assert all(stage.phase is Phase.PROCESS for stage in lay_out(plan, 2).stages)


KINDS = ("shuffle", "local_or_shuffle", "fields", "all", "global", "none")


class Any1(BatchBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["word"],))


@st.composite
def graphs(draw: Any) -> tuple[ExecutionPlan, int]:
    builder = graph(draw(st.integers(1, 4)))
    names = ["lines"]
    for position in range(draw(st.integers(1, 7))):
        name = f"b{position}"
        committer = draw(st.booleans()) and draw(st.booleans())
        add = builder.set_committer_bolt if committer else builder.set_bolt
        slots = draw(st.integers(1, 4))
        bolt = add(name, Any1(), slots).set_num_tasks(slots + draw(st.integers(0, 3)))
        for source in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            kind = draw(st.sampled_from(KINDS))
            group = getattr(bolt, f"{kind}_grouping")
            _ = group(source, "word") if kind == "fields" else group(source)
        names.append(name)
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping(names[-1])
    return compiled(builder.build()), draw(st.integers(1, 5))


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_the_invariants_of_any_layout(drawn: tuple[ExecutionPlan, int]) -> None:
    plan, width = drawn
    layout = lay_out(plan, width)
    homes = {bolt.id: layout.home[bolt.id] for bolt in plan.bolts}
    placed = [bolt.id for stage in layout.stages for bolt in stage.bolts]
    assert sorted(placed) == sorted(bolt.id for bolt in plan.bolts), "in exactly one stage"
    for stage in layout.stages:
        assert stage.width <= width
        for bolt in stage.bolts:
            assert (stage.phase is Phase.COMMIT) == bolt.in_commit
            if not bolt.folds_anywhere:
                tasks = [task for at in range(stage.width) for task in stage.hosted(bolt, at)]
                assert sorted(tasks) == list(range(bolt.tasks)), "every task lives in exactly one Spark task"
                assert all(task in stage.hosted(bolt, stage.spark_task_of(bolt, task)) for task in tasks)
    order = [plan.spout_id, *placed]
    for bolt in plan.bolts:
        for given_ in bolt.inputs:
            source = layout.stages[0] if given_.source == plan.spout_id else homes[given_.source]
            assert source.position <= homes[bolt.id].position, "tuples only move to later stages"
            assert order.index(given_.source) < order.index(bolt.id)
            if source is homes[bolt.id] and not bolt.folds_anywhere:
                for at in range(source.hosts[given_.source]):
                    if given_.edge.value == "pass":
                        assert source.hosted(bolt, at), "whoever has tuples has a task to take them"


@pytest.mark.parametrize("width", [1, 3])
def test_an_unknown_component_has_no_home(width: int) -> None:
    with pytest.raises(KeyError, match="nobody"):
        lay_out(storms_example(), width).home["nobody"]
