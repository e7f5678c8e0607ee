"""Forks: topologies beside another one, from its log or from a savepoint of it; made whole or not there."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.saved_rigs import BOTH, SPOUTS, SavedRig
from support.windows import FIELDS, HOURS, NOON, at

from txstream import (
    Count,
    DeadLetters,
    OpaqueSpout,
    Settings,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TransactionalTopologyBuilder,
    WindowBolt,
    WindowState,
)
from txstream.api.topology import Topology
from txstream.cli.beside import beside
from txstream.cli.main import main
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import ServiceUnavailableError, StateTableError, UsageError
from txstream.inspect.overview import look
from txstream.plugins.change import forking
from txstream.plugins.change.diffing import differences
from txstream.plugins.change.forking import Original, fork_in
from txstream.plugins.change.forks import Fork, fork_of, remark
from txstream.plugins.change.savepoints import create_savepoint, opened
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.testing import ManualClock, TopologyTest


class Died(BaseException):
    """As when the process is killed."""


class ForkRig(SavedRig):
    """A topology that is forked, and its fork."""

    forked: TopologyTest | None = None

    @property
    def zookeeper(self) -> Any:
        assert self.test is not None
        found = MemoryZooKeeper()
        found.memory = self.test._control._world.tree
        return found

    def fork(self, name: str = "new", *, code: Topology | None = None, **where: Any) -> Fork:
        assert self.test is not None
        identity = self.zookeeper.progress("words", MetaCodec(MemoryRange)).read_identity()
        with opened("words", self.settings) as databases:
            original = Original("words", identity, databases, code or self.test.topology, self.settings)
            return fork_in(self.zookeeper, original, name, **where)

    def run_fork(self, name: str = "new", code: Topology | None = None) -> TopologyTest:
        assert self.test is not None
        if self.forked is not None:
            self.forked.close()
        self.forked = TopologyTest(beside(code or self.test.topology, name), database=self.urls[0])
        world = self.forked._control._world
        self.forked._control._world = replace(world, tree=self.test._control._world.tree)
        self.forked.__enter__()
        self.forked.run()
        return self.forked

    def totals(self, number: int, suffix: str = "") -> dict[str, int]:
        return {row[0]: row[1] for row in self.rows(number, f"words_{number}{suffix}")}

    def ledger(self, number: int, name: str) -> list[int]:
        with sqlite3.connect(self.files[number]) as connection:
            query = "SELECT txid FROM txstream_batch WHERE topology = ? ORDER BY txid"
            return [txid for (txid,) in connection.execute(query, (name,))]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ForkRig]:
    with MemorySpout("word string, number bigint", {"words/0": [("a", 1), ("b", 2), ("a", 3)]}) as source:
        made = ForkRig(tmp_path, source)
        yield made
        for test in (made.test, made.forked):
            if test is not None:
                test.close()


def more(rig: ForkRig) -> None:
    rig.source.append("words/0", ("c", 4), ("a", 5), ("d", 6))
    assert rig.test is not None
    rig.test.run()


ALL = dict(Counter("abacad"))


@BOTH
def test_a_fork_from_the_earliest_reads_all_again_beside_the_original(rig: ForkRig, spout: str) -> None:
    rig.start(SPOUTS[spout]).run()
    more(rig)
    before = rig.all_rows()
    made = rig.fork()
    assert (made.of, made.began) == ("words", "earliest")
    assert made.tables == {name: f"{name}__new" for name in ("kept", "words_0", "words_1")}
    assert fork_of(rig.zookeeper, "new") == made
    rig.run_fork()
    assert rig.totals(0, "__new") == rig.totals(1, "__new") == ALL
    assert {row[0] for row in rig.rows(1, "kept__new")} == set("abcd")
    assert rig.all_rows() == before, "the original is only read"
    assert rig.ledger(0, "new") == rig.ledger(1, "new") == list(range(1, len(rig.ledger(0, "new")) + 1))


@BOTH
@pytest.mark.parametrize("folder", [False, True])
def test_a_fork_from_a_savepoint_has_its_rows_and_reads_what_came_since(
    rig: ForkRig, tmp_path: Path, spout: str, folder: bool
) -> None:
    rig.start(SPOUTS[spout]).run()
    create_savepoint("words", "monday", rig.settings, to=tmp_path / "saved" if folder else None)
    monday = rig.all_rows()
    more(rig)
    rig.fork(savepoint="monday")
    copied = {"words_0": (0, "words_0__new"), "words_1": (1, "words_1__new"), "kept": (1, "kept__new")}
    assert {name: rig.rows(*place) for name, place in copied.items()} == monday
    forked = rig.run_fork()
    assert rig.totals(0, "__new") == rig.totals(1, "__new") == ALL
    assert rig.ledger(1, "new")[0] == 3, "its first txid is after the savepoint's"
    forked.restart()
    forked.run()
    assert rig.totals(0, "__new") == ALL


def test_a_fork_from_a_txid_reads_from_where_that_began(rig: ForkRig) -> None:
    rig.start().run()
    more(rig)
    rig.fork(start="2")
    rig.run_fork()
    assert rig.totals(0, "__new") == dict(Counter("acad"))


STEPS = (
    "znode", "database 0 joined", "database 1 joined", "fences raised", "inside", "database 0 begun",
    "database 1 begun",
)  # fmt: skip


def test_a_fork_that_dies_is_not_there_and_the_same_command_makes_it(
    rig: ForkRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.start().run()
    create_savepoint("words", "monday", rig.settings)
    more(rig)
    before = rig.all_rows()

    def dies_at(step: str) -> Callable[[str], None]:
        def reached(name: str) -> None:
            if name == step:
                raise Died(step)

        return reached

    for step in STEPS:
        with monkeypatch.context() as patch:
            patch.setattr(forking, "_reached", dies_at(step))
            with pytest.raises(Died, match=step):
                rig.fork(savepoint="monday")
        assert rig.zookeeper.progress("new", MetaCodec(MemoryRange)).read_identity() is None, step
    rig.fork(savepoint="monday")
    rig.run_fork()
    assert rig.totals(0, "__new") == rig.totals(1, "__new") == ALL
    assert rig.all_rows() == before


def test_what_differs_is_told_at_the_same_place_only(rig: ForkRig) -> None:
    rig.start().run()
    more(rig)
    rig.fork(start="2")
    differ = partial(differences, "words", "new", rig.settings)
    (told,) = remark(rig.zookeeper, look(rig.zookeeper, "new"))
    assert (told.told, told.document["behind_records"]) == ("of words, from txid 2; 4 records behind it", 4)
    assert remark(rig.zookeeper, look(rig.zookeeper, "words")) == []
    with pytest.raises(UsageError, match="'new' is 4 records behind"):
        differ(now=True)
    with pytest.raises(ServiceUnavailableError, match="did not come to the same place within 0 s"):
        differ(timeout_seconds=0)
    rig.run_fork()
    found = differ(now=True)
    counts = {one.table: (one.equal, one.only_old, one.only_new, one.different) for one in found.states}
    assert counts == {"kept": (3, 1, 0, 0), "words_0": (2, 1, 0, 1), "words_1": (2, 1, 0, 1)}
    rows = {row.key["word"]: (row.old, row.new, row.size) for row in found.states[1].rows}
    assert rows == {"a": ({"n": 3}, {"n": 2}, 1.0), "b": ({"n": 1}, None, 1.0)}
    assert not found.same
    rig.fork("whole")
    rig.run_fork("whole")
    assert differences("words", "whole", rig.settings).same
    rig.source.append("words/0", ("e", 7))
    rig.run_fork("whole")
    with pytest.raises(UsageError, match="'whole' is 1 record ahead"):
        differences("words", "whole", rig.settings, now=True)


def test_what_cannot_be_forked_is_refused_and_leaves_nothing(rig: ForkRig) -> None:
    rig.start().run()
    tables = rig.tables(0), rig.tables(1)
    refused: list[tuple[Callable[[], Fork], str]] = [
        (lambda: rig.fork(savepoint="sunday"), "has no savepoint 'sunday'; it has none"),
        (lambda: rig.fork(start="9"), "has no txid 9 in its ledger"),
        (lambda: rig.fork(start="dawn"), "--from takes 'earliest', a txid, or a time such as"),
        (lambda: rig.fork(start="2026-01-31T12:00:00"), "has no offset"),
        (lambda: rig.fork(start="2026-01-31T12:00:00Z"), "does not know its records by their time"),
    ]
    for make, told in refused:
        with pytest.raises(UsageError, match=told):
            make()
    assert (rig.tables(0), rig.tables(1)) == tables
    assert fork_of(rig.zookeeper, "new") is None
    rig.fork()
    with pytest.raises(UsageError, match="there is a topology 'new' already"):
        rig.fork()
    with sqlite3.connect(rig.files[1]) as connection:
        connection.execute("CREATE TABLE kept__other (word TEXT)")
    with pytest.raises(StateTableError, match="'kept__other' exists and was not created by txstream"):
        rig.fork("other")
    assert fork_of(rig.zookeeper, "other") is None


def test_windows_expiring_rows_and_removed_rows_go_on_from_a_savepoint(tmp_path: Path) -> None:
    file, clock = tmp_path / "state.db", ManualClock((NOON + timedelta(days=2)).timestamp())
    url, settings = f"sqlite:///{file}", Settings(database=f"sqlite:///{file}")

    def records(*given: tuple[float, str, bool]) -> list[tuple[Any, ...]]:
        return [("p0", at(minutes), page, gone) for minutes, page, gone in given]

    def look_at(table: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(file) as connection:
            found = connection.execute(f'SELECT * FROM "{table}"')
            own = [n for n, (name, *_) in enumerate(found.description) if "txid" in name or "prev" in name]
            return sorted(str([v for n, v in enumerate(row) if n not in own]) for row in found)

    begun = records((1, "a", False), (2, "b", False), (3, "b", True), (100, "a", False), (200, "c", False))
    with MemorySpout(f"{FIELDS}, gone boolean", {"p0": begun}) as source:
        spout = OpaqueSpout(source, max_batch_records=2)
        made = TransactionalTopologyBuilder("t", "clicks", spout, dead_letters=DeadLetters(max_share=1.0))
        windows = WindowState("clicks", key="page string", value="n bigint", window=HOURS, late="dead-letter")
        made.set_bolt("count", WindowBolt(windows, n=Count())).fields_grouping("clicks", "page")
        last = SqlTable(
            "pages", "at timestamp", key="page string", on_conflict="replace", removed_by="gone",
            sequence_by="at",
        )  # fmt: skip
        made.set_bolt("last", SqlAppendBolt(last)).fields_grouping("clicks", "page")
        days = SqlState("days", key="page string, at timestamp", value="n bigint", keep="30d", keep_on="at")
        made.set_bolt("days", SqlStateBolt(days, n=Count())).fields_grouping("clicks", "page", "at")
        with TopologyTest(made, database=url, clock=clock) as test:
            test.run()
            create_savepoint("t", "sunday", settings)
            # A record that is older than a removal, one that is late, and one in time.
            source.append("p0", *records((2.5, "b", False), (4, "a", False), (210, "c", False)))
            world, zookeeper = test._control._world, MemoryZooKeeper()
            zookeeper.memory = world.tree
            identity = zookeeper.identity("t")
            assert identity is not None
            with opened("t", settings) as databases:
                original = Original("t", identity, databases, test.topology, settings)
                fork_in(zookeeper, original, "new", savepoint="sunday")
            test.run()
            forked = TopologyTest(beside(test.topology, "new"), database=url, clock=clock)
            forked._control._world = replace(forked._control._world, tree=world.tree)
            with forked:
                forked.run()
            for table in ("clicks", "days", "pages"):
                assert look_at(f"{table}__new") == look_at(table) != [], table
            assert look_at("pages__new__rows") == look_at("pages__rows")
            assert not any("'b'" in row for row in look_at("pages")), "an older record brings nothing back"
            assert differences("t", "new", settings).same


def test_a_person_is_told_what_differs(rig: ForkRig, capsys: pytest.CaptureFixture[str]) -> None:
    rig.start().run()
    more(rig)
    rig.fork(start="2")
    rig.run_fork()
    assert main(["diff", "words", "new", "--now", "--database", rig.urls[0]]) == 1
    told = capsys.readouterr()
    assert told.out.startswith("words at txid 4 and new at txid 3 are at the same place\n")
    assert "state kept: rows differ; state words_0: rows differ" in told.out
    assert re.search(r"^ words_0 +2 +1 +0 +1$", told.out, re.MULTILINE)
    assert re.search(r"^ a +3 +2$", told.out, re.MULTILINE)
    rig.fork("whole")
    rig.run_fork("whole")
    assert main(["diff", "words", "whole", "--now", "--database", rig.urls[0]]) == 0
    assert "state words_0: rows are the same" in capsys.readouterr().out
