"""Tuples become files with their batch, and rows of a Delta table once that is committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from txstream import (
    DeltaTableBolt,
    MemorySpout,
    OpaqueSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    version_of,
)
from txstream.core.transaction import Txid
from txstream.plugins.delta.following import DeltaFollower
from txstream.plugins.delta.lake import Lake
from txstream.plugins.outbox.sending import Outbox
from txstream.state import StateBackend, open_database
from txstream.testing import TopologyTest

COLUMNS = "customer string, amount bigint"
ORDERS = [[("a", 1), ("b", 2)], [("a", 3), ("c", 4)], [("b", 5), ("a", 6)]]


def topology_of(spout: Any, bolt: DeltaTableBolt) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("sales", "orders", spout)
    builder.set_committer_bolt("out", bolt).shuffle_grouping("orders")
    return builder


def orders(batches: Sequence[Sequence[tuple[Any, ...]]] = ORDERS, output: str = COLUMNS) -> MemorySpout:
    return MemorySpout(
        output,
        {"orders/0": [row for rows in batches for row in rows]},
        max_records_per_partition=max(map(len, batches)),
    )


class Notes:
    def __init__(self) -> None:
        self.sent: Mapping[str, Txid] = {}
        self.error: BaseException | None = None

    def put(self, sent: Mapping[str, Txid]) -> None:
        if self.error is not None:
            raise self.error
        self.sent = dict(sent)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def database(url: str) -> Iterator[StateBackend]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


def built(bolt: DeltaTableBolt, spout: Any = None) -> DeltaTableBolt:
    topology = topology_of(spout or OpaqueSpout(orders()), bolt).build()
    (found,) = [one.instance for one in topology.components if isinstance(one.instance, DeltaTableBolt)]
    return found


def follower(
    database: StateBackend, bolt: DeltaTableBolt, notes: Notes, current: int, uuid: str = "u"
) -> DeltaFollower:
    bolt = built(bolt)

    def connect() -> Lake:
        lake = Lake(bolt.place, "sales", uuid, bolt.state.table)
        lake.take_over(bolt.columns, bolt.partition_by, notes.sent.get(bolt.state.table))
        return lake

    return DeltaFollower(
        "sales", [Outbox(bolt.state.table, str(bolt.place), connect)], [database], lambda: Txid(current),
        lambda: notes.sent, notes.put, 3,
    )  # fmt: skip


def rows_of(lake: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    """The rows, read without anything of ours."""
    table = DeltaTable(lake, version=version).to_pyarrow_table()
    return sorted(tuple(row[name] for name in ("customer", "amount")) for row in table.to_pylist())


def up_to(txid: int) -> list[tuple[Any, ...]]:
    return sorted(row for rows in ORDERS[:txid] for row in rows)


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
@pytest.mark.parametrize("by", ["", "customer"])
def test_each_txid_is_a_version_with_its_rows(
    database: StateBackend, url: str, lake: Path, spout: Any, by: str
) -> None:
    make = partial(DeltaTableBolt, lake, partition_by=by or ())
    with TopologyTest(topology_of(spout(orders()), make()), database=url) as test:
        test.commit(3)
    notes = Notes()
    follower(database, make(), notes, current=3).send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(2), {"lake_files": 2})
    follower(database, make(), notes, current=4).send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(3), {"lake_files": 3})
    for txid in range(4):
        assert rows_of(lake, version_of(lake, "sales", txid)) == up_to(txid)
