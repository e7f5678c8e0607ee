"""Comparisons: schedules and when their faults come, each topology's own names, and the figures."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.lists import each
from support.simulated import Guesses, counts

from txstream import (
    Count,
    Decode,
    KafkaSource,
    Max,
    OpaqueSpout,
    Settings,
    SpoutContext,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Sum,
    TransactionalTopologyBuilder,
    UsageError,
)
from txstream.api.spouts import Unavailable
from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import EmitBatch
from txstream.core.errors import BatchFailedError, PartitionUnavailableError
from txstream.core.fault_points import CrashError, Point
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.examples import accounts, word_count
from txstream.plugins.compare.attempts import Made, Timeline
from txstream.plugins.compare.command import _topologies
from txstream.plugins.compare.report import (
    Column,
    Tables,
    columns_of,
    difference,
    figures,
    in_a_sentence,
    moved_records,
    nothing_shown,
    side_by_side,
    stalls,
    total,
    true_totals,
    wrong_rows,
)
from txstream.plugins.compare.run import Outcome, Rows
from txstream.plugins.compare.schedule import SCHEDULES, Fault, Injector, load_schedule
from txstream.plugins.compare.truth import _decoded, _OnlyTheSourceKnowsError, _row, folded_truth
from txstream.plugins.notebook.attempt_chart import Fate
from txstream.plugins.proof.simulation.determinism import NotDeterministicError
from txstream.plugins.proof.simulation.variant import (
    clipped,
    fixed_end,
    is_reached,
    under_own_names,
    with_batches_of,
)
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.memory import MemoryRange, MemorySpout


def attempt(txid: int, number: int = 1) -> TransactionAttempt:
    return TransactionAttempt(Txid(txid), AttemptId(number))


# --- schedules --------------------------------------------------------------------------------------------


def test_a_schedule_has_a_name_or_is_a_file(tmp_path: Path) -> None:
    assert load_schedule("none") == ()
    assert [fault.fault for fault in load_schedule("all")] == ["batch", "partition", "crash"]
    own = [
        {"fault": "partition", "txid": 2, "partition": "lines/3", "seconds": 0.5},
        {"fault": "crash", "txid": 4},
    ]
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(own))
    assert load_schedule(str(path)) == (Fault("partition", 2, "lines/3", seconds=0.5), Fault("crash", 4))


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ("{", "faults.json: "),
        ({"fault": "batch"}, "write a list, such as"),
        (
            [{"fault": "flood", "txid": 1}],
            r"entry 1 is .* an object with fault \(batch, partition, crash\)",
        ),
        ([{"fault": "batch", "txid": 1}, {"fault": "batch", "when": 1}], "entry 2 is "),
        ([{"fault": "batch"}], "txid is a number"),
        ([{"fault": "batch", "txid": 0}], "txid is 0; it must be a number from 1 on"),
        ([{"fault": "partition", "txid": 1, "seconds": True}], "seconds is True"),
        ([{"fault": "partition", "txid": 1, "partition": 3}], "partition a name"),
    ],
)
def test_a_schedule_that_is_none_is_told_in_a_sentence(tmp_path: Path, document: object, told: str) -> None:
    path = tmp_path / "faults.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(UsageError, match=told):
        load_schedule(str(path))
    with pytest.raises(UsageError, match="it is none, batch, partition, crash, all or a JSON file"):
        load_schedule("elsewhere.json")


def test_faults_come_at_their_txid_and_once() -> None:
    injector = Injector([Fault("batch", 2), Fault("crash", 3), Fault("crash", 9)])
    injector.emitting(attempt(2), {"p0": MemoryRange(0, 1)})
    injector.emitted(attempt(1))
    with pytest.raises(BatchFailedError):
        injector.emitted(attempt(2))
    injector.emitted(attempt(2, 2))
    injector.reached(Point.BEFORE_COMMIT, Txid(3), {})
    with pytest.raises(CrashError):
        injector.reached(Point.AFTER_COMMIT, Txid(3), {})
    injector.reached(Point.AFTER_COMMIT, Txid(3), {})
    assert [fault for fault, _ in injector.happened] == [Fault("batch", 2), Fault("crash", 3)]
    assert injector.never == (Fault("crash", 9),)


def test_a_partition_is_away_for_so_many_batches_or_for_whoever_waits_for_so_long() -> None:
    now = [100.0]
    injector = Injector([Fault("partition", 5, batches=2, seconds=3.0)], clock=lambda: now[0])
    metas = {"t/10": MemoryRange(40, 50), "t/2": MemoryRange(40, 50)}
    injector.emitting(attempt(4), metas)
    with pytest.raises(PartitionUnavailableError, match="partition 't/2' cannot be read"):
        injector.emitting(attempt(5), metas)
    assert injector.unplannable(metas) == {}  # planned after the attempt that is about to fail

    kept = {"t/2": MemoryRange(30, 40)}
    behind = [{**kept, "t/10": MemoryRange(end - 10, end)} for end in (40, 50, 60)]
    for last in (behind[0], behind[1], behind[0]):
        now[0] += 0.5
        assert list(injector.unplannable(last)) == ["t/2"]
    assert injector.unplannable(behind[2]) == {}
    assert injector.unreadable() == {}
    assert (injector.outages[0].began, injector.outages[0].ended) == (100.0, 101.5)

    waits = Injector([Fault("partition", 5, "t/9", seconds=3.0)], clock=lambda: now[0])
    waits.emitting(attempt(5), metas)
    assert list(waits.unplannable(behind[0])) == ["t/9"]
    now[0] = 104.4
    assert list(waits.unreadable()) == ["t/9"]
    now[0] = 104.5
    assert waits.unreadable() == {}

    idle = Injector([Fault("partition", 5, seconds=3.0)], clock=lambda: now[0])
    with pytest.raises(PartitionUnavailableError):
        idle.emitting(attempt(5), metas)
    assert list(idle.unplannable(behind[0])) == ["t/2"]
    now[0] = 109.0
    assert idle.unplannable(behind[0]) == {}


# --- names and ends ---------------------------------------------------------------------------------------


def test_a_topology_has_an_id_and_tables_of_its_own_and_the_given_one_stays_as_it_is() -> None:
    given = word_count.topology("lines")
    own = with_batches_of(under_own_names(given, "compare-x", "cmp_"), 10)
    assert (own.id, own.spout.max_batch_records) == ("compare-x", 10)
    assert [bolt.state.table for bolt, _ in own.states] == ["cmp_word_count"]
    assert own.component("store").instance is own.states[0][0]
    assert (given.id, given.states[0][0].state.table) == ("word-count", "word_count")
    assert given.spout.max_batch_records == 500_000
    assert [use.state.table for use in under_own_names(accounts.topology(), "a", "cmp_").map_states] == [
        f"cmp_{use.state.table}" for use in accounts.topology().map_states
    ]


def test_windows_that_set_late_records_aside_are_refused() -> None:
    given: Any = SimpleNamespace(target="txstream.examples.windows:topology", parameters=["topic=clicks"])
    with pytest.raises(UsageError, match=r"has late='dead-letter',.*compare it with late='amend'"):
        _topologies(given)
    given.parameters += ["late=amend"]
    assert [one.semantics for one in _topologies(given).values()] == [
        *("opaque", "transactional", "non-transactional")
    ]


def test_a_table_with_keep_is_refused() -> None:
    given: Any = SimpleNamespace(
        target="support.kept_orders:topology", parameters=["topic=orders", "keep=90d"]
    )
    with pytest.raises(UsageError, match=r"table 'orders' has keep,.*compare the topology without keep"):
        _topologies(given)


def test_all_runs_end_at_the_same_place_however_the_log_grows() -> None:
    with MemorySpout("n int", {"a": [*range(50)], "b": [*range(5)]}, max_records_per_partition=4) as spout:
        source = spout.coordinator(SpoutContext("t", "numbers", {}))
        assert {name: meta.end for name, meta in fixed_end(source, 1_000).items()} == {"a": 50, "b": 5}
        end = fixed_end(source, 20)
        assert sum(meta.end for meta in end.values()) == 20
        spout.append("c", 1, 2)
        plan = source.plan({"a": MemoryRange(0, end["a"].end - 1)}, 100)
        assert clipped(plan, end) == {
            "a": MemoryRange(end["a"].end - 1, end["a"].end),
            "b": MemoryRange(0, 4),
        }
        assert clipped({"b": Unavailable("away")}, end) == {"b": Unavailable("away")}
        longer, shorter = KafkaRange(2, 9, "id", leader_epoch=4), KafkaRange(0, 5, "id", leader_epoch=1)
        assert clipped({"t/0": longer}, {"t/0": shorter}) == {"t/0": KafkaRange(2, 5, "id")}
        assert not is_reached({"a": end["a"]}, end)
        assert is_reached(end, end)
        spout.hide("b")
        with pytest.raises(PartitionUnavailableError, match="'b'"):
            fixed_end(source, 20)


# --- what is found ----------------------------------------------------------------------------------------


def test_a_difference_is_by_how_much_numbers_of_one_column_are_too_small_and_too_great() -> None:
    truth: Tables = {"t": {("a",): (5, "x"), ("b",): (2, "y"), ("c",): (1, "z")}, "u": {(1,): (0.1 + 0.2,)}}
    table: Rows = {("a",): (9, "x"), ("b",): (1, "y"), ("d",): (7, "w")}
    tables = {"t": table, "u": {(1,): (0.3,)}}
    number, text = Column("t", "number", 0, added_up=True), Column("t", "text", 1, added_up=False)
    fraction = Column("u", "fraction", 0, added_up=True)
    found = difference(truth, tables, number)
    assert (found.lost, found.doubled, found.wrong_rows) == (2, 11, 4)
    assert difference(truth, tables, text).wrong_rows == 2
    assert wrong_rows(truth, tables, [number, text, fraction]) == 4
    assert wrong_rows(truth, truth, [number, text, fraction]) == 0
    zeros: Tables = {"t": {("a",): (0, "x")}}
    assert difference(zeros, {}, number).wrong_rows == 1  # a row that is missing is no row of zeros


def test_rows_as_they_are_are_counted_and_their_values_are_not_summed() -> None:
    table = SqlTable("orders", "amount bigint, note string", key="id int")
    builder = TransactionalTopologyBuilder(
        "rows", "orders", OpaqueSpout(MemorySpout("id int, amount bigint, note string"))
    )
    builder.set_bolt("store", SqlAppendBolt(table)).local_or_shuffle_grouping("orders")
    columns = columns_of(builder.build())
    rows, amount, note = columns
    assert [str(one) for one in columns] == ["orders (rows)", "orders.amount", "orders.note"]
    truth: Tables = {"orders": {(1,): (10, "a"), (2,): (20, "b"), (3,): (30, "c"), (4,): (40, "d")}}
    # The row 1 is lost, 2 is there three times, 3 has another value, and nobody sent a 5.
    came: Rows = {(2,): (20, "b"), (2, "again 2"): (20, "b"), (2, "again 3"): (20, "b"), (3,): (31, "c")}
    came |= {(4,): (40, "d"), (5,): (50, "e")}
    found = difference(truth, {"orders": came}, rows)
    assert (found.lost, found.doubled, found.wrong_rows) == (1, 3, 4)
    assert difference(truth, {"orders": came}, amount).wrong_rows == 1
    assert difference(truth, {"orders": came}, note).wrong_rows == 0
    assert wrong_rows(truth, {"orders": came}, columns) == 5
    assert true_totals(truth, columns) == {"orders (rows)": 4}
    outcome = Outcome(Timeline(), Injector(()), {"orders": came})
    outcome.timeline.made.append(made(1, Fate.COMMITTED, a=(0, 4)))
    assert in_a_sentence(figures(outcome, truth, columns)) == (
        "1 lost in orders (rows); 3 doubled in orders (rows)"
    )
    shown = dict(side_by_side({"opaque": figures(outcome, truth, columns)}))
    assert [shown[f"orders (rows){more}"] for more in ("", ", lost", ", doubled")] == [[6], [1], [3]]


def test_sums_are_added_up_by_column_and_a_maximum_is_not_added_to_anything() -> None:
    state = SqlState("t", key="k string", value="count bigint, sum double, max double")
    bolt = SqlStateBolt(state, count=Count(), sum=Sum("x"), max=Max("x"))
    builder = TransactionalTopologyBuilder(
        "columns", "numbers", OpaqueSpout(MemorySpout("k string, x double"))
    )
    builder.set_committer_bolt("store", bolt).global_grouping("numbers")
    topology = builder.build()
    columns = columns_of(topology)
    assert [(str(one), one.added_up) for one in columns] == [
        ("t.count", True),
        ("t.sum", True),
        ("t.max", False),
    ]
    truth: Tables = {"t": {("a",): (2, 0.1, 7.0), ("b",): (1, 0.2, 9.0)}}
    assert [total(truth, one) for one in columns[:2]] == [3, 0.3]
    assert true_totals(truth, columns) == {"t.count": 3, "t.sum": 0.3}
    outcome = Outcome(Timeline(), Injector(()), {"t": {("a",): (3, 0.1, 8.0), ("b",): (1, 0.2, 9.0)}})
    outcome.timeline.made.append(made(1, Fate.COMMITTED, a=(0, 3)))
    found = figures(outcome, truth, columns)
    assert found["columns"]["t.count"] == {"total": 4, "lost": 0, "doubled": 1, "wrong_rows": 1}
    assert found["columns"]["t.max"] == {"wrong_rows": 1}
    shown = dict(side_by_side({"opaque": found}))
    assert list(shown)[:9] == [
        "exact",
        *("t.count", "t.count, lost", "t.count, doubled"),
        *("t.sum", "t.sum, lost", "t.sum, doubled"),
        "t.max, rows that differ",
        "rows that differ",
    ]
    assert "total" not in found
    assert in_a_sentence(found) == "1 doubled in t.count"
    outcome.tables["t"] = {("a",): (2, 0.1, 8.0), ("b",): (1, 0.2, 9.0)}
    assert in_a_sentence(figures(outcome, truth, columns)) == "1 row differs"


def made(txid: int, fate: Fate, began: float = 0.0, **ranges: tuple[int, int]) -> Made:
    return Made(attempt(txid), ranges, began, began + 1, fate)


def test_records_that_were_committed_in_another_txid_are_counted_once() -> None:
    history = [
        made(1, Fate.FAILED, a=(0, 10), b=(0, 10)),
        made(2, Fate.DROPPED, a=(10, 20), b=(10, 20)),
        made(1, Fate.FAILED, a=(0, 10), b=(0, 10)),
        made(1, Fate.COMMITTED, a=(0, 10)),
        made(2, Fate.COMMITTED, a=(10, 20), b=(0, 8)),
        made(3, Fate.COMMITTED, b=(8, 20)),
    ]
    assert moved_records(history) == 10 + 10
    assert moved_records([made(1, Fate.FAILED, a=(0, 9)), made(1, Fate.COMMITTED, a=(0, 9))]) == 0


def test_a_timeline_tells_what_the_next_driver_found_in_the_ledger_from_what_was_written_twice() -> None:
    for again, fate in ((False, Fate.COMMITTED), (True, Fate.WRITTEN)):
        timeline = Timeline()
        metas = BatchMetas({"p": MemoryRange(0, 3)})
        for txid in (1, 2, 3):
            timeline.emitting(EmitBatch(attempt(txid), metas, stored=False))
        timeline.committed(attempt(1))
        with pytest.raises(CrashError):
            timeline.failed(attempt(2), CrashError("killed"))
        timeline.driver_died()
        if again:
            timeline.emitting(EmitBatch(attempt(2, 7), metas, stored=False))
            timeline.committed(attempt(2, 7))
        assert [one.fate for one in timeline.settled()][:3] == [Fate.COMMITTED, fate, Fate.DROPPED]


def test_the_figures_of_a_run() -> None:
    now = [10.0]
    injector = Injector(SCHEDULES["batch"], clock=lambda: now[0])
    outcome = Outcome(Timeline(), injector, {"t": {("a",): (3,)}}, size=9, round_trips=4, drivers=1)
    with pytest.raises(BatchFailedError):
        injector.emitted(attempt(3))
    outcome.timeline.commits += [(2, 10.5), (3, 12.5), (4, 13.0)]
    outcome.timeline.made += [
        made(3, Fate.FAILED, 9.0, a=(0, 5)),
        made(3, Fate.COMMITTED, 11.5, a=(0, 5)),
        made(4, Fate.COMMITTED, 12.0, a=(5, 9)),
    ]
    assert stalls(outcome) == [(10.0, 12.5)]
    column = Column("t", "n", 0, added_up=True)
    found = figures(outcome, {"t": {("a",): (2,)}}, [column])
    assert (found["exact"], found["columns"]["t.n"]["doubled"], found["stalled_seconds"]) == (False, 1, 2.5)
    assert (found["batches"], found["attempts"], found["records"], found["seconds"]) == (2, 3, 9, 4.0)
    assert in_a_sentence(found) == "1 doubled in t.n; 2.5 s without a commit after faults"
    assert found["records_per_second"] == round(9 / 4.0, 1)


@each(("dead", "wrong"), [(["p@1"], 0), ([], 1), (["p@1", "p@1"], 1), (["p@2"], 2)])
def test_a_run_is_exact_only_if_it_sets_the_right_records_aside(dead: list[str], wrong: int) -> None:
    outcome = outcome_of(2)
    outcome.dead += dead
    found = figures(outcome, {}, [], ["p@1"])
    assert (found["exact"], found["dead_letters"], found["wrong_dead_letters"]) == (
        not wrong,
        len(dead),
        wrong,
    )
    assert ("dead letters that differ" in dict(side_by_side({"opaque": found}))) is bool(wrong)
    if wrong:
        assert in_a_sentence(found).startswith(f"{wrong} dead letter")


def test_the_rate_leaves_out_how_long_the_schedule_held_a_partition_back() -> None:
    now = [10.0]
    injector = Injector(SCHEDULES["partition"], clock=lambda: now[0])
    outcome = Outcome(Timeline(), injector, {"t": {}})
    with pytest.raises(PartitionUnavailableError):
        injector.emitting(attempt(5), {"a": MemoryRange(0, 90)})
    now[0] = 13.0
    assert injector.unreadable() == {}
    outcome.timeline.commits += [(4, 10.5), (5, 13.5)]
    outcome.timeline.made += [
        made(5, Fate.FAILED, 9.0, a=(0, 90)),
        made(5, Fate.COMMITTED, 13.0, a=(0, 90)),
    ]
    found = figures(outcome, {}, [])
    assert (found["seconds"], found["stalled_seconds"], found["outage_seconds"]) == (5.0, 3.5, 3.0)
    assert found["records_per_second"] == 45.0


# --- what shows nothing -----------------------------------------------------------------------------------


def outcome_of(batches: int, *happened: Fault) -> Outcome:
    outcome = Outcome(Timeline(), Injector(()))
    outcome.injector.happened += [(fault, 1.0) for fault in happened]
    outcome.timeline.made += [
        made(txid, Fate.COMMITTED, a=(txid, txid + 1)) for txid in range(1, batches + 1)
    ]
    return outcome


def test_a_comparison_that_cannot_fail_shows_nothing() -> None:
    fault, truth = Fault("batch", 1), {"t": {("a",): (1,)}}
    assert nothing_shown(truth, {"opaque": outcome_of(2, fault)}) is None
    assert nothing_shown({"t": {}}, {"opaque": outcome_of(2, fault)}) == (
        "no record reaches a table, so all tables stay empty"
    )
    assert nothing_shown(truth, {"opaque": outcome_of(1, fault)}) == (
        "the opaque run committed fewer than 2 batches"
    )
    assert nothing_shown(truth, {"opaque": outcome_of(2, fault), "transactional": outcome_of(2)}) == (
        "no fault struck the transactional run"
    )


# --- the truth --------------------------------------------------------------------------------------------


def test_records_are_rows_without_the_products_reader() -> None:
    record = SimpleNamespace(
        topic="t",
        partition=3,
        offset=7,
        timestamp=1_700_000_000_123,
        timestamp_type=0,
        key=b"k",
        value=b'{"user": "u1", "price": 1.50, "n": 2, "more": []}',
        headers=[("h", b"v")],
    )
    moment = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    headers = [{"key": "h", "value": b"v"}]
    plain = KafkaSource("t", decode=Decode("binary", key_format="string"))
    assert list(_row(plain, record)) == ["k", record.value, "t", 3, 7, moment, 0, headers]
    schema = "user string, price decimal(9,2), n double, gone bigint"
    as_json, with_nulls = (
        KafkaSource("t", decode=Decode("json", schema, tombstones=what), kafka_columns=["offset"])
        for what in ("refuse", "null")
    )
    assert list(_row(as_json, record)) == ["u1", Decimal("1.50"), 2.0, None, 7]
    tombstone = SimpleNamespace(**{**vars(record), "value": None})
    assert list(_row(with_nulls, tombstone)) == [None, None, None, None, 7]
    with pytest.raises(ValueError, match="without a value"):
        _row(as_json, tombstone)
    skipping = KafkaSource("t", decode=Decode("json", schema, tombstones="skip"), kafka_columns=["offset"])
    read = _decoded(skipping, {"t/3": [tombstone, record]}, sets_aside=False)
    assert read.rows["t/3"].column("offset").to_pylist() == [7]
    dated = KafkaSource("t", decode=Decode("json", "user date"))
    order = {"type": "record", "name": "Order", "fields": [{"name": "user", "type": "string"}]}
    values = KafkaSource("t", decode=Decode("avro", order))
    keys = KafkaSource("t", decode=Decode(key_format="avro", key_schema='"string"'))
    for source in (dated, values, keys):
        with pytest.raises(_OnlyTheSourceKnowsError):
            _row(source, record)
    times = b'{"day": "2026-01-31", "at": "2026-01-31T12:00:00.5+02:00", "local": "2026-01-31T12:00:00"}'
    record = SimpleNamespace(**{**vars(record), "value": times})
    timed = KafkaSource("t", decode=Decode("json", "day date, at timestamp, local timestamp_ntz"))
    day, at, local = _row(timed, record)
    assert day == date(2026, 1, 31)
    assert at == datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)
    assert local == datetime(2026, 1, 31, 12)
    for wrong in ("at timestamp_ntz", "local timestamp", "day timestamp"):
        with pytest.raises(_OnlyTheSourceKnowsError):
            _row(KafkaSource("t", decode=Decode("json", wrong)), record)


@pytest.mark.soak
def test_a_source_that_only_reads_itself_has_no_fold() -> None:
    assert folded_truth(counts(), Settings(), {}) is None
    with pytest.raises(NotDeterministicError, match="component 'split' emitted other tuples"):
        folded_truth(counts(Guesses), Settings(), {})
