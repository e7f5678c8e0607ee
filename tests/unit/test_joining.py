"""States that are added to a topology that has committed batches, and tables that get more columns."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.states import PLANNED, PROCESSED
from support.upgrading import COUNTS, ROWS, SPOUTS, Store, counts, storing, totals

from txstream.api.reducers import Count, Sum
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    FencedError,
    IdentityMismatchError,
    ProgressMismatchError,
    StaleAttemptError,
    StateTableError,
)
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid, attempt_id
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.state import BatchRecord, StateDatabase, TopologyStates, open_database
from txstream.testing import CrashError, TopologyTest
from txstream.zookeeper import Identity

EXAMPLE: dict[str, Any] = {
    "topology": "words",
    "uuid": "u",
    "txid": Txid(2),
    "attempt": AttemptId(0),
    "semantics": Semantics.OPAQUE,
    "status": "committed",
    "metas": {"partitions": {}},
    "tuples": 2,
    "keys": 0,
    "planned_at": PLANNED,
    "processed_at": PROCESSED,
    "committed_at": PROCESSED,
    "error": None,
}
LATER = {word: sum(x for w, x in ROWS[4:] if w == word) for word in "abd"}  # from txid 3 on


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout("word string, x bigint", {"p": ROWS}) as spout:
        yield spout


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another database."""
    return f"sqlite:///{tmp_path / 'other.db'}"


def both(default: float | None = 0.0) -> Store:
    """`counts` with one more column."""
    state = SqlState("counts", key="word string", value="n bigint, total double", defaults={"total": default})
    return state, {"n": Count(), "total": Sum("x")}


# --- tables that grow --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])
def test_a_column_is_added_between_two_runs(
    source: MemorySpout, spout: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "txstream")
    source = MemorySpout("word string, x double", {"p": [(word, float(x)) for word, x in ROWS]})
    with source, TopologyTest(storing(source, spout, counts())) as test:
        test.commit(2)
        test.crash()
        test.restart(storing(source, spout, both()))
        assert "words: counts: column 'total' added, with default 0.0" in caplog.text
        test.run()
        assert {word: row[0] for word, row in test.table("counts").items()} == COUNTS
        assert {word: row[1] for word, row in test.table("counts").items()} == {**LATER, "c": 0.0}
        test.restart()
        with pytest.raises(StateTableError, match=r"\('total' removed\)"):
            test.restart(storing(source, spout, counts()))


def part_way(source: MemorySpout, spout: Any, other: str) -> TopologyTest:
    """A topology that was killed when only the first of its two databases had committed txid 2."""
    test = TopologyTest(storing(source, spout, counts(), counts("elsewhere", other)))
    test.restart()
    test.commit(1)
    test.crash(Point.BETWEEN_COMMITS, txid=2)
    return test


@pytest.mark.parametrize("column", ["counts", "elsewhere"])
def test_a_column_is_added_while_a_txid_is_committed_in_part(other: str, column: str) -> None:
    with MemorySpout("word string, x double", {"p": [(word, float(x)) for word, x in ROWS]}) as source:
        test = part_way(source, OpaqueSpout, other)
        with contextlib.closing(test):
            state, reducers = both()
            grown = replace(state, table=column, url=other if column == "elsewhere" else None), reducers
            rest = counts() if column == "elsewhere" else counts("elsewhere", other)
            test.restart(storing(source, OpaqueSpout, grown, rest))
            test.run()
            second = {"a": 17.0, "c": 4.0, "b": 5.0, "d": 7.0}  # from txid 2 on
            assert {word: row[0] for word, row in test.table(column).items()} == COUNTS
            assert {word: row[1] for word, row in test.table(column).items()} == second
            assert test.table(rest[0].table) == COUNTS


def test_a_transactional_table_waits_for_the_end_of_a_txid(other: str) -> None:
    with MemorySpout("word string, x double", {"p": [(word, float(x)) for word, x in ROWS]}) as source:
        test = part_way(source, TransactionalSpout, other)
        with contextlib.closing(test):
            before = storing(source, TransactionalSpout, counts(), counts("elsewhere", other))
            after = storing(source, TransactionalSpout, both(), counts("elsewhere", other))
            with pytest.raises(StateTableError, match=r"while txid 2 is committed in part.*--until-txid 2"):
                test.restart(after)
            test.restart(before)
            test.commit(2)
            test.restart(after)
            test.run()
            assert {word: row[0] for word, row in test.table("counts").items()} == COUNTS
            assert test.table("elsewhere") == COUNTS


# --- states that are added ---------------------------------------------------------------------------------


def ledger(url: str) -> list[tuple[int, str]]:
    database = open_database(url)
    found: list[tuple[int, str]] = [(row.txid, row.status) for row in database.batches("words")]
    database.close()
    return found


@SPOUTS
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_state_is_added(source: MemorySpout, spout: Any, other: str, elsewhere: bool) -> None:
    with TopologyTest(storing(source, spout, counts())) as test:
        test.commit(1)
        test.crash(Point.AFTER_COMMIT, txid=2)
        more = storing(source, spout, counts(), totals(url=other if elsewhere else None))
        test.restart(more)
        assert test.current == 3
        test.commit(3)
        test.crash(Point.AFTER_COMMIT, txid=4)
        test.restart()
        assert test.current == 5
        test.run()
        assert test.table("counts") == COUNTS
        assert test.table("totals") == LATER
        if elsewhere:
            assert ledger(other) == [(2, "committed"), (3, "committed"), (4, "committed")]
            mine, theirs = open_database(test.database_url), open_database(other)
            first, joined = mine.batch("words", 2), theirs.batch("words", 2)
            assert first is not None and joined is not None  # noqa: PT018 - for the type checker
            assert (joined.attempt, joined.metas, joined.keys) == (first.attempt, first.metas, 0)
            documents = [database.topologies()[0].identity for database in (mine, theirs)]
            assert documents[0] == documents[1]
            assert documents[0] is not None
            assert documents[0]["identity"]["tables"] == ["counts", "totals"]
            assert len(documents[0]["databases"]) == 2
            mine.close()
            theirs.close()


def test_a_ledger_of_another_attempt_does_not_go_on_from_there(source: MemorySpout, other: str) -> None:
    """An abandoned joining left it. What it was based on has since been restored from a copy."""
    with TopologyTest(storing(source, OpaqueSpout, counts())) as test:
        test.commit(1)
        with (
            contextlib.closing(open_database(test.database_url)) as first,
            contextlib.closing(open_database(other)) as database,
        ):
            database.ensure_framework_tables()
            uuid = first.topologies()[0].uuid
            database.of("words", uuid, Semantics.OPAQUE).join(first_run=True)
            left = BatchRecord(**{**EXAMPLE, "txid": Txid(1), "uuid": uuid, "attempt": attempt_id(1, 99)})
            database.of("words", uuid, Semantics.OPAQUE).begin_ledger(AttemptId(0), left)
        test.crash()
        test.restart(storing(source, OpaqueSpout, counts(), totals(url=other)))
        test.run()
        assert test.table("counts") == COUNTS
        assert test.table("totals") == {"a": 17, "b": 5, "c": 4, "d": 7}


def test_a_database_that_others_states_are_in_is_judged_by_its_ledger_though_a_state_joins(
    source: MemorySpout,
) -> None:
    """Otherwise a copy would be taken for an empty database, and its ledger be written anew."""
    with TopologyTest(storing(source, OpaqueSpout, counts())) as test:
        test.commit(1)
        engine = sa.create_engine(test.database_url)
        with engine.begin() as connection:
            connection.execute(sa.text("UPDATE txstream_batch SET attempt = attempt - 1"))
        engine.dispose()
        test.crash()
        with pytest.raises(ProgressMismatchError, match="ZooKeeper has attempt"):
            test.restart(storing(source, OpaqueSpout, counts(), totals()))


@SPOUTS
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_state_is_added_before_the_first_batch(
    source: MemorySpout, spout: Any, other: str, elsewhere: bool
) -> None:
    with TopologyTest(storing(source, spout, counts())) as test:
        test.restart(storing(source, spout, counts(), totals(url=other if elsewhere else None)))
        test.run()
        assert test.table("counts") == COUNTS
        assert test.table("totals") == {"a": 18, "b": 7, "c": 4, "d": 7}


@SPOUTS
def test_a_state_is_added_while_a_txid_is_committed_in_part(
    source: MemorySpout, spout: Any, other: str, tmp_path: Path
) -> None:
    """It counts from that txid on, because nothing of that txid was written there."""
    test = part_way(source, spout, other)
    third = f"sqlite:///{tmp_path / 'third.db'}"
    with contextlib.closing(test):
        added = [totals(), totals("totals_elsewhere", third)]
        test.restart(storing(source, spout, counts(), counts("elsewhere", other), *added))
        assert test.current == 2
        test.run()
        assert test.table("counts") == test.table("elsewhere") == COUNTS
        from_second = {"a": 17, "b": 5, "c": 4, "d": 7}
        assert test.table("totals") == test.table("totals_elsewhere") == from_second


def test_a_state_is_added_to_a_topology_without_any(source: MemorySpout) -> None:
    with TopologyTest(storing(source, OpaqueSpout)) as test:
        test.commit(1)
        test.crash(Point.AFTER_COMMIT, txid=2)
        test.restart(storing(source, OpaqueSpout, totals()))
        assert test.current == 3
        test.run()
        assert test.table("totals") == LATER


def test_a_state_that_is_removed_or_ambiguous_is_refused(source: MemorySpout, other: str) -> None:
    with TopologyTest(storing(source, OpaqueSpout, counts(), totals())) as test:
        test.commit(1)
        with pytest.raises(
            IdentityMismatchError, match="state tables were counts, totals and are counts now"
        ):
            test.restart(storing(source, OpaqueSpout, counts()))
        with pytest.raises(IdentityMismatchError, match="were counts, totals and are counts, words now"):
            test.restart(storing(source, OpaqueSpout, counts(), totals("words")))
        with pytest.raises(IdentityMismatchError, match="are counts, counts, totals now"):
            test.restart(storing(source, OpaqueSpout, counts(), totals(), counts(url=other)))


class Steps:
    """The external writes of a start. After `left` of them, the driver dies before the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.names: list[str] = []
        for owner, name in [
            (StateDatabase, "ensure_framework_tables"),
            (StateDatabase, "join"),
            (TopologyStates, "raise_fence"),
            (StateDatabase, "migrate"),
            (StateDatabase, "begin_ledger"),
            (MemoryProgress, "claim_epoch"),
            (MemoryProgress, "replace_identity"),
        ]:
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self.left == 0:
                raise CrashError(f"before {name}")
            self.left -= 1
            answer = write(*arguments, **options)
            self.names.append(name)
            return answer

        return counted


@pytest.mark.parametrize("reverted", [False, True], ids=["again", "reverted"])
def test_a_crash_at_each_step_of_a_joining(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reverted: bool
) -> None:
    """The next start resumes the joining, even if the former code has run in between."""
    steps = Steps(monkeypatch)
    done = False
    for number in range(100):
        other = f"sqlite:///{tmp_path / f'other{number}.db'}"
        with MemorySpout("word string, x bigint", {"p": ROWS}) as source:
            before = storing(source, OpaqueSpout, counts())
            after = storing(source, OpaqueSpout, counts(), totals(), totals("totals_elsewhere", other))
            with TopologyTest(before) as test:
                test.commit(1)
                test.crash()
                steps.left, steps.names = number, []
                try:
                    test.restart(after)
                    done = True
                except CrashError:
                    pass
                steps.left = float("inf")
                joined = "replace_identity" in steps.names
                first = 2
                if reverted and not joined:
                    test.restart(before)
                    test.commit(2)
                    first = 3
                test.restart(after)
                test.run()
                assert test.table("counts") == COUNTS, steps.names
                expected: dict[str, int] = {}
                for word, x in ROWS[2 * (first - 1) :]:
                    expected[word] = expected.get(word, 0) + x
                assert test.table("totals") == expected, steps.names
                assert test.table("totals_elsewhere") == expected, steps.names
                assert ledger(other)[0] == (first - 1, "committed")
        if done:
            break
    assert done
    assert {"begin_ledger", "replace_identity"} <= set(steps.names)
    assert number > 10


def test_a_leader_that_has_been_succeeded_writes_no_baseline(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'state.db'}")
    database.ensure_framework_tables()
    database.of("words", "u", Semantics.OPAQUE).join(first_run=True)
    database.of("words", "u", Semantics.OPAQUE).raise_fence(attempt_id(3, 0))
    last = BatchRecord(**{**EXAMPLE, "attempt": attempt_id(1, 1)})
    database.of("words", "u", Semantics.OPAQUE).begin_ledger(attempt_id(3, 0), last)
    assert database.batches("words") == [last]
    with pytest.raises(StaleAttemptError):
        database.of("words", "u", Semantics.OPAQUE).begin_ledger(
            attempt_id(2, 0), replace(last, txid=Txid(9))
        )
    assert database.batches("words") == [last]
    database.close()


# --- the identity ------------------------------------------------------------------------------------------


IDENTITY = Identity.new(Semantics.OPAQUE, "a.Spout", {}, ("counts",))


def store(tree: MemoryTree) -> MemoryProgress:
    return MemoryProgress(tree, "words", MetaCodec(MemoryRange))


def test_the_identity_is_replaced_by_the_leader_alone() -> None:
    tree = MemoryTree()
    leader, successor = store(tree), store(tree)
    leader.create_identity(IDENTITY)
    leader.claim_epoch(Epoch(0))
    wider = replace(IDENTITY, tables=("counts", "totals"))
    leader.replace_identity(wider)
    leader.replace_identity(wider)
    assert successor.read_identity() == wider
    successor.claim_epoch(Epoch(0))
    with pytest.raises(FencedError):
        leader.replace_identity(IDENTITY)
    assert successor.read_identity() == wider


def test_an_answer_that_is_lost_does_not_matter() -> None:
    """The write arrives after a newer leader has stored something else."""
    tree = MemoryTree()
    leader, successor = store(tree), store(tree)
    leader.create_identity(IDENTITY)
    leader.claim_epoch(Epoch(0))
    tree.delay_next_write()
    leader.replace_identity(replace(IDENTITY, tables=("counts", "totals")))
    successor.claim_epoch(Epoch(0))
    successor.replace_identity(replace(IDENTITY, tables=("counts", "totals", "words")))
    tree.deliver_late()
    found = successor.read_identity()
    assert found is not None
    assert found.tables == ("counts", "totals", "words")
