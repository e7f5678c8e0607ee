"""The stream of closed windows of the topology that closes them: each comes once, in order, whoever dies."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.windows import FIELDS, HOURS, at, check, graph, metas, micros, query, run

from txstream import (
    ClosedBolt,
    Count,
    KafkaSinkBolt,
    MemorySpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TopologyError,
    TransactionalTopologyBuilder,
    WindowBolt,
    WindowState,
)
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics

RECORDS = {
    name: [(name, at(minute + more), page) for minute in range(0, 420, step) for page in "ab"]
    for name, step, more in (("p0", 20, 0), ("p1", 25, 3))
}
"""Of both pages, and two late ones, which are dead letters."""
RECORDS["p0"][30:30] = [("p0", at(5), "a"), ("p0", at(6), "c")]


def emitting(builder: TransactionalTopologyBuilder) -> None:
    """Append what has closed to a table that a second row of one window would not fit into, and send it."""
    builder.set_bolt("closed", ClosedBolt("count"), 2).local_or_shuffle_grouping("clicks")
    table = SqlTable("final", "n bigint, window_end timestamp", key="page string, window_start timestamp")
    builder.set_bolt("final", SqlAppendBolt(table)).global_grouping("closed", stream="closed")
    sink = KafkaSinkBolt("closed", key="page", value=["window_start", "n"])
    builder.set_bolt("send", sink, 2).fields_grouping("closed", "page", stream="closed")


def emitted(path: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """By page and start, in which batch a window was emitted, and what was counted."""
    return {
        (page, micros(datetime.fromisoformat(start).replace(tzinfo=UTC))): (txid, n)
        for page, start, txid, n in query(path, "SELECT page, window_start, txid, n FROM final")
    }


def to_be_sent(path: Path) -> list[tuple[tuple[str, int], tuple[int, int]]]:
    """The same of what waits to be sent."""
    found = []
    for page, value, txid in query(path, "SELECT key, value, txid FROM closed_outbox"):
        told = json.loads(value)
        start = datetime.fromisoformat(told["window_start"])
        found.append(((page.decode(), micros(start)), (txid, told["n"])))
    return sorted(found)


@pytest.mark.parametrize("commit", ["auto", pytest.param("executors", marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_each_window_is_emitted_once_in_the_batch_after_the_one_that_closed_it(
    name: str, commit: Any, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    options: dict[str, Any] = {} if commit == "auto" else {"commit": commit}
    points = [
        (5, Point.BEFORE_COMMIT),
        (7, Point.INSIDE_COMMIT),
        (8, Point.AFTER_COMMIT),
        (9, Point.BEFORE_COMMIT),
    ]
    if commit == "executors":
        points += [(10, Point.AFTER_BEGIN), (11, Point.AFTER_WRITE), (12, Point.INSIDE_COMMIT)]
    with MemorySpout(FIELDS, RECORDS, max_records_per_partition=2) as source:
        run(path, RECORDS, graph(source, name, below=emitting, **options), points)
    wanted = check(path, RECORDS)
    last = max(metas(path))
    found = emitted(path)
    assert found == {
        key: (txid + 1, wanted.rows[key][0]) for key, txid in wanted.closed_in.items() if txid < last
    }
    assert to_be_sent(path) == sorted(found.items())
    assert len(found) > 6
    assert len({txid for txid, _ in found.values()}) > 3


def test_what_has_no_stream_of_closed_windows_is_refused() -> None:
    plain = SqlState("n", key="page string", value="n bigint")
    for table, semantics, wanted in (
        (SqlStateBolt(plain, n=Count()), Semantics.OPAQUE, "it has no windows"),
        (window_bolt("amend"), Semantics.OPAQUE, "may change .*ClosedWindows"),
        (window_bolt("dead-letter"), Semantics.NON_TRANSACTIONAL, "runs again counts again"),
    ):
        closed = ClosedBolt("count")
        closed.table = table
        with pytest.raises(TopologyError, match=wanted):
            closed.check_table(semantics, sets_aside=True)


def window_bolt(late: Any) -> WindowBolt:
    state = WindowState("clicks", key="page string", value="n bigint", window=HOURS, late=late)
    return WindowBolt(state, n=Count())
