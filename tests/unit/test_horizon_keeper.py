"""A state that decides itself what is late: its keeper on the driver, and the rows that its batches mark."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from txstream import (
    MemorySpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Sum,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.api.reducers import Max
from txstream.api.retention import HorizonKeeper
from txstream.core.errors import TopologyError
from txstream.core.fault_points import Point
from txstream.engine.commit.state_targets import state_targets
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.testing import TopologyTest

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}


class Greatest(HorizonKeeper):
    """The horizon is what the batches before had at most."""

    def __init__(self) -> None:
        self.known = 0, 0

    def next(self, before: Any, taken: Collection[str], waiting: Collection[str], now: float) -> Any:
        return {"taken": sorted(taken), "waiting": sorted(waiting), "known": self.known}

    def learned(self, horizon: Any, told: Sequence[Mapping[bytes, bytes]]) -> Any:
        return max([self.known[1], *(int(one[b"greatest"]) for one in told)])

    def committed(self, txid: int, learned: Any) -> None:
        self.known = txid, learned


@dataclass(frozen=True)
class Settling(SqlState):
    marks: ClassVar[tuple[str, str]] = ("settled", "due")

    def horizon_keeper(self) -> Greatest:
        return Greatest()

    def marks_until(self, horizon: Any) -> datetime | None:
        return None if horizon is None else NOON + timedelta(minutes=horizon["known"][1])


class Settle(SqlStateBolt):
    def deltas(self) -> pa.Table:
        table = super().deltas()
        greatest = max([0, *table["n"].to_pylist()])
        return table.replace_schema_metadata({b"greatest": str(greatest).encode()})


def graph(source: MemorySpout, name: str, **options: Any) -> Any:
    builder = TransactionalTopologyBuilder("t", "rows", SPOUTS[name](source), max_spout_pending=1, **options)
    state = Settling("bills", key="who string", value="n bigint, due timestamp, settled boolean")
    bolt = Settle(state, n=Sum("n"), due=Max("due"), settled=Max("settled"))
    builder.set_bolt("settle", bolt, 2).fields_grouping("rows", "who")
    return builder.build()


def bills(path: Path, columns: str = "who, n, settled, txid") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT {columns} FROM bills ORDER BY who").fetchall()
    finally:
        connection.close()


ROWS = [("ann", 1, NOON + timedelta(minutes=5), False), ("bob", 4, NOON + timedelta(minutes=1), False)]
MORE = [("cid", 9, NOON + timedelta(minutes=4), False), ("dan", 1, NOON + timedelta(minutes=9), False)]
FIELDS = "who string, n bigint, due timestamp, settled boolean"


@pytest.mark.parametrize("commit", ["driver", "executors"])
@pytest.mark.parametrize("name", SPOUTS)
def test_a_batch_marks_what_is_due_and_its_replay_marks_the_same(
    name: str, commit: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    with (
        MemorySpout(FIELDS, {"p": [*ROWS, *MORE]}, max_records_per_partition=1) as source,
        TopologyTest(graph(source, name, commit=commit), database=f"sqlite:///{path}") as test,
    ):
        test.commit(2)
        assert bills(path) == [("ann", 1, 0, 1), ("bob", 4, 1, 2)]  # bob's due time is what was known: 1
        for at in (Point.BEFORE_COMMIT, Point.INSIDE_COMMIT):
            test.crash(at, txid=3)
            test.restart()
        test.commit(3)  # cid was due when bob's bill was known, and so was nothing else
        assert bills(path) == [("ann", 1, 0, 1), ("bob", 4, 1, 2), ("cid", 9, 1, 3)]
        test.run()  # what the ledger has of cid's bill makes ann's and dan's due
        assert bills(path) == [("ann", 1, 1, 4), ("bob", 4, 1, 2), ("cid", 9, 1, 3), ("dan", 1, 1, 4)]


def test_an_attempt_that_runs_again_marks_from_the_values_of_before(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with (
        MemorySpout(FIELDS, {"p": ROWS, "q": [MORE[0]]}, max_records_per_partition=1) as source,
        TopologyTest(graph(source, "opaque"), database=f"sqlite:///{path}") as test,
    ):
        test.commit(1)
        assert bills(path) == [("ann", 1, 0, 1), ("cid", 9, 0, 1)]
        test.fail(2, at=Point.AFTER_COMMIT)  # committed, and then its txid runs again without what it held
        assert bills(path) == [("ann", 1, 1, 2), ("bob", 4, 1, 2), ("cid", 9, 1, 2)]
        source.hide("p")
        test.commit(2)
        assert bills(path) == [("ann", 1, 1, 2), ("cid", 9, 1, 2)]
        before = "who, prev_n, prev_settled, txid"
        assert bills(path, before) == [("ann", 1, 0, 2), ("cid", 9, 0, 2)]
        source.show("p")
        test.run()
        assert bills(path) == [("ann", 1, 1, 2), ("bob", 4, 1, 3), ("cid", 9, 1, 2)]


def test_a_store_that_marks_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryBackend, "marks_rows", False)
    with MemorySpout(FIELDS, {"p": []}) as source, pytest.raises(TopologyError, match="cannot mark rows"):
        state_targets(graph(source, "opaque"), "memory://here", lambda _: MemoryBackend("memory://here"))
