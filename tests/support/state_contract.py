"""What every store of states must do: one suite over the SQL databases and memory.

Subclasses have a fixture `url` with an empty store. What can be said in SQL alone is in `sql_contract`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from support.states import PLANNED, PROCESSED, Rig, attempt, word_table
from support.tables import lose_batch, lose_fence, lose_table, read_rows, table_exists
from txstream.api.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    StaleAttemptError,
    StateTableError,
    StateValueError,
    TxidRegressionError,
)
from txstream.api.reducers import Count, Max, Min, Sum
from txstream.semantics import Semantics
from txstream.state import BatchRecord, Commit, FenceRow, StateBackend, open_database
from txstream.transaction import attempt_id

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
NON_TRANSACTIONAL = Semantics.NON_TRANSACTIONAL
FENCED = (OPAQUE, TRANSACTIONAL)

LARGEST = 2**63 - 1


class CrashError(Exception):
    """The driver dies here."""


def crash(_point: str) -> None:
    raise CrashError


class StateFixtures:
    """`database` is open on `url`, `rig` has an opaque word count in it."""

    @pytest.fixture
    def database(self, url: str) -> Iterator[StateBackend]:
        database = open_database(url, connect_timeout_seconds=5.0, message_timeout_seconds=10.0)
        yield database
        database.close()

    @pytest.fixture
    def rig(self, database: StateBackend, url: str) -> Rig:
        return Rig(database, url).join()


class CommitContract(StateFixtures):
    """One transaction: fence, restore, upserts, ledger."""

    @pytest.mark.parametrize(
        ("semantics", "columns"),
        [
            (OPAQUE, ["word", "n", "prev_n", "txid"]),
            (TRANSACTIONAL, ["word", "n", "txid"]),
            (NON_TRANSACTIONAL, ["word", "n"]),
        ],
    )
    def test_columns(
        self, database: StateBackend, url: str, semantics: Semantics, columns: list[str]
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 1})
        assert list(read_rows(url, "word_count")[0]) == columns

    def test_all_prevs_are_set_when_a_row_changes_its_txid(self, database: StateBackend, url: str) -> None:
        spec = word_table(
            value="n bigint, least bigint, most double",
            reducers={"n": Count(), "least": Min("x"), "most": Max("y")},
        )
        rig = Rig(database, url, spec).join()
        rig.commit(1, {"a": (3, 5, 1.5)})
        assert list(read_rows(url, "word_count")[0]) == [
            *("word", "n", "prev_n", "least", "prev_least", "most", "prev_most", "txid")
        ]
        rig.commit(2, {"a": (1, 9, 1.0)})  # neither the minimum nor the maximum changes
        assert rig.rows() == [("a", 4, 3, 5, 5, 1.5, 1.5, 2)]
        rig.commit(2, {"a": (1, 4, 2.0)})
        assert rig.rows() == [("a", 4, 3, 4, 5, 2.0, 1.5, 2)]

    def test_phantom_keys(self, rig: Rig) -> None:
        """Hole 1: attempt 1 of txid 5 commits {x, y}, its replay holds {x} alone, and y comes again in txid
        6: it must count once."""
        rig.commit(4, {"y": 10})
        rig.commit(5, {"x": 1, "y": 1})
        rig.commit(5, {"x": 1})
        assert rig.values() == {"x": 1, "y": 10}
        rig.commit(6, {"y": 1})
        assert rig.values() == {"x": 1, "y": 11}

    @pytest.mark.parametrize(
        ("semantics", "expected"),
        [(OPAQUE, [("a", 5, 3, 2), ("b", 2, None, 2)]), (TRANSACTIONAL, [("a", 5, 2), ("b", 2, 2)])],
    )
    def test_deltas_written_twice_under_one_attempt_count_once(
        self, database: StateBackend, url: str, semantics: Semantics, expected: list[tuple[Any, ...]]
    ) -> None:
        """Without a restore between: it is the value rules' own, which lets a task run twice."""
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 3})
        under = rig.begin(2)
        for _ in range(3):
            assert rig.write(under, {"a": 2, "b": 2}) == 2
        assert rig.rows() == expected

    def test_a_replay_without_any_delta_undoes_the_batch(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1})
        rig.commit(2, {"a": 5, "b": 5})
        rig.commit(2, None)
        assert rig.values() == {"a": 1}
        assert rig.last().keys == 0

    def test_a_replay_undoes_its_own_txid_alone(self, rig: Rig) -> None:
        """A row of a later one is no result of this batch, whatever it is a result of."""
        rig.commit(1, {"a": 1, "b": 1})
        rig.commit(2, {"b": 1, "c": 1})
        rig.commit(1, {"d": 1})
        assert rig.values() == {"b": 2, "c": 1, "d": 1}

    def test_nothing_is_undone_that_no_attempt_wrote(self, rig: Rig) -> None:
        """The ledger tells: without its row nobody has written this txid, whatever the table says."""
        rig.commit(1, {"a": 1})
        lose_batch(rig.url, "words", 1)
        rig.commit(1, {"b": 2})
        assert rig.values() == {"a": 1, "b": 2}

    @pytest.mark.parametrize("semantics", FENCED)
    def test_zombie_attempt_is_refused_and_writes_nothing(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """Hole 2: an attempt of an older epoch wakes up."""
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        zombie = rig.next(1)
        rig.states.raise_fence(attempt_id(2, 0))
        with pytest.raises(StaleAttemptError, match=r"at attempt 2\.0, newer than 1\.1.*nothing was written"):
            rig.commit(1, {"a": 1}, under=zombie)
        assert rig.rows() == []
        assert rig.database.last_batch(rig.topology) is None
        assert rig.fence() == attempt_id(2, 0)

    def test_my_own_older_attempt_is_refused(self, rig: Rig) -> None:
        superseded = rig.next(1)
        rig.commit(1, {"a": 1})
        with pytest.raises(StaleAttemptError, match="superseded"):
            rig.commit(1, {"a": 5}, under=superseded)
        assert rig.values() == {"a": 1}

    def test_second_commit_of_the_same_attempt_is_refused(self, rig: Rig) -> None:
        once = rig.commit(1, {"a": 1})
        with pytest.raises(StaleAttemptError, match="already been used"):
            rig.commit(1, {"a": 1}, under=once)
        assert rig.values() == {"a": 1}

    @pytest.mark.parametrize("semantics", FENCED)
    def test_missing_fence_row(self, database: StateBackend, url: str, semantics: Semantics) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 1})
        lose_fence(url, "words")
        with pytest.raises(CorruptStateError, match=r"no row for topology 'words'.*txstream delete words"):
            rig.commit(2, {"a": 1})
        with pytest.raises(CorruptStateError, match="no row for topology 'words'"):
            database.of("words", rig.uuid, OPAQUE).raise_fence(attempt_id(2, 0))
        assert rig.values() == {"a": 1}
        assert rig.last().txid == 1

    @pytest.mark.parametrize("semantics", FENCED)
    def test_fence_of_another_life(self, database: StateBackend, url: str, semantics: Semantics) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        stranger = Rig(database, url, rig.spec, uuid="uuid-2")
        with pytest.raises(ProgressMismatchError, match=r"uuid-2.*uuid-1"):
            stranger.commit(1, {"a": 1})
        with pytest.raises(ProgressMismatchError, match=r"uuid-2.*uuid-1"):
            database.of("words", "uuid-2", OPAQUE).raise_fence(attempt_id(2, 0))
        assert (rig.rows(), rig.fence(), database.last_batch("words")) == ([], 0, None)

    @pytest.mark.parametrize("semantics", [*FENCED, NON_TRANSACTIONAL])
    def test_a_crash_inside_the_commit_leaves_nothing(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 1})
        before = (rig.rows(), rig.last(), rig.fence())
        with pytest.raises(CrashError):
            rig.commit(2, {"a": 1, "b": 1}, reached=crash)
        assert (rig.rows(), rig.last(), rig.fence()) == before

    def test_the_point_inside_the_commit_sees_nothing_committed(self, rig: Rig) -> None:
        seen: list[tuple[str, Any]] = []
        rig.commit(1, {"a": 1}, reached=lambda point: seen.append((point, rig.rows())))
        assert seen == [("inside-commit", [])]

    def test_outcome(self, rig: Rig) -> None:
        lost = rig.next(1)
        assert rig.states.outcome(lost) is False
        rig.commit(1, {"a": 1}, under=lost)
        assert rig.states.outcome(lost) is True
        assert rig.states.outcome(attempt(1, 99)) is False
        again = rig.commit(1, {"a": 1})
        assert rig.states.outcome(lost) is False
        assert rig.states.outcome(again) is True

    def test_a_regression_ends_the_whole_transaction(self, database: StateBackend, url: str) -> None:
        rig = Rig(database, url).join()
        rig.commit(7, {"b": 1})
        with pytest.raises(TxidRegressionError, match=r"'word_count', key word='b'.* txid 7.*txid 6 attempt"):
            rig.commit(6, {"a": 1, "b": 1, "c": 1})
        assert rig.values() == {"b": 1}
        assert rig.last().txid == 7

    def test_non_transactional_state_has_no_fence_and_no_txid(self, database: StateBackend, url: str) -> None:
        rig = Rig(database, url, word_table(semantics=NON_TRANSACTIONAL)).join()
        same = rig.commit(2, {"a": 1})
        rig.commit(2, {"a": 1}, under=same)
        rig.commit(1, {"a": 1}, under=same)
        assert rig.rows() == [("a", 3)]
        assert [row.txid for row in database.batches("words")] == [2]
        assert rig.fence() == 0

    def test_two_tables_commit_together(self, database: StateBackend, url: str) -> None:
        """And each gets its restore, whichever of them the batch has deltas for."""
        database.ensure_framework_tables()
        first, second = word_table("first"), word_table("second", TRANSACTIONAL)
        third = word_table("third")
        tables = [first, second, third]
        database.of("words", "u", TRANSACTIONAL, tables).join(first_run=True)
        rig = Rig(database, url, first, uuid="u")

        def commit(txid: int, **deltas: dict[str, int]) -> None:
            document = {name: rig.table_of(delta) for name, delta in deltas.items()}
            document["in_another_database"] = rig.table_of({"x": 1})
            whole = Commit(rig.next(txid), {}, document, 1, PLANNED, PROCESSED)
            database.of("words", "u", TRANSACTIONAL, tables).commit(whole)

        commit(1, first={"a": 1}, second={"a": 1}, third={"a": 1})
        commit(1, first={"a": 2}, second={"a": 1})
        assert [
            read_rows(url, name)[0]["n"] if read_rows(url, name) else None
            for name in ("first", "second", "third")
        ] == [2, 1, None]
        assert rig.last().keys == 2

    def test_what_one_table_refuses_no_table_has(self, database: StateBackend, url: str) -> None:
        """The last one, in the order in which tables are written: neither rows nor ledger of the others."""
        database.ensure_framework_tables()
        tables = [word_table("first"), word_table("second")]
        database.of("words", "u", OPAQUE, tables).join(first_run=True)
        rig = Rig(database, url, tables[0], uuid="u")

        def commit(txid: int, **deltas: dict[str, int]) -> None:
            document = {name: rig.table_of(delta) for name, delta in deltas.items()}
            whole = Commit(rig.next(txid), {}, document, 1, PLANNED, PROCESSED)
            database.of("words", "u", OPAQUE, tables).commit(whole)

        commit(2, second={"a": 1})
        with pytest.raises(TxidRegressionError):
            commit(1, first={"a": 1}, second={"a": 1})
        assert read_rows(url, "first") == []
        assert [row.txid for row in database.batches("words")] == [2]

    def test_more_keys_than_a_statement_takes(self, rig: Rig) -> None:
        many = {f"word-{number:06}": number for number in range(60_123)}
        rig.commit(1, many)
        rig.commit(2, many)
        assert rig.values() == {word: 2 * number for word, number in many.items()}
        assert rig.last().keys == len(many)

    def test_names_that_need_quotes(self, database: StateBackend, url: str) -> None:
        spec = word_table('select "x" %s :y', key="`Order` string, `from` bigint", value="`a b%` bigint")
        rig = Rig(database, url, spec).join()
        rig.commit(1, {("k", 1): 1})
        rig.commit(2, {("k", 1): 2})
        assert rig.rows() == [("k", 1, 3, 1, 2)]
        assert Rig(database, url, spec).join(first_run=False)


class LedgerContract(StateFixtures):
    """Fence, ledger, and what people ask."""

    def test_a_row_of_the_ledger(self, rig: Rig) -> None:
        before = datetime.now(UTC)
        metas = {"partitions": {"zeilen/0": {"start": 0, "end": 3}}, "carried": {"größer": {"x": "ö\0"}}}
        under = rig.commit(1, {"a": 1, "b": 1}, metas=metas, error="it had \0 and \ud800 in it")
        row = rig.last()
        assert row.committed_at is not None
        assert before <= row.committed_at <= datetime.now(UTC)
        assert row == BatchRecord(
            topology="words",
            uuid="uuid-1",
            txid=under.txid,
            attempt=under.attempt,
            semantics=OPAQUE,
            status="committed",
            metas=metas,
            tuples=7,
            keys=2,
            planned_at=PLANNED,
            processed_at=PROCESSED,
            committed_at=row.committed_at,
            error="it had \\x00 and \\ud800 in it",
        )
        assert rig.database.batch("words", 1) == row
        assert rig.database.batch("words", 2) is None

    def test_batches_are_listed_oldest_first(self, rig: Rig) -> None:
        for txid in (1, 2, 3):
            rig.commit(txid, {"a": 1})
        rig.commit(3, {"a": 1})
        assert [row.txid for row in rig.database.batches("words")] == [1, 2, 3]
        assert [row.txid for row in rig.database.batches("words", limit=2)] == [2, 3]
        assert rig.last().attempt == attempt_id(1, 4)
        assert rig.database.batches("another") == []

    def test_raising_the_fence(self, rig: Rig) -> None:
        for _ in range(2):  # a leader whose answer was lost asks again
            rig.states.raise_fence(attempt_id(3, 0))
            assert rig.database.read_fence("words") == FenceRow("words", "uuid-1", attempt_id(3, 0))
        with pytest.raises(StaleAttemptError, match=r"3\.0.*2\.0"):
            rig.states.raise_fence(attempt_id(2, 0))
        rig.epoch = 3
        rig.commit(1, {"a": 1})
        with pytest.raises(StaleAttemptError):
            rig.states.raise_fence(attempt_id(3, 0))

    def test_attempts_may_be_as_large_as_63_bits(self, rig: Rig) -> None:
        rig.epoch, rig.sequence = 2**31 - 1, 2**32 - 2
        rig.commit(1, {"a": 1})
        assert rig.fence() == rig.last().attempt == LARGEST

    def test_topologies(self, database: StateBackend, url: str) -> None:
        assert database.topologies() == []
        Rig(database, url, word_table("t1"), topology="b").join()
        Rig(database, url, word_table("t2", NON_TRANSACTIONAL), topology="a").join()
        assert [row.topology for row in database.topologies()] == ["a", "b"]

    def test_reading_a_database_that_nothing_was_run_on(self, database: StateBackend) -> None:
        assert database.read_fence("words") is None
        assert database.last_batch("words") is None
        assert database.batches("words") == []
        assert database.delete("words", drop_state=True) == []
        with pytest.raises(StateTableError, match="no topology has been run on it"):
            database.top("word_count", topology="words")

    def test_top(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1, "c": 3, "b": 3})
        assert rig.database.top("word_count", topology="words", n=2) == [
            {"word": "b", "n": 3, "prev_n": None, "txid": 1},
            {"word": "c", "n": 3, "prev_n": None, "txid": 1},
        ]

    def test_top_of_a_table_that_is_not_the_topologys(self, rig: Rig) -> None:
        Rig(rig.database, rig.url, word_table("theirs"), topology="other").join()
        for name in ("theirs", "missing", "txstream_fence"):
            with pytest.raises(StateTableError, match=f"no state table '{name}'.*it has word_count"):
                rig.database.top(name, topology="words")

    def test_delete_keeps_the_state_unless_told(self, rig: Rig) -> None:
        other = Rig(rig.database, rig.url, word_table("theirs"), topology="other").join()
        other.commit(1, {"a": 1})
        rig.commit(1, {"a": 1})
        assert rig.database.delete("words", drop_state=False) == []
        assert (rig.database.read_fence("words"), rig.database.last_batch("words")) == (None, None)
        assert rig.values() == {"a": 1}
        named = rf"earlier life.*txstream delete words --uuid {rig.uuid} --drop-state"
        with pytest.raises(IdentityMismatchError, match=named):
            Rig(rig.database, rig.url, uuid="uuid-2").join()
        assert rig.database.delete("words", drop_state=True) == ["word_count"]
        assert not table_exists(rig.url, "word_count")
        assert other.values() == {"a": 1}
        assert Rig(rig.database, rig.url, uuid="uuid-2").join().rows() == []

    def test_delete_of_one_life_alone(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1})
        assert rig.database.delete("words", drop_state=True, uuid="uuid-2") == []
        assert (rig.values(), rig.last().txid, rig.fence()) == ({"a": 1}, 1, rig.last().attempt)
        assert rig.database.delete("words", drop_state=True, uuid="uuid-1") == ["word_count"]
        assert rig.database.topologies() == []


class JoinContract(StateFixtures):
    """State tables: created, checked, owned."""

    def test_joining_again_changes_nothing(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1})
        before = (rig.rows(), rig.fence())
        rig.join()
        rig.join(first_run=False)
        assert (rig.rows(), rig.fence()) == before

    def test_two_topologies_with_the_same_table(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1})
        other = Rig(rig.database, rig.url, topology="other", uuid="uuid-2")
        with pytest.raises(IdentityMismatchError, match=r"belongs to topology 'words'.*delete words --drop"):
            other.join()
        assert rig.database.read_fence("other") is None  # all or nothing

    def test_same_id_with_another_uuid(self, rig: Rig) -> None:
        with pytest.raises(ProgressMismatchError, match=r"uuid-2 in ZooKeeper and uuid uuid-1"):
            Rig(rig.database, rig.url, uuid="uuid-2").join()

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            (word_table(value="n double"), "value was declared 'n bigint' and is now 'n double'"),
            (word_table(value="n bigint, m bigint"), "value was declared"),
            (word_table(key="word string, page string"), "key was declared 'word string' and is now"),
            (word_table(semantics=TRANSACTIONAL), "semantics was declared 'opaque' and is now 'transact"),
        ],
        ids=["type", "column", "key", "semantics"],
    )
    def test_changed_declaration(self, rig: Rig, changed: Any, expected: str) -> None:
        with pytest.raises(StateTableError, match=f"{expected}.*--drop-state"):
            Rig(rig.database, rig.url, changed).join()

    def test_dropped_while_it_runs(self, rig: Rig) -> None:
        lose_table(rig.url, "word_count")
        with pytest.raises(CorruptStateError, match="no longer there"):
            rig.commit(1, {"a": 1})
        assert rig.database.last_batch("words") is None

    def test_another_database_than_the_one_it_ran_on(self, database: StateBackend, url: str) -> None:
        with pytest.raises(ProgressMismatchError, match="knows nothing of it"):
            Rig(database, url).join(first_run=False)
        assert not table_exists(url, "word_count")
        assert database.topologies() == []

    def test_a_table_that_a_later_run_lacks(self, rig: Rig) -> None:
        rig.spec = word_table("second")
        with pytest.raises(ProgressMismatchError, match="'second' is not in this database"):
            rig.join(first_run=False)

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            (
                word_table(value="n array<bigint>", reducers={"n": Max("n")}),
                r"column 'n' of type array<bigint>",
            ),
            (word_table(value=pa.schema([("n", pa.uint64())])), "column 'n' of type uint64"),
            (word_table("t" * 300), "at most 255"),
        ],
        ids=["array", "unsigned", "name"],
    )
    def test_a_table_that_cannot_be(self, database: StateBackend, url: str, spec: Any, expected: str) -> None:
        with pytest.raises(StateTableError, match=expected):
            Rig(database, url, spec).join()

    def test_drivers_that_start_at_once(self, url: str) -> None:
        together = threading.Barrier(4)

        def start(number: int) -> str:
            database = open_database(url)
            try:
                together.wait(30)
                Rig(database, url, word_table(f"t{number}"), topology=f"t{number}").join()
                return database.topologies()[0].uuid
            finally:
                database.close()

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(start, range(4))) == ["uuid-1"] * 4


class ValueContract(StateFixtures):
    """What can be stored, and how it is said when it cannot."""

    def test_null_in_a_key(self, rig: Rig) -> None:
        with pytest.raises(StateValueError, match="'word' of table 'word_count' got a null"):
            rig.commit(1, {None: 1})

    def test_nul_in_text(self, rig: Rig) -> None:
        with pytest.raises(StateValueError, match=r"'word' of table 'word_count': 'a\\x00b' has the ch"):
            rig.commit(1, {"c": 1, "a\0b": 1})
        assert rig.rows() == []

    def test_two_deltas_of_one_key(self, rig: Rig) -> None:
        table = pa.concat_tables([rig.table_of({"b": 1, "a": 1}), rig.table_of({"b": 2})])
        with pytest.raises(StateValueError, match="key word='b' has two deltas"):
            rig.commit(1, table)

    @pytest.mark.parametrize("semantics", [*FENCED, NON_TRANSACTIONAL])
    @pytest.mark.parametrize(
        ("kind", "first", "delta"),
        [
            ("bigint", LARGEST, 1),
            ("bigint", -LARGEST - 1, -1),
            ("int", 2**31 - 1, 1),
            ("smallint", -(2**15), -1),
            ("tinyint", 127, 1),
        ],
    )
    def test_overflow(
        self, database: StateBackend, url: str, semantics: Semantics, kind: str, first: int, delta: int
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics, value=f"n {kind}")).join()
        rig.commit(1, {"a": 1, "b": first, "c": 1})
        rows = rig.rows()
        with pytest.raises(
            StateValueError, match=rf"'word_count', key word='b': column 'n' \({kind}\)"
        ) as told:
            rig.commit(2, {"a": 1, "b": delta, "c": 1})
        assert str(first + delta) in str(told.value)
        assert rig.rows() == rows
        assert rig.last().txid == 1

    def test_overflow_is_measured_from_the_value_before_the_batch(self, rig: Rig) -> None:
        rig.commit(1, {"a": LARGEST - 1})
        rig.commit(2, {"a": 1})
        rig.commit(2, {"a": 1})  # in a replay the sum starts again from prev
        assert rig.values() == {"a": LARGEST}

    def test_extreme_integers(self, database: StateBackend, url: str) -> None:
        rig = Rig(database, url, word_table(key="k bigint", semantics=TRANSACTIONAL)).join()
        rig.commit(1, {LARGEST: -LARGEST - 1, -LARGEST - 1: LARGEST, 0: 0})
        assert rig.values() == {LARGEST: -LARGEST - 1, -LARGEST - 1: LARGEST, 0: 0}

    def test_nulls_change_nothing(self, database: StateBackend, url: str) -> None:
        """Reducers skip nulls; opaque columns are NOT NULL, so a row that exists keeps its value."""
        spec = word_table(
            value="n bigint, least double, most timestamp",
            reducers={"n": Sum("n"), "least": Min("x"), "most": Max("y")},
        )
        rig = Rig(database, url, spec).join()
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        rig.commit(1, {"a": (1, 2.0, noon), "b": (1, 2.0, noon)})
        rig.commit(2, {"a": (1, None, None), "b": (None, None, None), "c": (None, None, None)})
        assert [row[:5] for row in rig.rows()] == [("a", 2, 1, 2.0, 2.0), ("b", 1, None, 2.0, None)]
        rig.commit(2, {"a": (None, 1.0, None)})
        assert [row[:5] for row in rig.rows()] == [("a", 1, 1, 1.0, 2.0), ("b", 1, None, 2.0, None)]
        most = {word: str(value[2])[:19] for word, value in rig.values().items()}
        assert most == {"a": "2026-01-01 12:00:00", "b": "2026-01-01 12:00:00"}

    def test_a_new_row_of_only_nulls_in_one_column(self, database: StateBackend, url: str) -> None:
        spec = word_table(value="n bigint, least double", reducers={"n": Count(), "least": Min("x")})
        rig = Rig(database, url, spec).join()
        with pytest.raises(StateValueError, match=r"key word='a': column 'least' is NOT NULL.*only nulls"):
            rig.commit(1, {"a": (3, None), "b": (1, 1.0)})
        assert rig.rows() == []

    @pytest.mark.parametrize("semantics", [TRANSACTIONAL, NON_TRANSACTIONAL])
    def test_nulls_where_columns_may_be_null(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        spec = word_table(
            semantics=semantics, value="n bigint, least bigint", reducers={"n": Count(), "least": Min("x")}
        )
        rig = Rig(database, url, spec).join()
        rig.commit(1, {"a": (3, None)})
        assert rig.values() == {"a": (3, None)}
        rig.commit(2, {"a": (1, 5)})
        rig.commit(3, {"a": (1, None)})
        assert rig.values() == {"a": (5, 5)}

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (
                "string",
                ["", " ", "NULL", '"', "\\", '\\"', "{", ",", "'", "größe", "日本", "🦀", "a\nb\t"],
            ),
            ("binary", [b"", b"\0", b"\\x00", b'"', bytes(range(256))]),
            ("boolean", [True, False]),
            ("tinyint", [-128, 127]),
            ("smallint", [-(2**15), 2**15 - 1]),
            ("int", [-(2**31), 2**31 - 1]),
            ("bigint", [-(2**63), LARGEST]),
            ("date", [date(1, 1, 1), date(999, 2, 3), date(9999, 12, 31)]),
            ("timestamp", [datetime(1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, 2, 3, 45, tzinfo=UTC)]),
            ("timestamp_ntz", [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]),
        ],
    )
    def test_keys_of_every_type(self, database: StateBackend, url: str, kind: str, values: list[Any]) -> None:
        rig = Rig(database, url, word_table(key=f"k {kind}, l string")).join()
        deltas = {(value, "x"): number for number, value in enumerate(values)}
        rig.commit(1, deltas)
        rig.commit(2, deltas)
        stored = {row[0]: row[2:] for row in rig.rows()}
        assert sorted(value[0] for value in stored.values()) == [2 * number for number in range(len(values))]
        if kind not in ("date", "timestamp", "timestamp_ntz"):
            assert {key[0] for key in rig.values()} == set(values)
        assert len(database.top("word_count", topology="words", n=100)) == len(values)
        assert rig.join(first_run=False)

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            ("double", [0.1, -1.5e300, 5e-324, 1.7976931348623157e308]),
            ("float", [0.5, -3.4028234663852886e38, 1e-40]),
        ],
    )
    def test_values_that_are_fractions(
        self, database: StateBackend, url: str, kind: str, values: list[float]
    ) -> None:
        rig = Rig(database, url, word_table(value=f"n {kind}", reducers={"n": Max("n")})).join()
        deltas = {str(number): value for number, value in enumerate(values)}
        rig.commit(1, deltas)
        rig.commit(2, deltas)
        arrow = pa.float32() if kind == "float" else pa.float64()
        assert [pa.scalar(value, arrow).as_py() for value in rig.values().values()] == [
            pa.scalar(value, arrow).as_py() for value in values
        ]

    def test_years_that_databases_disagree_about(self, database: StateBackend, url: str) -> None:
        rig = Rig(database, url, word_table(key="k date")).join()
        table = pa.table({"k": pa.array([10_000_000], pa.date32()), "n": [1]})
        with pytest.raises(StateValueError, match="'k' of table 'word_count': the year"):
            rig.commit(1, table)

    def test_deltas_of_other_columns(self, rig: Rig) -> None:
        with pytest.raises(StateTableError, match="takes deltas of 'word string, n bigint', got 'word"):
            rig.commit(1, pa.table({"word": ["a"]}))
        with pytest.raises(StateValueError, match=r"'n' of table 'word_count' \(bigint\)"):
            rig.commit(1, pa.table({"word": ["a"], "n": ["x"]}))


class StateContract(CommitContract, LedgerContract, JoinContract, ValueContract):
    """All of it."""
