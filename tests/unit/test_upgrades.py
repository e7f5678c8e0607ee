"""After an upgrade, a topology that has been running goes on, and its totals stay exact.

The database here is SQLite; the tests of each server run the same class.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from support.old_revisions import OLDER, at_revision, old_database
from support.upgrading import COUNTS, ROWS, SPOUTS, counts, storing

from txstream.core.errors import SchemaRevisionError
from txstream.core.fault_points import Point
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase
from txstream.state.sql.sessions import Sessions
from txstream.testing import TopologyTest


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestUpgrades:
    """Framework tables of every older revision, holding a topology that was killed."""

    @pytest.fixture
    def source(self) -> Iterator[MemorySpout]:
        with MemorySpout("word string, x bigint", {"p": ROWS}) as spout:
            yield spout

    @SPOUTS
    @pytest.mark.parametrize("revision", OLDER)
    def test_a_topology_goes_on_after_an_upgrade(
        self, database: StateDatabase, url: str, source: MemorySpout, spout: Any, revision: str
    ) -> None:
        # Revision 0001 knew no state tables. All it had of a topology was its ledger and its fence.
        stores = [] if revision == "0001" else [counts()]
        with TopologyTest(storing(source, spout, *stores), database=url) as test:
            test.commit(1)
            test.crash(Point.AFTER_COMMIT, txid=2)  # committed, but ZooKeeper does not know
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
        """The commit is by a driver of the older txstream, which knows only its own columns."""
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
