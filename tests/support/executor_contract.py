"""What every store must do when executors write a batch: begin, shares of tasks, end.

Subclasses have a fixture `url` with an empty store. What is said of locks in SQL is in `lock_contract`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from support.state_contract import FENCED, CrashError, StateFixtures, crash
from support.states import Rig, attempt, word_table
from txstream.api.errors import (
    CorruptStateError,
    ProgressMismatchError,
    StaleAttemptError,
    StateValueError,
    TxidRegressionError,
)
from txstream.api.reducers import Count
from txstream.semantics import Semantics
from txstream.state import Commit, StateBackend
from txstream.transaction import TransactionAttempt

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL


def by_executors(rig: Rig, txid: int, *shares: Mapping[Any, Any]) -> TransactionAttempt:
    """A whole commit from executors."""
    under = rig.begin(txid)
    rig.end(under, sum(rig.write(under, share) for share in shares))
    return under


class ExecutorContract(StateFixtures):
    """The second commit path, and both in one table."""

    @pytest.mark.parametrize("semantics", list(Semantics))
    def test_shares_of_several_tasks_are_one_batch(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        by_executors(rig, 1, {"a": 1, "b": 2}, {"c": 3})
        under = by_executors(rig, 2, {"c": 1}, {"d": 4}, {"a": 5})
        assert rig.values() == {"a": 6, "b": 2, "c": 4, "d": 4}
        last = rig.last()
        assert (last.txid, last.attempt, last.status, last.keys) == (2, under.attempt, "committed", 3)
        assert last.committed_at is not None

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_batch_that_has_begun_is_not_committed(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        under = rig.begin(1)
        for share in ({"a": 1}, {"b": 1}):
            rig.write(under, share)
            last = rig.last()
            assert (last.txid, last.attempt, last.status) == (1, under.attempt, "committing")
            assert last.committed_at is None
            assert not rig.states.outcome(under)
        rig.end(under)
        assert rig.states.outcome(under)

    @pytest.mark.parametrize("semantics", FENCED)
    def test_shares_in_any_order_and_written_again_count_once(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """Spark runs a task twice: speculation, or a stage computed again."""
        shares = ({"a": 1, "b": 1}, {"c": 1}, {"d": 1})
        for number, order in enumerate(itertools.permutations(shares)):
            name = f"t{number}"
            rig = Rig(database, url, word_table(name, semantics=semantics), topology=name).join()
            rig.commit(1, {"a": 10, "c": 10})
            under = rig.begin(2)
            for share in (*order, *order[:2], *order[:2]):
                rig.write(under, share)
            rig.end(under)
            rig.write(under, order[2])  # speculation that nobody stopped
            assert rig.values() == {"a": 11, "b": 1, "c": 11, "d": 1}

    # --- the fence ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_task_of_a_superseded_attempt_writes_nothing(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """Hole 2, on executors."""
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        zombie = rig.begin(1)
        rig.write(zombie, {"a": 1})
        under = rig.begin(1)
        with pytest.raises(StaleAttemptError, match=r"attempt 1\.1 has been superseded .* 1\.2; nothing was"):
            rig.write(zombie, {"b": 1})
        rig.write(under, {"a": 1})
        rig.end(under)
        rig.commit(2, {"a": 1})
        with pytest.raises(StaleAttemptError):
            rig.write(zombie, {"b": 1})
        assert rig.values() == {"a": 2}

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_new_leader_shuts_tasks_and_the_end_out(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        zombie = rig.begin(1)
        rig.states.raise_fence(attempt(1, 0, epoch=2).attempt)
        with pytest.raises(StaleAttemptError, match="another driver has taken over"):
            rig.write(zombie, {"a": 1})
        with pytest.raises(StaleAttemptError, match="another driver has taken over"):
            rig.end(zombie)
        assert rig.values() == {}
        assert rig.last().status == "committing"

    def test_a_task_of_an_attempt_that_was_never_begun_writes_nothing(self, rig: Rig) -> None:
        """The fence must be equal, not just no newer: a beginning that is late would undo the task's work,
        after it was told that it is done."""
        early = rig.next(1)
        with pytest.raises(CorruptStateError, match=r"is at attempt 0\.0, but 1\.1 was begun"):
            rig.write(early, {"a": 1})
        with pytest.raises(CorruptStateError, match=r"is at attempt 0\.0, but 1\.1 was begun"):
            rig.end(early)
        assert rig.values() == {}
        assert rig.database.last_batch(rig.topology) is None

    def test_a_superseded_attempt_neither_begins_nor_ends(self, rig: Rig) -> None:
        zombie = rig.begin(1)
        under = rig.begin(1)
        rig.write(under, {"a": 1})
        with pytest.raises(StaleAttemptError):
            rig.end(zombie)
        with pytest.raises(StaleAttemptError):
            begin_again(rig, zombie)
        assert (rig.last().attempt, rig.last().status) == (under.attempt, "committing")
        assert rig.values() == {"a": 1}
        rig.end(under)
        with pytest.raises(StaleAttemptError):
            rig.end(zombie)
        assert rig.last().attempt == under.attempt
        assert rig.values() == {"a": 1}

    def test_an_attempt_begins_once(self, rig: Rig) -> None:
        under = rig.begin(1)
        rig.write(under, {"a": 1})
        with pytest.raises(StaleAttemptError, match="has already been used for a commit"):
            begin_again(rig, under)
        rig.end(under)
        assert rig.values() == {"a": 1}

    def test_a_task_of_another_life_writes_nothing(self, rig: Rig) -> None:
        under = rig.begin(1)
        rig.uuid = "uuid-2"
        with pytest.raises(ProgressMismatchError, match="uuid uuid-2 in ZooKeeper"):
            rig.write(under, {"a": 1})
        assert rig.values() == {}

    # --- undoing --------------------------------------------------------------------------------------

    def test_phantom_keys_of_tasks(self, rig: Rig) -> None:
        """Hole 1: tasks of attempt 1 write {x, y} and never end; the replay holds {x} alone, and y comes
        again in the next batch."""
        rig.commit(4, {"y": 10})
        lost = rig.begin(5)
        rig.write(lost, {"x": 1})
        rig.write(lost, {"y": 1, "z": 1})
        under = rig.begin(5)
        assert rig.values() == {"y": 10}
        rig.write(under, {"x": 1})
        rig.end(under)
        by_executors(rig, 6, {"y": 1})
        assert rig.values() == {"x": 1, "y": 11}

    @pytest.mark.parametrize("again", ["driver", "executors"])
    @pytest.mark.parametrize("first", ["driver", "executors", "tasks only"])
    def test_either_path_undoes_the_other(self, rig: Rig, first: str, again: str) -> None:
        rig.commit(1, {"a": 1})
        if first == "driver":
            rig.commit(2, {"a": 5, "b": 5})
        elif first == "executors":
            by_executors(rig, 2, {"a": 5}, {"b": 5})
        else:
            rig.write(rig.begin(2), {"a": 5, "b": 5})
        if again == "driver":
            rig.commit(2, {"c": 2})
        else:
            by_executors(rig, 2, {"c": 2})
        assert rig.values() == {"a": 1, "c": 2}
        assert rig.last().status == "committed"

    def test_begin_says_committing_over_what_an_earlier_attempt_committed(self, rig: Rig) -> None:
        """It undoes that batch, so the ledger must stop saying that it is there."""
        rig.commit(1, {"a": 1})
        earlier = rig.commit(2, {"a": 5})
        under = rig.begin(2)
        assert not rig.states.outcome(earlier)
        last = rig.last()
        assert (last.attempt, last.status, last.committed_at) == (under.attempt, "committing", None)
        assert rig.values() == {"a": 1}

    @pytest.mark.parametrize("path", ["begin", "commit"])
    def test_every_table_is_undone_with_deltas_or_without(
        self, database: StateBackend, url: str, path: str
    ) -> None:
        first, second = word_table("first"), word_table("second", reducers={"n": Count()})
        rig = Rig(database, url, first).join()
        other = Rig(database, url, second)
        database.of(rig.topology, rig.uuid, OPAQUE, [first, second]).join(first_run=True)

        def whole(txid: int, **deltas: Mapping[str, int]) -> Commit:
            commit = rig.whole(rig.next(txid))
            tables = {name: rig.table_of(counts) for name, counts in deltas.items()}
            return Commit(
                commit.attempt, commit.metas, tables, commit.tuples, commit.planned_at, commit.processed_at
            )

        states = database.of(rig.topology, rig.uuid, OPAQUE, [first, second])
        states.commit(whole(1, first={"a": 1}, second={"a": 1}))
        states.commit(whole(2, first={"b": 1}, second={"a": 1}))
        if path == "begin":
            states.begin_commit(whole(2))
        else:
            states.commit(whole(2))
        assert rig.values() == {"a": 1}
        assert other.values() == {"a": 1}

    def test_a_transactional_replay_adds_what_is_missing(self, database: StateBackend, url: str) -> None:
        """Nothing is undone there: a row that has the txid has the very delta."""
        rig = Rig(database, url, word_table(semantics=TRANSACTIONAL)).join()
        rig.commit(1, {"a": 1})
        rig.write(rig.begin(2), {"a": 2})
        by_executors(rig, 2, {"a": 2}, {"b": 2})
        assert rig.values() == {"a": 3, "b": 2}

    # --- all or nothing -------------------------------------------------------------------------------

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_crash_inside_the_beginning_or_the_end_leaves_nothing(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 1})
        fence = rig.fence()
        under = rig.next(2)
        whole = rig.whole(under, {"b": 1})
        with pytest.raises(CrashError):
            rig.states.begin_commit(whole, reached=crash)
        assert (rig.fence(), rig.last().txid) == (fence, 1)
        rig.states.begin_commit(whole)
        with pytest.raises(CrashError):
            rig.states.end_commit(whole, reached=crash)
        assert rig.last().status == "committing"
        assert rig.values() == {"a": 1}

    def test_the_end_writes_what_no_task_has(self, rig: Rig) -> None:
        under = rig.begin(1)
        rig.write(under, {"a": 1})
        rig.states.end_commit(rig.whole(under, {"b": 2}), keys=1)
        assert rig.values() == {"a": 1, "b": 2}
        assert rig.last().keys == 2

    def test_a_task_whose_value_is_refused_leaves_nothing(self, rig: Rig) -> None:
        rig.commit(1, {"b": 2**63 - 1})
        under = rig.begin(2)
        with pytest.raises(StateValueError, match=r"key word='b': column 'n' \(bigint\) cannot hold"):
            rig.write(under, {"a": 1, "b": 1})
        assert rig.values() == {"b": 2**63 - 1}

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_task_does_not_write_over_a_newer_row(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(7, {"b": 1})
        under = rig.begin(3)
        with pytest.raises(TxidRegressionError, match=r"key word='b': the row carries txid 7"):
            rig.write(under, {"a": 1, "b": 1})
        assert rig.values() == {"b": 1}


def begin_again(rig: Rig, under: TransactionAttempt) -> None:
    rig.states.begin_commit(rig.whole(under))
