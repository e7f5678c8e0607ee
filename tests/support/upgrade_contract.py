"""Upgrades of a topology that has been running, on every database: it goes on and its totals stay exact."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from support.bolts import CountByHand
from support.framework_contract import OLDER, old_database
from support.old_revisions import at_revision
from support.state_contract import StateFixtures
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.errors import SchemaRevisionError
from txstream.api.reducers import Count, Reducer, Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.fault_points import Point
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase
from txstream.state.sql.sessions import Sessions
from txstream.testing import TopologyTest

# Two rows make a batch: four of them.
ROWS = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6), ("d", 7), ("a", 8)]
COUNTS = {"a": 4, "b": 2, "c": 1, "d": 1}
SPOUTS = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])

Store = tuple[SqlState, dict[str, Reducer]]


def counts(table: str = "counts", url: str | None = None) -> Store:
    """How often each word came."""
    return SqlState(table, key="word string", value="n bigint", url=url), {"n": Count()}


def totals(table: str = "totals", url: str | None = None) -> Store:
    """The sum of each word's numbers."""
    return SqlState(table, key="word string", value="total bigint", url=url), {"total": Sum("x")}


def storing(
    source: MemorySpout, spout: Any, *stores: Store, batch: int = 2, commit: Any = "auto"
) -> Topology:
    """The source's rows, into these states, and to a committer without any."""
    rows = spout(source, max_batch_records=batch)
    builder = TransactionalTopologyBuilder("words", "rows", rows, 2, commit=commit)
    for number, (state, reducers) in enumerate(stores):
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, **reducers), 2)
        store.fields_grouping("rows", "word")
    builder.set_committer_bolt("stateless", CountByHand()).fields_grouping("rows", "word")
    return builder.build()


class UpgradeFixtures(StateFixtures):
    @pytest.fixture
    def source(self) -> Iterator[MemorySpout]:
        with MemorySpout("word string, x bigint", {"p": ROWS}) as spout:
            yield spout


class RevisionContract(UpgradeFixtures):
    """Framework tables of every older revision, with a topology that was killed in them."""

    @SPOUTS
    @pytest.mark.parametrize("revision", OLDER)
    def test_a_topology_goes_on_after_an_upgrade(
        self, database: StateDatabase, url: str, source: MemorySpout, spout: Any, revision: str
    ) -> None:
        # Revision 0001 knew no state tables; what it had of a topology was its ledger and its fence.
        stores = [] if revision == "0001" else [counts()]
        with TopologyTest(storing(source, spout, *stores), database=url) as test:
            test.commit(1)
            test.crash(Point.AFTER_COMMIT, txid=2)  # committed, and ZooKeeper does not know
            at_revision(database, url, revision)
            with pytest.raises(SchemaRevisionError, match="txstream db upgrade"):
                test.restart()
            assert database.upgrade()[0] == revision
            test.restart()
            assert test.current == 3
            test.commit(3)
            test.crash(Point.INSIDE_COMMIT, txid=4)
            test.restart()
            test.run()
            assert stores == [] or test.table("counts") == COUNTS
        ledger = database.batches("words")
        assert [(row.txid, row.tuples, row.status) for row in ledger] == [
            (txid, 2, "committed") for txid in (1, 2, 3, 4)
        ]
        assert [row.metas["partitions"]["p"]["end"] for row in ledger] == [2, 4, 6, 8]

    @pytest.mark.parametrize("revision", OLDER)
    def test_an_upgrade_waits_for_a_commit_that_is_under_way(
        self, database: StateDatabase, url: str, revision: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of a driver of the older txstream, which knows only its columns."""
        begun, connect = threading.Event(), Sessions._connect

        def begin(sessions: Sessions, doing: str) -> sa.Connection:
            connection = connect(sessions, doing)
            begun.set()
            return connection

        rig = old_database(database, url, revision)
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            batch = sa.Table("txstream_batch", sa.MetaData(), autoload_with=connection)
            row = dict(connection.execute(sa.select(batch)).mappings().one())
        with ThreadPoolExecutor(1) as pool:
            with engine.begin() as connection:
                connection.execute(batch.insert().values(row | {"txid": 2}))
                monkeypatch.setattr(Sessions, "_connect", begin)
                upgraded = pool.submit(database.upgrade)
                assert begun.wait(30)
                assert not upgraded.done()
            assert upgraded.result(30)[0] == revision
        engine.dispose()
        assert [found.txid for found in database.batches("words")] == [1, 2]
        assert rig.values() == {"a": 1, "b": 2}


class UpgradeContract(RevisionContract):
    """All of it."""
