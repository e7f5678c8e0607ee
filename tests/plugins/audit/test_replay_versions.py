"""A dry run of a batch looks rows up as they were before it, if the table keeps versions. What a tuple must
get is told by a loop over the records, batch by batch (`expected`), which reads no table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.lists import each
from unit.test_lookups import FIELDS, SPOUTS, expected, joining, some_records, users_table

from txstream import MemorySpout, OpaqueSpout, Semantics, SqlTable, TransactionalSpout, Versions, inspect
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import TopologyError
from txstream.core.fault_points import Point
from txstream.engine.start.driver import Driver
from txstream.plugins.audit.version_pruning import VersionPruner
from txstream.plugins.change.rewind_command import settle
from txstream.plugins.change.rewinding import rewind_in
from txstream.plugins.change.savepoints import create_savepoint, opened
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.testing import driver as testing_driver
from txstream.settings import Settings
from txstream.spouts.memory import MemoryRange
from txstream.state import StateDatabase
from txstream.testing import TopologyTest

REMOVALS = "kind = 'gone'"


def kept(**options: Any) -> SqlTable:
    return users_table(**{"removed_by": REMOVALS, "changes_to": Versions(), **options})


def looked_up(made: Any, settings: Settings, first: int, last: int) -> dict[int, tuple[str, str | None]]:
    """Return what a dry run of these batches emits: user and name by the number of the order."""
    found = inspect.replay(made, first, settings, last=last, component="named")
    assert found.tuples is not None
    return {row["at"]: (row["user"], row["name"]) for row in found.tuples.to_pylist()}


@pytest.mark.parametrize(
    ("name", "commit"),
    [
        ("opaque", "auto"),
        pytest.param("transactional", "executors", marks=pytest.mark.soak),
        pytest.param("opaque", "executors", marks=pytest.mark.soak),
        pytest.param("transactional", "auto", marks=pytest.mark.soak),
    ],
)
def test_each_batch_is_joined_again_with_the_rows_of_then(tmp_path: Path, name: str, commit: Any) -> None:
    """Attempts are undone in between, on both paths: they have left no version."""
    settings = Settings(database=f"sqlite:///{tmp_path / 's.db'}")
    records = some_records(7, count=40)
    at = Point.AFTER_WRITE if commit == "executors" else Point.INSIDE_COMMIT
    with MemorySpout(FIELDS, {"p": records}) as source:
        table = kept(semantics=Semantics.OPAQUE, index_txid=commit == "auto")
        made = joining(source, SPOUTS[name], table, commit=commit)
        with TopologyTest(made, database=settings.database, width=2) as test:
            for txid in (2, 5, 8):
                test.crash(at=at, txid=txid)
                test.restart()
            test.run()
            last = test.current - 1
        alone = looked_up(made, settings, 5, 5)
        assert alone == {at: row for at, row in expected(records).items() if at in alone}
        assert looked_up(made, settings, 1, last) == expected(records)
        again = inspect.replay(made, 1, settings, last=last)
        assert (again.same, again.lookups) == (True, "then")
        assert again.notes == ("rows are looked up in table 'users' as it was before each batch",)
        because = inspect.why(made, "joined", [max(expected(records))], settings)
        assert because.lookups == "then"
        assert because.is_complete


@each("removed_by", [None, REMOVALS])
def test_while_executors_commit_rows_are_read_as_of_then(tmp_path: Path, removed_by: str | None) -> None:
    """A batch that has written its rows, and not yet its versions."""
    settings = Settings(database=f"sqlite:///{tmp_path / str(removed_by is None)}")
    told = [(0, "user", "a", "ann"), (1, "order", "a", None), (2, "order", "b", None)]
    with MemorySpout(FIELDS, {"p": told}) as source:
        made = joining(source, table=kept(removed_by=removed_by), commit="executors")
        with TopologyTest(made, database=settings.database) as test:
            test.run()
            source.append("p", (3, "user", "a", "Ann"), (4, "user", "b", "bob"))
            test.crash(at=Point.AFTER_WRITE, txid=2)
            assert {row["name"] for row in test.rows("users")} == {"Ann", "bob"}
            assert looked_up(made, settings, 1, 1) == {1: ("a", "ann"), 2: ("b", None)}
            test.restart()
            test.run()
            assert looked_up(made, settings, 1, 1) == {1: ("a", "ann"), 2: ("b", None)}


def test_before_versions_were_kept_it_is_the_table_of_today_and_is_said(tmp_path: Path) -> None:
    """Versions are asked for once two batches are committed."""
    settings = Settings(database=f"sqlite:///{tmp_path / 's.db'}")
    with MemorySpout(FIELDS, {"p": [(0, "user", "a", "n0"), (1, "order", "a", None)]}) as source:
        plain = joining(source, table=users_table(index_txid=True))
        keeps = joining(source, table=users_table(changes_to=Versions()))
        with TopologyTest(plain, database=settings.database) as test:
            test.run()
            for number, made in enumerate([plain, keeps, keeps, keeps], 2):
                source.append("p", (10 * number, "user", "a", f"n{number}"), (number, "order", "a", None))
                test.restart(made)
                test.run()
            assert test.current - 1 == 5
        found = inspect.replay(keeps, 1, settings, last=5)
        assert found.lookups == "today"
        assert found.notes == (
            "rows are looked up in table 'users' as it was before each batch",
            "rows of batches before txid 3 are looked up in table 'users' as it is today, because earlier "
            "rows are not kept",
        )
        assert inspect.replay(keeps, 3, settings, last=5).lookups == "then"
        assert inspect.replay(plain, 3, settings, last=5).lookups == "today"


@pytest.mark.soak
def test_versions_tell_nothing_of_what_was_before_a_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing_driver, "Driver", partial(Driver, settlers=[settle]))
    settings = Settings(database=f"sqlite:///{tmp_path / 's.db'}")
    with MemorySpout(FIELDS, {"p": [(0, "user", "a", "n0"), (1, "order", "a", None)]}) as source:
        made = joining(source, table=kept())
        with TopologyTest(made, database=settings.database) as test:

            def come(*records: tuple[int, str, str, str | None]) -> None:
                source.append("p", *records)
                test.run()

            test.run()
            create_savepoint("lookups", "monday", settings)
            come((2, "user", "a", "n2"), (3, "user", "b", "n3"), (4, "order", "a", None))
            come((5, "gone", "a", None), (6, "order", "a", None))
            test.crash()
            store = MemoryProgress(test._control.driver._world.tree, "lookups", MetaCodec(MemoryRange))
            identity = store.read_identity()
            assert identity is not None
            with opened("lookups", settings) as databases:
                done = rewind_in("lookups", "monday", identity, store, databases, MetaCodec(MemoryRange))
            assert done.txid == 4
            test.restart()
            test.run()  # all of it in two batches of four
            come((7, "user", "a", "n7"), (8, "order", "b", None))
            come((9, "gone", "b", None), (10, "order", "a", None))
            last = test.current - 1
        wanted = {4: ("a", None), 6: ("a", None), 8: ("b", "n3"), 10: ("a", "n7")}
        again = inspect.replay(made, 5, settings, last=last)
        assert (again.same, again.lookups) == (True, "then")
        assert looked_up(made, settings, 5, last) == wanted
        assert inspect.replay(made, 3, settings).lookups == "today"


def test_versions_go_with_the_ledger(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path / 's.db'}")
    records: list[Any] = []
    for at in range(0, 40, 2):
        records += [(at, "user", "a", f"n{at}"), (at + 1, "order", "a", None)]
    with MemorySpout(FIELDS, {"p": records}) as source:
        made = joining(source, table=kept())
        with TopologyTest(made, database=settings.database) as test:
            test.run()
            last = test.current - 1
        database = StateDatabase(str(settings.database))
        pruner = VersionPruner("lookups", ["users_versions"], [database])
        assert pruner.prune() == 0
        database.prune("lookups", committed_before=None, newest=4, rows=100)
        assert database.oldest_txid("lookups") == last - 3
        assert pruner.prune() == last - 4
        with database.read_state("lookups") as reading:
            found = {row.txid for row in reading.written_since("users_versions", 1)}
        assert found == {*range(last - 3, last + 1)}
        database.close()
        again = inspect.replay(made, last - 3, settings, last=last)
        assert (again.same, again.lookups) == (True, "then")


def test_what_cannot_have_versions_is_refused() -> None:
    first = SqlTable("users", "name string", key="id string", on_conflict="ignore", changes_to=Versions())
    with MemorySpout(FIELDS) as source:
        for spout, table in ((TransactionalSpout, kept()), (OpaqueSpout, first)):
            with pytest.raises(TopologyError, match="keeps versions, but its rows do not know what they"):
                joining(source, spout, table)
