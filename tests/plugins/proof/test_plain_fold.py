"""The plain fold: what it computes, that mistakes of the product are not in it, and what it cannot decide."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from support import simulated
from support.lists import each
from support.simulated import LINES, counts, tops

from txstream import (
    BasicBolt,
    BatchBolt,
    BatchFailedError,
    BoltError,
    Count,
    CountBolt,
    Last,
    Max,
    Min,
    NonTransactionalSpout,
    OpaqueSpout,
    ReduceBolt,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    UsageError,
    custom,
)
from txstream.api.rows import to_record_batch
from txstream.engine.batch.collector import Outbox
from txstream.examples import accounts
from txstream.plugins.proof.simulation.plain_fold import plain_fold
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.schedules import Schedule, outcome
from txstream.plugins.proof.simulation.world import WrongResultError, run_without_faults, truth_of
from txstream.plugins.proof.stores.merging import RowRules
from txstream.spouts.memory import MemorySpout
from txstream.state.commit_protocol import TopologyStates
from txstream.testing import SimulationError, simulate

pytestmark = pytest.mark.usefixtures("deterministic")

Rows = list[tuple[Any, ...]]


def one_bolt(fields: str, given: Rows, state: SqlState, bolt: Any = None, **reducers: Any) -> Topology:
    """Rows into a table, through a bolt if one is given."""
    builder = TransactionalTopologyBuilder("t", "rows", TransactionalSpout(MemorySpout(fields, {"p": given})))
    above = "rows"
    if bolt is not None:
        builder.set_bolt("bolt", bolt, 2).fields_grouping("rows", state.key_names[0])
        above = "bolt"
    builder.set_bolt("store", SqlStateBolt(state, **reducers)).fields_grouping(above, state.key_names[0])
    return builder.build()


def folded(topology: Topology, size: int = 100) -> Any:
    rows = Program(topology).rows
    most = max(batch.num_rows for batch in rows.values())
    return plain_fold(
        topology,
        [{name: some.slice(at, size) for name, some in rows.items()} for at in range(0, most, size)],
    )


# --- what it computes --------------------------------------------------------------------------------------


def test_words_are_counted_as_a_counter_counts_them() -> None:
    words = Counter(word for rows in LINES.values() for line in rows for word in line.split())
    found = folded(counts(committer=simulated.Adds))
    assert found["words"] == found["kept"] == {(word,): (n,) for word, n in words.items()}
    assert found["by_line"][("a",)] == (1,)


NUMBERS = "k string, n bigint, at bigint, price decimal(38,2)"
ROWS: Rows = [
    ("a", 6, 2, Decimal("0.10")),
    ("a", None, 3, None),
    ("a", 4, 1, Decimal("99999999999999999999999999999999999.05")),
    ("b", None, 1, None),
]


@pytest.mark.parametrize("size", [1, 100])
def test_each_reducer_is_what_its_documentation_says(size: int) -> None:
    state = SqlState(
        "t",
        key="k string",
        value="all bigint, n bigint, least bigint, most bigint, last bigint, ors bigint, price decimal(38,2)",
    )
    reducers = {
        "all": Count(),
        "n": Count("n"),
        "least": Min("n"),
        "most": Max("n"),
        "last": Last("n", by="at"),
        "ors": custom(operator.or_, 0, field="n"),
        "price": Sum("price"),
    }
    found = folded(one_bolt(NUMBERS, ROWS, state, **reducers), size)
    # By event order 6 is the last of "a"; of two batches, the later one is.
    last = 4 if size == 1 else 6
    total = Decimal("99999999999999999999999999999999999.15")
    assert found["t"] == {
        ("a",): (3, 2, 4, 6, last, 6, total),
        ("b",): (1, 0, None, None, None, 0, Decimal("0.00")),
    }


class Twice(BatchBolt):
    """Needs a second attempt for every batch, and emits when the batch ends."""

    output = "k string, n bigint"

    def prepare(self, context: Any, collector: Any, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.rows: Rows = []

    def execute(self, tup: Any) -> None:
        self.rows.append((tup["k"], tup["n"]))

    def finish_batch(self) -> None:
        if self.context.attempt.attempt < 1 << 32:
            raise BatchFailedError("once more")
        for row in self.rows:
            self.collector.emit(row)


def test_a_bolt_that_asks_for_a_replay_gets_one() -> None:
    state = SqlState("t", key="k string", value="n bigint")
    rows: Rows = [("a", 1), ("b", 2), ("a", 3)]
    assert folded(one_bolt("k string, n bigint", rows, state, Twice()))["t"] == {("a",): (4,), ("b",): (2,)}


@pytest.mark.parametrize("bolt", [CountBolt("k"), ReduceBolt("k", n=Count("n"))])
def test_a_reduce_bolt_is_reduced_in_python(bolt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = SqlState("t", key="k string", value="n bigint")
    topology = one_bolt("k string, n bigint", [("a", 1), ("a", 1), ("b", 2)], state, bolt)
    monkeypatch.setattr("txstream.state.folding.Fold.add", None)  # the product's fold is not called
    assert folded(topology)["t"] == {("a",): (2,), ("b",): (1,)}


class Sends(BasicBolt):
    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("k string", "chosen", direct=True)
        declarer.declare("k string", "other")

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit_direct(1, (tup["k"],), "chosen")
        collector.emit((tup["k"],), "other")


class Tells(BatchBolt):
    output = "task bigint"

    def execute(self, tup: Any) -> None:
        self.collector.emit((self.context.task_index,))


@each(
    ("stream", "grouping", "expected"),
    [
        ("chosen", "direct_grouping", {(1,): (4,)}),
        ("other", "all_grouping", {(0,): (4,), (1,): (4,), (2,): (4,)}),
        ("other", "global_grouping", {(0,): (4,)}),
    ],
)
def test_groupings_choose_tasks(stream: str, grouping: str, expected: Any) -> None:
    spout = OpaqueSpout(MemorySpout("k string", {"p": ["a", "b", "c", "a"]}))
    builder = TransactionalTopologyBuilder("t", "rows", spout)
    builder.set_bolt("sends", Sends()).shuffle_grouping("rows")
    getattr(builder.set_bolt("tells", Tells(), 3), grouping)("sends", stream)
    state = SqlState("t", key="task bigint", value="n bigint")
    builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("tells", "task")
    topology = builder.build()
    assert folded(topology)["t"] == expected
    assert run_without_faults(Program(topology))["t"] == expected


def test_it_agrees_with_a_run_without_faults_where_bolts_read_states() -> None:
    rows = {"p": [("anna", 10), ("anna", -20), ("anna", 5), ("bob", -1)]}
    program = Program(accounts.topology(), rows)
    found = truth_of(program).tables(list)
    assert found == run_without_faults(program)
    assert found == {
        "accounts": {("anna",): (15, 2)},
        "refused": {("anna",): (-20, 1), ("bob",): (-1, 1)},
    }


class Breaks(BasicBolt):
    output = "k string"

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup["k"].upper(),))


def test_a_bolt_that_raises_is_named() -> None:
    state = SqlState("t", key="k string", value="n bigint")
    topology = one_bolt("k string", [(None,)], state, Breaks(), n=Count())
    with pytest.raises(BoltError, match="component 'bolt' raised AttributeError"):
        plain_fold(topology, [{"p": to_record_batch([(None,)], topology.components[0].streams["default"])}])


# --- the product's mistakes are not in it ------------------------------------------------------------------

_end_commit = TopologyStates.end_commit
_subscribers = Outbox._subscribers
_written = RowRules.written


def _end_without_deltas(states: TopologyStates, commit: Any, **options: Any) -> None:
    _end_commit(states, replace(commit, deltas={}), **options)


def _first_delta_twice(rules: RowRules, stored: Any, delta: Any, *more: Any) -> Any:
    return _written(rules, stored, delta if stored else tuple(2 * one for one in delta), *more)


def _one_edge_less(outbox: Outbox, source: str, stream: str) -> Any:
    return [one for one in _subscribers(outbox, source, stream) if one.bolt.id != "by_line"]


@pytest.mark.parametrize(
    ("of", "name", "wrong"),
    [(RowRules, "written", _first_delta_twice), (Outbox, "_subscribers", _one_edge_less)],
    ids=["a reducer", "an edge"],
)
def test_what_every_run_has_wrong_is_found_by_every_schedule(
    monkeypatch: pytest.MonkeyPatch, of: type, name: str, wrong: Any
) -> None:
    monkeypatch.setattr(of, name, wrong)
    program = Program(counts(committer=simulated.Adds))
    for seed in range(5):
        error = outcome(Schedule(seed).world(program, truth_of(program)))
        assert isinstance(error, WrongResultError), seed
        assert "' is not what a plain fold of the rows leaves" in str(error)


def test_deltas_that_are_lost_where_bolts_had_begun_are_found_before_any_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TopologyStates, "end_commit", _end_without_deltas)
    with pytest.raises(SimulationError, match=r"schedule without faults fails: .* table 'words'") as raised:
        simulate(counts(committer=simulated.Adds), schedules=1)
    assert raised.value.report.schedules == 0


def test_what_is_expected_overrides_the_fold() -> None:
    words = folded(counts())["words"]
    assert simulate(counts(), schedules=2, expected={"words": words}).exact
    plain = {key[0]: value[0] for key, value in words.items()}
    assert simulate(counts(), schedules=2, expected={"words": plain}).exact
    with pytest.raises(SimulationError, match="table 'words' is not what is expected: 'a' is 7, not 8"):
        simulate(counts(), schedules=2, expected={"words": {**plain, "a": 8}})
    with pytest.raises(UsageError, match="expected has a table 'word', which the topology does not fill"):
        simulate(counts(), expected={"word": {}})


# --- what depends on how batches are cut -------------------------------------------------------------------


def test_a_top_word_per_batch_is_exact_for_the_batches_that_were_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report = simulate(tops(), schedules=20)
    assert report.exact
    (note,) = [line for line in report.lines() if "depends on how batches are cut" in line]
    assert "table 'tops'" in note
    monkeypatch.setattr(RowRules, "written", _first_delta_twice)
    with pytest.raises(SimulationError, match="table 'tops' is not what a plain fold"):
        simulate(tops(), schedules=20)


def test_what_no_fold_decides_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'tops': it depends on which task .* a shuffle may choose any"):
        simulate(tops(tasks=3), schedules=1)
    with pytest.raises(UsageError, match=r"depends on how batches are cut .* give expected="):
        simulate(tops(NonTransactionalSpout), schedules=1)
    assert simulate(counts(), schedules=1, expected={}).exact
