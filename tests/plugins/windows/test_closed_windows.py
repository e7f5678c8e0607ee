"""Closed windows as the source of another topology: each comes once, in order, whoever dies."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.windows import FIELDS, HOURS, NOON, SPOUTS, TWO, at, check, graph, metas, micros, rows, run

from txstream import (
    ClosedWindows,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlTable,
    TopologyError,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    WindowState,
)
from txstream.core.errors import DataLostError
from txstream.core.fault_points import Point
from txstream.testing import ManualClock, TopologyTest

MANY = {
    name: [(name, at(minute + more), page) for minute in range(0, 600, step) for page in "ab"]
    for name, step, more in (("p0", 20, 0), ("p1", 25, 3))
}


def closed(path: Path, spout: Any = OpaqueSpout, late: Any = "dead-letter", **options: Any) -> Any:
    """A topology that appends each closed window to a table, with its txid."""
    state = WindowState("clicks", key="page string", value="n bigint", window=HOURS, late=late)
    source = ClosedWindows(state, "t", url=f"sqlite:///{path}", max_txids=3)
    builder = TransactionalTopologyBuilder("final", "closed", spout(source), **options)
    key = "page string, window_start timestamp, n bigint, amended boolean"
    table = SqlTable("final", "window_end timestamp", key=key)
    builder.set_bolt("store", SqlAppendBolt(table)).global_grouping("closed")
    return builder.build()


def emitted(path: Path) -> list[tuple[str, int, int, bool, int]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute(
            "SELECT page, window_start, n, amended, txid FROM final ORDER BY txid, window_end, page"
        ).fetchall()
    finally:
        connection.close()
    return [
        (page, micros(datetime.fromisoformat(start).replace(tzinfo=UTC)), n, bool(amended), txid)
        for page, start, n, amended, txid in found
    ]


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
@pytest.mark.parametrize("name", SPOUTS)
def test_each_closed_window_comes_once_in_order(name: str, point: Point, tmp_path: Path) -> None:
    path, below = tmp_path / "s.db", tmp_path / "below.db"
    with MemorySpout(FIELDS, MANY, max_records_per_partition=2) as source:
        run(path, MANY, graph(source, name, max_spout_pending=1), [(5, point), (8, point)])
    wanted = check(path, MANY)
    last = max(metas(path))
    with TopologyTest(closed(path, SPOUTS[name]), database=f"sqlite:///{below}") as test:
        for txid in (2, 3):
            test.crash(point, txid=txid)
            test.restart()
        test.run()
    due = {key: txid for key, txid in wanted.closed_in.items() if txid < last}
    found = emitted(below)
    assert {(page, start): n for page, start, n, _, _ in found} == {key: wanted.rows[key][0] for key in due}
    assert len(found) == len(due) > 10
    assert not any(amended for _, _, _, amended, _ in found)
    closed_in: dict[int, set[int]] = {}  # by the txid here, those of the batches that closed
    for page, start, _, _, txid in found:
        closed_in.setdefault(txid, set()).add(due[page, start])
    assert len(closed_in) > 3
    assert all(max(one) < min(other) for one, other in pairwise(closed_in.values()))


def test_an_amended_window_comes_again_marked(tmp_path: Path) -> None:
    path, below = tmp_path / "s.db", tmp_path / "below.db"
    clock = ManualClock((NOON + timedelta(days=2)).timestamp())
    with (
        MemorySpout(FIELDS, {"p0": rows("p0", 1, 2, 80, 81, 82)}, max_records_per_partition=1) as source,
        TopologyTest(
            graph(source, late="amend", max_spout_pending=1), database=f"sqlite:///{path}", clock=clock
        ) as test,
        TopologyTest(closed(path, late="amend"), database=f"sqlite:///{below}") as final,
    ):
        test.run()
        final.run()
        noon = micros(NOON)
        assert [row[:4] for row in emitted(below)] == [("a", noon, 2, False)]
        source.append("p0", *rows("p0", 30, 83))
        test.run()
        final.run()
        assert [row[:4] for row in emitted(below)] == [("a", noon, 2, False), ("a", noon, 3, True)]
        final.run()
        assert len(emitted(below)) == 2


def test_what_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with pytest.raises(TopologyError, match="take an OpaqueSpout"):
        TopologyTest(closed(path, TransactionalSpout, late="amend")).__enter__()
    with MemorySpout(FIELDS, TWO, max_records_per_partition=1) as source:
        run(path, TWO, graph(source, "transactional", late="amend", max_spout_pending=1))
        with (
            TopologyTest(closed(path, late="amend", max_attempts=1)) as final,
            pytest.raises(TopologyError, match="does not keep what closed rows were before"),
        ):
            final.run()
    with MemorySpout(FIELDS, TWO, max_records_per_partition=1) as source:
        other = tmp_path / "other.db"
        run(other, TWO, graph(source, max_spout_pending=1))
        with TopologyTest(closed(other), database=f"sqlite:///{tmp_path / 'below.db'}") as final:
            final.run()
            connection = sqlite3.connect(other)
            connection.execute("DELETE FROM txstream_batch WHERE txid > 3")
            connection.commit()
            connection.close()
            with pytest.raises(DataLostError, match="its ledger ends at 3"):
                final.commit()
