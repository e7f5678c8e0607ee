"""Two commit paths, one result: the driver's transaction, executors' shares, and both mixed in one run."""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commit_paths import (
    BY_EXECUTORS,
    KEYS,
    PATHS,
    Shares,
    check,
    counted,
    counted_in,
    counting,
    ledger,
    paths,
    watch_shares,
    word_source,
)
from support.guide import DOCS
from support.storm import states

import txstream.plugins.testing.topology
from txstream.api.bolts import BasicBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import (
    TopologyError,
)
from txstream.core.fault_points import WRITE_POINTS, Point
from txstream.core.transaction import Txid
from txstream.engine.batch.shares import Message
from txstream.engine.commit import committer as commit, state_targets as targets
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase
from txstream.testing import AttemptState, CrashError, NotReachedError, TopologyTest
from txstream.zookeeper import ROOT, Paths

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
EACH_PATH = pytest.mark.parametrize("path", PATHS)
COMMITTED, FAILED = AttemptState.COMMITTED, AttemptState.FAILED
OF_A_COMMIT = [
    Point.BEFORE_COMMIT,
    *WRITE_POINTS,
    Point.INSIDE_COMMIT,
    Point.BETWEEN_COMMITS,
    Point.AFTER_COMMIT,
]


class Nothing(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        pass


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with word_source() as spout:
        yield spout


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Shares:
    return watch_shares(monkeypatch)


@pytest.fixture
def second(tmp_path: Path) -> str:
    """The URL of another database."""
    return f"sqlite:///{tmp_path / 'second.db'}"


# --- which path --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])
@EACH_PATH
def test_the_path_is_chosen_by_batch_and_told_by_the_ledger(
    source: MemorySpout, spout: Any, path: str, shares: Shares
) -> None:
    topology = counting(source, spout, tables=["counts"], **PATHS[path])
    with TopologyTest(topology) as test:
        test.run()
        check(test, counted(), ["counts"])
        rows = ledger(test.database_url)
        wanted = ["executors" if by_executors else "driver" for by_executors in BY_EXECUTORS[path]]
        assert paths(test.database_url) == wanted
        assert [row.keys for row in rows] == list(KEYS)
        assert all(row.status == "committed" for row in rows)
        # There are three slots, and no share is without a row.
        in_shares = [keys for keys, way in zip(KEYS, wanted, strict=True) if way == "executors"]
        assert len(shares.seen) == sum(min(3, keys) for keys in in_shares)


def test_with_no_option_small_batches_are_committed_by_the_driver(source: MemorySpout) -> None:
    with TopologyTest(counting(source)) as test:
        test.run()
        assert paths(test.database_url) == 4 * ["driver"]


def test_with_no_option_large_batches_go_to_executors_where_several_may_write(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite has one writer at a time."""
    monkeypatch.setattr(commit, "DRIVER_COMMIT_ROWS", 2)
    for is_sqlite, way in ((True, "driver"), (False, "executors")):
        monkeypatch.setattr(targets, "_is_sqlite", lambda url, found=is_sqlite: found)
        with TopologyTest(counting(source)) as test:
            test.run()
            assert paths(test.database_url) == [way, way, way, "driver"]


@EACH_PATH
def test_a_batch_without_deltas_is_one_transaction_of_the_driver(path: str) -> None:
    """Every database still gets its ledger row."""
    with MemorySpout("word string", {"p0": ["ash"], "p1": ["oak"]}) as source:
        builder = TransactionalTopologyBuilder("paths", "words", OpaqueSpout(source), **PATHS[path])
        builder.set_bolt("none", Nothing()).shuffle_grouping("words")
        state = SqlState("counts", key="word string", value="n bigint")
        builder.set_committer_bolt("counts", SqlStateBolt(state, n=Count())).fields_grouping("none", "word")
        with TopologyTest(builder.build()) as test:
            test.run()
            assert paths(test.database_url) == ["driver"]
            assert test.table("counts") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"commit": "executor"}, r"commit is 'executor'; it must be one of 'auto', 'driver', 'executors'"),
        ({"commit": None}, "commit is None; it must be one of"),
        ({"driver_commit_rows": 0}, "driver_commit_rows is 0; it must be a whole number of at least 1"),
        ({"driver_commit_rows": 1e5}, "driver_commit_rows is 200000.0; it must be a whole number"),
        (
            {"driver_commit_rows": 10, "commit": "driver"},
            "nothing is chosen by size; leave one of the two out",
        ),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    source: MemorySpout, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        counting(source, **options)


def test_a_store_that_executors_cannot_open_is_committed_by_the_driver(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StateDatabase, "on_executors", False)
    with TopologyTest(counting(source, driver_commit_rows=1)) as test:
        test.run()
        assert set(paths(test.database_url)) == {"driver"}
    with pytest.raises(TopologyError, match=r"commit='executors', but sqlite:.* cannot be opened by another"):
        TopologyTest(counting(source, commit="executors")).__enter__()


# --- faults on either path ---------------------------------------------------------------------------------


def passed(point: Point, path: str, txid: int, *, databases: int = 1) -> bool:
    """Does the commit of this txid get to the point?"""
    if point in WRITE_POINTS:
        return BY_EXECUTORS[path][txid - 1]
    return point is not Point.BETWEEN_COMMITS or databases > 1


# In a mixed run txid 1 is written by executors and txid 2 by the driver.
FAULTS = [(at, txid) for txid in (1, 2) for at in OF_A_COMMIT if passed(at, "mixed", txid)]


@BOTH
@pytest.mark.parametrize(("at", "txid"), FAULTS)
def test_an_attempt_that_fails_anywhere_in_its_commit_is_undone_and_redone(
    source: MemorySpout, spout: Any, at: Point, txid: int
) -> None:
    """An opaque replay lacks words that the first attempt may have stored."""
    with TopologyTest(counting(source, spout, **PATHS["mixed"])) as test:
        test.fail(txid, at=at)
        if spout is OpaqueSpout:
            source.hide("p1")
            test.commit(txid)
            attempts = [test.attempts(number)[-1] for number in range(1, txid + 1)]
            assert "p1" not in attempts[-1].partitions
            check(test, counted_in(*attempts))
            source.show("p1")
        test.run()
        check(test, counted())
        assert states(test, txid) == [FAILED, COMMITTED]


BOTH_DATABASES = [
    (path, at) for path in ("driver", "executors") for at in OF_A_COMMIT if passed(at, path, 1, databases=2)
]


@BOTH
@pytest.mark.parametrize(("path", "at"), BOTH_DATABASES)
def test_a_driver_that_dies_anywhere_leaves_two_databases_exact(
    source: MemorySpout, spout: Any, path: str, at: Point, second: str
) -> None:
    topology = counting(source, spout, second=second, **PATHS[path])
    with TopologyTest(topology) as test:
        test.crash(at=at, txid=1)
        if at is Point.BETWEEN_COMMITS:
            assert ledger(test.database_url)[0].status == "committed"
            other = ledger(second)
            begun = BY_EXECUTORS[path][0]
            assert [row.status for row in other] == (["committing"] if begun else [])
        if spout is OpaqueSpout:
            source.hide("p1")
        test.restart()
        committed = at is Point.AFTER_COMMIT
        assert test.current == (2 if committed else 1)
        if spout is OpaqueSpout:
            last = test.commit()
            before = [] if not committed else [test.attempts(1)[0]]
            check(test, counted_in(*before, last))
            source.show("p1")
        test.run()
        check(test, counted())
        one, two = ledger(test.database_url), ledger(second)
        assert [(row.txid, row.attempt, row.status) for row in one] == [
            (row.txid, row.attempt, row.status) for row in two
        ]


@BOTH
def test_a_driver_that_dies_between_two_shares_leaves_every_table_exact(
    source: MemorySpout, spout: Any, shares: Shares, second: str
) -> None:
    """One share is written, in one of the databases. The opaque replay has none of its words."""

    def dying(write: Callable[[Message], bytes], message: Message) -> bytes:
        if len(shares.seen) == 2:
            raise CrashError("between two shares")
        return write(message)

    shares.write = dying
    with TopologyTest(counting(source, spout, second=second, commit="executors")) as test:
        with pytest.raises(CrashError):
            test.commit(1)
        shares.write = None
        assert set(test.table("counts")) == {"ash"}
        if spout is OpaqueSpout:
            source.hide("p0")
        test.restart()
        check(test, counted_in(test.commit(1)))
        source.show("p0")
        test.run()
        check(test, counted())


@pytest.mark.parametrize("at", [Point.AFTER_BEGIN, Point.AFTER_WRITE, Point.BETWEEN_COMMITS])
def test_a_plan_that_only_a_begun_commit_still_has_is_adopted(
    source: MemorySpout, at: Point, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper has lost the plan. The replay must hold the same words, though the source has more by now."""
    tree = MemoryTree()
    monkeypatch.setattr(txstream.plugins.testing.topology, "MemoryTree", lambda: tree)
    with TopologyTest(counting(source, TransactionalSpout, second=second, commit="executors")) as test:
        test.crash(at=at, txid=1)
        planned = test.attempts(1)[0].partitions
        tree.remove(Paths(ROOT, "paths").meta(Txid(1)))
        source.append("p3", "new")
        test.restart()
        test.commit(1)
        assert test.attempts(1)[-1].partitions == planned
        test.run()
        check(test, counted() + counted({"p3": ["new"]}))


def test_of_two_databases_each_takes_the_path_that_its_rows_are_worth(
    source: MemorySpout, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first database has two tables, and so twice the rows."""
    topology = counting(source, tables=["counts", "again", "other"], second=second, driver_commit_rows=2)
    for at in (Point.AFTER_WRITE, Point.BETWEEN_COMMITS):
        with TopologyTest(topology) as test:
            test.crash(at=at, txid=1)
            test.restart()
            test.run()
            check(test, counted(), ["counts", "again", "other"])
            assert paths(test.database_url) == ["executors", "driver", "executors", "driver"]
            assert paths(second) == 4 * ["driver"]
        Path(second.removeprefix("sqlite:///")).unlink()


@BOTH
def test_any_faults_in_any_order_leave_every_table_exact(
    source: MemorySpout, spout: Any, second: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    extra = {name: [chance.choice("uvwxyz") for _ in range(8)] for name in ("p0", "p1")}
    for name, rows in extra.items():
        source.append(name, *rows)
    with TopologyTest(counting(source, spout, second=second, **PATHS["mixed"])) as test:
        for _ in range(6):
            at = chance.choice(OF_A_COMMIT)
            hidden = chance.choice([None, "p0", "p1"]) if spout is OpaqueSpout else None
            try:
                if chance.random() < 0.5:
                    test.fail(at=at)
                else:
                    test.crash(at=at)
                    test.restart()
            except NotReachedError:
                continue  # this batch does not reach that point
            if hidden is not None:
                source.hide(hidden)
                test.settle()
                source.show(hidden)
        test.run()
        words = counted() + counted(extra)
        check(test, words)


# --- what the ledger tells ---------------------------------------------------------------------------------


@EACH_PATH
def test_the_ledger_has_the_time_of_each_step_and_the_attempts_that_failed(
    source: MemorySpout, path: str
) -> None:
    with TopologyTest(counting(source, TransactionalSpout, **PATHS[path])) as test:
        for number in range(12):
            test.fail(1, f"failure {number}")
        test.commit(2)
        first, later = ledger(test.database_url)
        steps = {"plan", "persist", "job", "read", "process", "merge"}
        by_executors = {"begin", "write"} if BY_EXECUTORS[path][0] else set()
        assert set(first.details["timings"]) == steps | by_executors
        assert all(seconds >= 0 for seconds in first.details["timings"].values())
        failed = test.attempts(1)[:-1]
        assert [entry["attempt"] for entry in first.details["attempts"]] == [
            a.id.attempt for a in failed[-10:]
        ]
        assert [entry["error"] for entry in first.details["attempts"]] == [
            f"failure {number}" for number in range(2, 12)
        ]
        assert all(entry["failed_at"].endswith("+00:00") for entry in first.details["attempts"])
        assert first.error == "failure 11"
        assert later.details["attempts"] == []
        # What its own row cannot have, since it is written in the commit, is in the next one's.
        assert {*later.details["timings_before"]} == {"commit", "advance"}
        assert "timings_before" not in first.details
        if BY_EXECUTORS[path][0]:
            assert later.details["timings_before"]["commit"] >= first.details["timings"]["write"]
        test.crash(at=Point.BEFORE_COMMIT, txid=3)
        test.restart()
        test.run()
        of_another_driver = ledger(test.database_url)[2]
        assert "timings_before" not in of_another_driver.details


def test_a_batch_that_is_begun_says_so_in_the_ledger(source: MemorySpout) -> None:
    with TopologyTest(counting(source, commit="executors")) as test:
        test.crash(at=Point.AFTER_BEGIN, txid=1)
        (row,) = ledger(test.database_url)
        assert (row.status, row.details["path"]) == ("committing", "executors")
        test.restart()
        test.run()
        check(test, counted())


# --- reading while it runs ----------------------------------------------------------------------------------


def last_committed(url: str) -> dict[str, int]:
    """Run the guide's query, which returns the table as of the last committed batch."""
    guide = (DOCS / "commits.md").read_text()
    (query,) = re.findall(r"^```sql\n(WITH .*?)^```$", guide, re.M | re.S)
    query = query.replace("'clicks'", "'paths'").replace("word_count", "counts")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return dict(connection.execute(query))


@EACH_PATH
def test_the_last_committed_batch_can_be_read_at_any_time(source: MemorySpout, path: str) -> None:
    """Attempts of txid 3 fail at each point of its commit. The query ignores their rows until one commits."""
    with TopologyTest(counting(source, tables=["counts"], **PATHS[path])) as test:
        test.commit(2)
        before = counted_in(test.attempts(1)[-1], test.attempts(2)[-1])
        seen = []
        for at in OF_A_COMMIT:
            if at is not Point.AFTER_COMMIT and passed(at, path, 3):
                test.fail(3, at=at)
                assert last_committed(test.database_url) == before
                seen.append(test.table("counts"))
        assert (len({str(rows) for rows in seen}) > 1) is BY_EXECUTORS[path][2], "rows of an open batch"
        test.commit(3)
        assert last_committed(test.database_url) == before + counted_in(test.attempts(3)[-1])
        test.run()
        assert last_committed(test.database_url) == counted()
