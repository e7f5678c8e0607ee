"""Topologies that count by window, what is in their databases, and what an oracle says of that."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from support.window_oracle import Expected, expected
from txstream import (
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
)
from txstream.core.fault_points import Point
from txstream.testing import ManualClock, TopologyTest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
FIELDS = "partition string, at timestamp, page string"
HOUR = 3_600_000_000
HOURS = Tumbling("1h", time="at", grace="10m")


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def rows(partition: str, *minutes: float, page: str = "a") -> list[tuple[Any, ...]]:
    return [(partition, at(one), page) for one in minutes]


def graph(
    source: MemorySpout,
    name: str = "opaque",
    window: Tumbling = HOURS,
    late: Any = "dead-letter",
    keep: str | None = None,
    below: Callable[[TransactionalTopologyBuilder], object] = str,
    **options: Any,
) -> Any:
    options = {"dead_letters": DeadLetters(), **options}
    builder = TransactionalTopologyBuilder("t", "clicks", SPOUTS[name](source), **options)
    state = WindowState("clicks", key="page string", value="n bigint", window=window, late=late, keep=keep)
    builder.set_bolt("count", WindowBolt(state, n=Count()), 2).fields_grouping("clicks", "page")
    below(builder)
    return builder.build()


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(text).fetchall()
    finally:
        connection.close()


def table(path: Path) -> dict[tuple[str, int], tuple[int, bool]]:
    found = query(path, "SELECT page, window_start, n, closed FROM clicks")
    return {
        (page, micros(datetime.fromisoformat(start).replace(tzinfo=UTC))): (n, bool(closed))
        for page, start, n, closed in found
    }


def metas(path: Path) -> dict[int, Any]:
    return {txid: json.loads(text) for txid, text in query(path, "SELECT txid, metas FROM txstream_batch")}


def late(path: Path) -> set[tuple[str, int]]:
    places = (place for (place,) in query(path, "SELECT place FROM txstream_dead_letter"))
    return {(place.rpartition("@")[0], int(place.rpartition("@")[2])) for place in places}


def hours(time: int) -> list[tuple[int, int]]:
    return [(time // HOUR * HOUR, time // HOUR * HOUR + HOUR)]


def check(
    path: Path,
    records: dict[str, list[tuple[Any, ...]]],
    windows: Any = hours,
    grace: int = HOUR // 6,
    *,
    amend: bool = False,
) -> Expected:
    given = {name: [(micros(one[1]), one[2]) for one in some] for name, some in records.items()}
    wanted = expected(given, metas(path), windows, grace, amend=amend)
    assert table(path) == wanted.rows
    assert late(path) == wanted.late
    return wanted


def run(
    path: Path, records: dict[str, list[tuple[Any, ...]]], topology: Any, at: Sequence[tuple[int, Point]] = ()
) -> None:
    """Run to the end, with a driver that dies at these points."""
    clock = ManualClock((NOON + timedelta(days=2)).timestamp())
    with TopologyTest(topology, database=f"sqlite:///{path}", clock=clock) as test:
        for txid, point in at:
            test.crash(point, txid=txid)
            test.restart()
        test.run()


TWO = {
    "p0": [*rows("p0", 1, 59, 60, 71, 72, 130, 3, 131), *rows("p0", 190, 191, 5, 260, 270, page="b")],
    "p1": rows("p1", 2, 58, 62, 70, 75, 125, 61, 64, 65, 185, 200, 250),
}
