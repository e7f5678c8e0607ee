"""Counts by window, from records to closed rows, beside an oracle that knows records and metas alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.windows import (
    FIELDS,
    HOUR,
    NOON,
    SPOUTS,
    TWO,
    at,
    check,
    graph,
    late,
    metas,
    micros,
    rows,
    run,
    table,
)

from txstream import (
    Count,
    Hopping,
    Max,
    MemorySpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TopologyError,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
    bolt,
)
from txstream.core.errors import StateTableError
from txstream.core.fault_points import Point
from txstream.plugins.proof.simulation.variant import with_batches_of
from txstream.testing import ManualClock, TopologyTest
from txstream.zookeeper import Kind

EVERY_SPOUT = pytest.mark.parametrize("name", SPOUTS)


@pytest.mark.parametrize("commit", ["driver", "executors"])
@EVERY_SPOUT
def test_windows_close_and_what_is_late_is_a_dead_letter(name: str, commit: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with MemorySpout(FIELDS, TWO, max_records_per_partition=1) as source:
        run(path, TWO, graph(source, name, commit=commit, max_spout_pending=1))
    found = check(path, TWO)
    assert {("p0", 6), ("p0", 10)} <= found.late
    assert table(path)["a", micros(at(0))] == (4, True)
    assert not table(path)["b", micros(at(240))][1]


@pytest.mark.parametrize("commit", ["driver", "executors"])
@EVERY_SPOUT
def test_amended_windows_stay_closed(name: str, commit: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with MemorySpout(FIELDS, TWO, max_records_per_partition=1) as source:
        run(path, TWO, graph(source, name, late="amend", commit=commit, max_spout_pending=1))
    assert not check(path, TWO, amend=True).late
    assert table(path)["a", micros(at(0))] == (5, True)
    assert table(path)["b", micros(at(0))] == (1, True)  # of a window that had no row when it closed


@pytest.mark.parametrize("pending", [pytest.param(1, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize(
    "point",
    [one for one in Point if "persist" not in one and one is not Point.BETWEEN_COMMITS],  # one database
)
@EVERY_SPOUT
def test_a_driver_that_dies_changes_nothing(name: str, point: Point, pending: int, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    executors = point in (Point.INSIDE_BEGIN, Point.AFTER_BEGIN, Point.BEFORE_WRITE, Point.AFTER_WRITE)
    with MemorySpout(FIELDS, TWO, max_records_per_partition=1) as source:
        commit = "executors" if executors else "driver"
        topology = graph(source, name, late="amend", commit=commit, max_spout_pending=pending)
        run(path, TWO, topology, [(txid, point) for txid in (3, 6, 7, 9)])
    check(path, TWO, amend=True)


def test_records_of_several_windows_count_in_each(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    quarters = Hopping("1h", every="15m", time="at", grace="10m")

    def windows(time: int) -> list[tuple[int, int]]:
        last = time // (HOUR // 4) * (HOUR // 4)
        return [(last - more * (HOUR // 4), last - more * (HOUR // 4) + HOUR) for more in range(4)]

    with MemorySpout(FIELDS, TWO, max_records_per_partition=2) as source:
        run(path, TWO, graph(source, window=quarters, max_spout_pending=1))
    assert check(path, TWO, windows).late


def test_a_record_from_the_year_2099_closes_nothing(tmp_path: Path) -> None:
    path, far = tmp_path / "s.db", (datetime(2099, 1, 1, tzinfo=UTC) - NOON) / timedelta(minutes=1)
    records = {"p0": rows("p0", 1, far, 2, 3, 61, 62, 72, 73)}
    with MemorySpout(FIELDS, records, max_records_per_partition=1) as source:
        run(path, records, graph(source, max_spout_pending=1))
    found = check(path, records)
    assert not found.late
    assert sorted(found.rows.values()) == [(1, False), (3, True), (4, False)]


def test_keep_removes_closed_windows_only(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", ManualClock((NOON + timedelta(days=900)).timestamp())
    with MemorySpout(FIELDS, {"p0": rows("p0", 1, 61)}, max_records_per_partition=1) as source:
        topology = graph(source, late="amend", keep="2h", max_spout_pending=1)
        with TopologyTest(topology, database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            assert len(table(path)) == 2  # whatever the clock says
            source.append("p0", *rows("p0", 231, 232, 233, 234))
            test.run()
            starts = sorted(start for _, start in table(path))
            assert starts == [micros(at(60)), micros(at(180))]  # the first ended long before 100
            source.append("p0", *rows("p0", 30, 62))
            test.run()
    assert table(path)["a", micros(at(60))] == (2, True)
    assert late(path) == {("p0", 6)}  # of a window that is gone, even with late="amend"


@EVERY_SPOUT
def test_a_partition_that_is_away_holds_the_watermark_back(name: str, tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", ManualClock((NOON + timedelta(days=2)).timestamp())
    records = {"p0": rows("p0", 1, 61, 121, 181, 241), "p1": rows("p1", 2, 3)}
    with (
        MemorySpout(FIELDS, records, max_records_per_partition=1) as source,
        TopologyTest(
            graph(source, name, max_spout_pending=1), database=f"sqlite:///{path}", clock=clock
        ) as test,
    ):
        test.commit(1)
        source.hide("p1")
        test.commit(4)
        held = metas(path)[4]["horizons"]["clicks"]
        assert held["watermark"] <= micros(at(2)) - HOUR // 6
        assert (held["waiting"], held["held_by"]) == (["p1"], ["p1"])
        source.show("p1")
        test.run()
    check(path, records)


def test_what_cannot_be_is_refused_when_it_is_declared() -> None:
    window = Tumbling("1h", time="at")
    declared: dict[str, Any] = {"key": "page string", "value": "n bigint", "window": window, "late": "amend"}
    for changed, why in (
        ({"late": None}, "late='dead-letter' sets them aside, late='amend' counts"),
        ({"late": "drop"}, "late is 'drop'"),
        ({"window": None}, "window=Tumbling"),
        ({"key": "window_end string"}, "clashes with key column"),
        ({"value": "closed bigint"}, "closed"),
    ):
        with pytest.raises(TopologyError, match=why):
            WindowState("clicks", **{**declared, **changed})
    in_key = WindowState("clicks", **{**declared, "key": ["page string", window], "window": None})
    assert in_key == WindowState("clicks", **declared)
    with pytest.raises(TopologyError, match="window is 'user string'"):
        WindowState("clicks", **{**declared, "key": ["page string", "user string"], "window": None})
    for column in (window, Hopping("1h", every="15m", time="at")):
        plain: Any = ["page string", column]
        with pytest.raises(TopologyError, match=r"\w+\(.*\) is for the key of a WindowState.*\(late=\)"):
            SqlState("clicks", key=plain, value="n bigint")
    with pytest.raises(TopologyError, match="fills closed itself"):
        WindowBolt(WindowState("clicks", **declared), n=Count(), closed=Count())
    with pytest.raises(TopologyError, match="takes a WindowState"):
        WindowBolt(SqlState("clicks", key="page string", value="n bigint"), n=Count())  # type: ignore[arg-type]
    for fields, why in (
        ("at timestamp, page string", "no field 'partition'.*kafka_columns"),
        ("partition string, at date, page string", "it must be a timestamp"),
        ("partition string, page string", "needs a field 'at'"),
        ("partition string, at timestamp, page string, closed boolean", "has a field 'closed'"),
    ):
        with MemorySpout(fields, {"p0": []}) as source, pytest.raises(TopologyError, match=why):
            graph(source)
    with (
        MemorySpout(FIELDS, {"p0": []}) as source,
        pytest.raises(TopologyError, match=r"late='dead-letter', but .* add dead_letters=DeadLetters"),
    ):
        graph(source, dead_letters=None)


def test_a_late_record_that_is_retried_counts_once_late_is_amend(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.db", ManualClock((NOON + timedelta(days=2)).timestamp())
    records = {"rows/0": [("rows", 0, n, at(m), "a") for n, m in enumerate((1, 59, 70, 71, 30))]}
    fields = "topic string, partition int, offset bigint, at timestamp, page string"
    with MemorySpout(fields, records, max_records_per_partition=1) as source:
        topology = graph(source, max_spout_pending=1)
        with TopologyTest(topology, database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            assert late(path) == {("rows/0", 4)}
            assert table(path)["a", micros(at(0))] == (2, True)
            test.restart(graph(source, late="amend", max_spout_pending=1))
            test._control.running.requests.ask(Kind.RETRY, {})
            source.append("rows/0", ("rows", 0, 5, at(72), "a"))
            test.run()
    assert table(path)["a", micros(at(0))] == (3, True)


def test_another_window_needs_another_table(tmp_path: Path) -> None:
    with (
        MemorySpout(FIELDS, {"p0": rows("p0", 1)}) as source,
        TopologyTest(graph(source), database=f"sqlite:///{tmp_path / 's.db'}") as test,
    ):
        test.run()
        test.restart(graph(source, window=Tumbling("1h", time="at", grace="2h")))
        with pytest.raises(StateTableError, match=r"its window was declared .*'1h'.* and is now .*'1d'"):
            test.restart(graph(source, window=Tumbling("1d", time="at")))


def plain_graph(source: MemorySpout) -> Any:
    """The same table with the columns of a table of windows, as a plain one."""

    @bolt(output="page string, window_start timestamp, window_end timestamp, closed boolean")
    def windows(record: Any, collector: Any) -> None:
        collector.emit((record["page"], record["at"], record["at"], False))

    builder = TransactionalTopologyBuilder("t", "clicks", OpaqueSpout(source))
    builder.set_bolt("windows", windows).local_or_shuffle_grouping("clicks")
    state = SqlState(
        "clicks",
        key="page string, window_start timestamp",
        value="n bigint, window_end timestamp, closed boolean",
    )
    store = SqlStateBolt(state, n=Count(), window_end=Max("window_end"), closed=Max("closed"))
    builder.set_bolt("count", store).fields_grouping("windows", "page")
    return builder.build()


def test_a_table_neither_gets_nor_loses_its_windows(tmp_path: Path) -> None:
    with MemorySpout(FIELDS, {"p0": rows("p0", 1)}) as source:
        for first, then, told in (
            (graph, plain_graph, r"its window was declared \{.*'1h'.* and is now None"),
            (plain_graph, graph, r"its window was declared None and is now \{.*'1h'"),
        ):
            path = tmp_path / f"{first.__name__}.db"
            with TopologyTest(first(source), database=f"sqlite:///{path}") as test:
                test.run()
                with pytest.raises(StateTableError, match=told):
                    test.restart(then(source))


@EVERY_SPOUT
def test_a_record_of_the_batch_that_closes_its_window_counts(name: str, tmp_path: Path) -> None:
    path, records = tmp_path / "s.db", {"p0": rows("p0", 1, 61, 131, 65, 66)}
    with MemorySpout(FIELDS, records, max_records_per_partition=1) as source:
        run(path, records, graph(source, name, max_spout_pending=1))
    found = check(path, records)
    assert found.closed_in["a", micros(at(60))] == 4  # which has the record of 65
    assert found.rows["a", micros(at(60))] == (2, True)
    assert found.late == {("p0", 4)}


def test_a_partition_whose_turn_has_not_come_holds_the_watermark_back(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    records = {name: rows(name, *range(more, 400, 130)) for more, name in enumerate(("p0", "p1", "p2"))}
    with MemorySpout(FIELDS, records) as source:
        run(path, records, with_batches_of(graph(source, max_spout_pending=1), 1))
    found = [one["horizons"]["clicks"] for one in metas(path).values()]
    assert all(len(one["waiting"]) == 2 for one in found[: len(found) // 2])
    assert not check(path, records).late
