"""A topology in memory whose ZooKeeper and databases a test damages, and which then runs to its end."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.bolts import CountByHand, Split
from support.tables import read_counts
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import SourceSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.transaction import AttemptId
from txstream.inspect.records import FsckReport, Recovery
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.audit.recover_from_ledgers import recover_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase, TopologyLife
from txstream.testing import CrashError, TopologyTest

LINES = ["a b", "b", "c", "a", "d d", "a", "b c", "e", "a e", "c"]
TRUTH = dict(Counter(" ".join(LINES).split()))


def topology_over(
    source: MemorySpout, urls: list[str], spout: type[SourceSpout[Any]], **options: Any
) -> Topology:
    """Return a topology that counts words in a table of each database."""
    builder = TransactionalTopologyBuilder("words", "lines", spout(source, max_batch_records=2), **options)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    builder.set_bolt("count", CountByHand()).fields_grouping("split", "word")
    for number, url in enumerate(urls):
        state = SqlState(f"words_{number}", key="word string", value="n bigint", url=url)
        store = SqlStateBolt(state, n=Sum("n"))
        builder.set_committer_bolt(f"store_{number}", store).fields_grouping("count", "word")
    return builder.build()


@cache
def empty_database() -> bytes:
    """Return a SQLite file with the framework's tables; the scripts that make them take a while."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        database = StateDatabase(f"sqlite:///{path}")
        database.ensure_framework_tables()
        database.close()
        return path.read_bytes()


class Site:
    """A topology of five batches, its databases and its ZooKeeper in memory."""

    def __init__(self, folder: Path, spout: type[SourceSpout[Any]], databases: int, **options: Any) -> None:
        self.source = MemorySpout("value string", {"p": LINES})
        files = [folder / f"{number}.db" for number in range(databases)]
        for file in files:
            file.write_bytes(empty_database())
        self.urls = [f"sqlite:///{file}" for file in files]
        self.topology = topology_over(self.source, self.urls, spout, **options)
        self.test = TopologyTest(self.topology, database=self.urls[0])
        self.test.__enter__()
        self.databases = [StateDatabase(url) for url in self.urls]
        self.tree: MemoryTree = self.test._control._world.tree
        self.base = "/txstream/topologies/words"

    def close(self) -> None:
        self.test.close()
        for database in self.databases:
            database.close()
        self.source.close()

    def lose_zookeeper(self) -> None:
        self.tree.remove(self.base)

    def copy_zookeeper(self) -> dict[str, Any]:
        return dict(self.tree._nodes)

    def restore_zookeeper(self, copy: dict[str, Any]) -> None:
        self.tree._nodes = dict(copy)

    def store(self, codec: Any = None) -> MemoryProgress:
        return MemoryProgress(self.tree, "words", codec or MetaCodec(self.topology.spout.source.meta_type))

    def recover(self, **more: Any) -> Recovery:
        return recover_in("words", self.store, self.databases, **more)

    def fsck(self, **more: Any) -> FsckReport:
        code = {"topology": self.topology} | more
        return fsck_in("words", self.store, self.databases, Settings(), **code)

    def finish(self) -> None:
        """Run to the end, and compare the tables with the truth."""
        self.test.restart(self.topology)
        self.test.run()
        for number, url in enumerate(self.urls):
            assert read_counts(url, f"words_{number}") == TRUTH

    def raise_fence(self, number: int, attempt: AttemptId) -> None:
        database = self.databases[number]
        fence = database.read_fence("words")
        assert fence is not None
        database.of("words", fence.uuid, self.topology.semantics).raise_fence(attempt)

    def crash_between_databases(self, txid: int) -> None:
        """Let the driver die after the first database has committed `txid` and before the second one has."""
        second = self.test._control.driver.targets[1].database
        usual = second.begin

        def begin(life: TopologyLife, doing: str, **options: Any) -> Any:
            if doing.startswith(f"txid {txid} "):
                raise CrashError("the test killed the driver between two databases")
            return usual(life, doing, **options)

        second.begin = begin  # type: ignore[method-assign]
        with pytest.raises(CrashError):
            self.test.commit(txid)

    def execute(self, number: int, statement: str, values: Any = ()) -> None:
        engine = sa.create_engine(self.urls[number])
        with engine.begin() as connection:
            connection.exec_driver_sql(statement, tuple(values))
        engine.dispose()

    def query(self, number: int, statement: str) -> list[tuple[Any, ...]]:
        engine = sa.create_engine(self.urls[number])
        with engine.connect() as connection:
            rows = [tuple(row) for row in connection.exec_driver_sql(statement)]
        engine.dispose()
        return rows
