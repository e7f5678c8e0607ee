"""Windows in a real MariaDB and a real MySQL, through drivers that die while executors commit. What must be
there comes from records and metas (`window_oracle`); plain SQL reads what is there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mysql_servers import MySQLFamilyServer
from plugins.windows.test_closed_stream import RECORDS, emitting
from support.window_oracle import expected
from support.windows import FIELDS, HOUR, HOURS, NOON, SPOUTS, graph, hours, micros

from txstream import (
    ClosedWindows,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlTable,
    TransactionalTopologyBuilder,
    WindowState,
)
from txstream.core.fault_points import Point
from txstream.testing import ManualClock, TopologyTest

POINTS = (5, Point.AFTER_BEGIN), (7, Point.AFTER_WRITE), (8, Point.INSIDE_COMMIT), (9, Point.AFTER_COMMIT)


def by_window(rows: list[tuple[Any, ...]]) -> dict[tuple[str, int], tuple[Any, ...]]:
    return {(page, micros(start.replace(tzinfo=UTC))): tuple(rest) for page, start, *rest in rows}


def amended(url: str) -> Any:
    """A topology that appends each closed row, as often as it comes."""
    state = WindowState("clicks", key="page string", value="n bigint", window=HOURS, late="amend")
    source = ClosedWindows(state, "t", url=url, max_txids=3)
    builder = TransactionalTopologyBuilder("final", "closed", OpaqueSpout(source))
    key = "page string, window_start timestamp, n bigint, amended boolean"
    table = SqlTable("final", "window_end timestamp", key=key)
    builder.set_bolt("store", SqlAppendBolt(table)).global_grouping("closed")
    return builder.build()


@pytest.mark.soak
@pytest.mark.parametrize("late", ["dead-letter", "amend"])
@pytest.mark.parametrize("name", SPOUTS)
def test_windows_close_as_records_and_metas_say(
    mysql_server: MySQLFamilyServer, unique: str, name: str, late: str
) -> None:
    url = mysql_server.create_database(unique)
    clock = ManualClock((NOON + timedelta(days=2)).timestamp())
    options: dict[str, Any] = {"below": emitting} if late == "dead-letter" else {}
    with MemorySpout(FIELDS, RECORDS, max_records_per_partition=2) as source:
        topology = graph(source, name, late=late, commit="executors", **options)
        with TopologyTest(topology, database=url, clock=clock) as test:
            for txid, point in POINTS:
                test.crash(point, txid=txid)
                test.restart()
            test.run()
    told = mysql_server.execute(f"SELECT txid, metas FROM {unique}.txstream_batch")
    metas = {txid: json.loads(one) for txid, one in told}
    records = {key: [(micros(one[1]), one[2]) for one in some] for key, some in RECORDS.items()}
    wanted = expected(records, metas, hours, HOUR // 6, amend=late == "amend")
    rows = by_window(mysql_server.execute(f"SELECT page, window_start, n, closed FROM {unique}.clicks"))
    assert rows == wanted.rows
    assert len(wanted.closed_in) > 6
    due = {key for key, txid in wanted.closed_in.items() if txid < max(metas)}
    if late == "dead-letter":
        assert wanted.late
        final = by_window(mysql_server.execute(f"SELECT page, window_start, n FROM {unique}.final"))
        assert final == {key: wanted.rows[key][:1] for key in due}
    elif name == "opaque":
        with TopologyTest(amended(url), database=mysql_server.create_database(f"{unique}_b")) as test:
            test.run()
        last = by_window(
            mysql_server.execute(f"SELECT page, window_start, n FROM {unique}_b.final ORDER BY txid, amended")
        )
        assert last == {key: wanted.rows[key][:1] for key in due}


@pytest.mark.soak
def test_an_amended_window_comes_again_marked(mysql_server: MySQLFamilyServer, unique: str) -> None:
    url, below = map(mysql_server.create_database, (unique, f"{unique}_b"))
    clock = ManualClock((NOON + timedelta(days=2)).timestamp())

    def clicks(*minutes: int) -> list[tuple[str, datetime, str]]:
        return [("p0", NOON + timedelta(minutes=one), "a") for one in minutes]

    def emitted() -> list[tuple[Any, ...]]:
        found = f"SELECT window_start, n, amended FROM {unique}_b.final ORDER BY txid, amended"
        return [
            (start.replace(tzinfo=UTC), n, bool(again)) for start, n, again in mysql_server.execute(found)
        ]

    with (
        MemorySpout(FIELDS, {"p0": clicks(1, 2, 80, 81, 82)}, max_records_per_partition=1) as source,
        TopologyTest(graph(source, late="amend", max_spout_pending=1), database=url, clock=clock) as test,
        TopologyTest(amended(url), database=below) as final,
    ):
        test.run()
        final.run()
        assert emitted() == [(NOON, 2, False)]
        source.append("p0", *clicks(30, 83))
        test.run()
        final.run()
        assert emitted() == [(NOON, 2, False), (NOON, 3, True)]
