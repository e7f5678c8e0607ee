"""What a SQL database does beyond the promises of all stores: columns, messages, and changes made behind our
back. The database here is SQLite; the tests of each server run the same classes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from support.lists import each
from support.states import Rig, attempt, word_table
from support.tables import execute, read_rows, table_exists

from txstream.api.reducers import Count, Max, Min
from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    StaleAttemptError,
    StateTableError,
    StateValueError,
    TopologyError,
    TxidRegressionError,
    TxstreamError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.state import StateDatabase, open_database

LARGEST = 2**63 - 1
LATE = pa.array([10_000_000], pa.date32())


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestTables:
    """The tables that people query."""

    @pytest.mark.parametrize(
        ("semantics", "columns"),
        [
            (Semantics.OPAQUE, ["word", "n", "prev_n", "least", "prev_least", "txid"]),
            (Semantics.TRANSACTIONAL, ["word", "n", "least", "txid"]),
            (Semantics.NON_TRANSACTIONAL, ["word", "n", "least"]),
        ],
    )
    def test_columns(
        self, database: StateDatabase, url: str, semantics: Semantics, columns: list[str]
    ) -> None:
        reducers = {"n": Count(), "least": Min("x")}
        spec = word_table(semantics=semantics, value="n bigint, least bigint", reducers=reducers)
        rig = Rig(database, url, spec).join()
        rig.commit(1, {"a": (3, 5)})
        rig.commit(2, {"a": (1, 9)})
        assert list(read_rows(url, "word_count")[0]) == columns
        whole = {"word": "a", "n": 4, "prev_n": 3, "least": 5, "prev_least": 5, "txid": 2}
        assert rig.rows() == [tuple(whole[name] for name in columns)]

    def test_two_hundred_columns(self, database: StateDatabase, url: str) -> None:
        schema = pa.schema([(f"n{number}", pa.int64()) for number in range(200)])
        rig = Rig(database, url, word_table(value=schema)).join()
        rig.commit(1, {"a": tuple(range(200)), "b": (1,) * 200})
        rig.commit(2, {"a": (1,) * 200, "c": (2,) * 200})
        rig.commit(2, {"a": (2,) * 200})
        rows = {row.pop("word"): row for row in read_rows(url, "word_count")}
        assert rows.keys() == {"a", "b"}
        assert [rows["a"][name] for name in schema.names] == list(range(2, 202))
        assert [rows["a"][f"prev_{name}"] for name in schema.names] == list(range(200))

    def test_more_keys_than_a_statement_takes(self, rig: Rig) -> None:
        many = {f"word-{number:06}": number for number in range(60_123)}
        rig.commit(1, many)
        rig.commit(2, many)
        assert rig.values() == {word: 2 * number for word, number in many.items()}
        assert rig.last().keys == len(many)

    def test_top(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1, "c": 3, "b": 3})
        assert rig.database.top("word_count", topology="words", n=2) == [
            {"word": "b", "n": 3, "prev_n": None, "txid": 1},
            {"word": "c", "n": 3, "prev_n": None, "txid": 1},
        ]
        execute(rig.url, "CREATE TABLE nobodys (word VARCHAR(9) PRIMARY KEY, n BIGINT)")
        for name in ("nobodys", "missing", "txstream_fence"):
            with pytest.raises(StateTableError, match=f"no state table '{name}'.*it has word_count"):
                rig.database.top(name, topology="words")

    def test_drivers_that_start_at_once(self, url: str) -> None:
        together = threading.Barrier(4)

        def start(number: int) -> str:
            with closing(open_database(url)) as database:
                together.wait(30)
                Rig(database, url, word_table(f"t{number}"), topology=f"t{number}").join()
                return database.topologies()[0].uuid

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(start, range(4))) == ["uuid-1"] * 4


class TestBehindOurBack:
    """What a person can do to the database by hand."""

    @pytest.mark.parametrize(
        ("column", "value", "expected"),
        [
            ("metas", "{", "metas are not JSON"),
            ("metas", "[]", "must be a JSON object"),
            ("status", "done", "found 'done'"),
            ("semantics", "exact", "no semantics 'exact'"),
        ],
    )
    def test_a_foreign_value_in_the_ledger_is_told(
        self, rig: Rig, column: str, value: str, expected: str
    ) -> None:
        rig.commit(1, {"a": 1})
        execute(rig.url, f"UPDATE txstream_batch SET {column} = '{value}'")
        with pytest.raises(CorruptStateError, match=f"'words', txid 1.*{expected}"):
            rig.database.last_batch("words")

    def test_nothing_is_undone_that_no_attempt_wrote(self, rig: Rig) -> None:
        """The ledger decides: without its row, nobody has written this txid, whatever the table says."""
        rig.commit(1, {"a": 1})
        execute(rig.url, "DELETE FROM txstream_batch")
        rig.commit(1, {"b": 2})
        assert rig.values() == {"a": 1, "b": 2}

    def test_a_table_of_the_users_own_is_left_alone(self, database: StateDatabase, url: str) -> None:
        execute(
            url,
            "CREATE TABLE word_count (word VARCHAR(9) PRIMARY KEY, n BIGINT, prev_n BIGINT, txid BIGINT)",
            "INSERT INTO word_count VALUES ('mine', 1, NULL, 1)",
        )
        with pytest.raises(StateTableError, match=r"'word_count' exists and was not created by txstream"):
            Rig(database, url).join()
        assert read_rows(url, "word_count") == [{"word": "mine", "n": 1, "prev_n": None, "txid": 1}]

    def test_a_view_is_left_alone(self, database: StateDatabase, url: str) -> None:
        execute(url, "CREATE VIEW word_count AS SELECT 'a' AS word, 1 AS n")
        with pytest.raises(StateTableError, match="exists and was not created"):
            Rig(database, url).join()

    def test_altered_columns_are_listed(self, rig: Rig) -> None:
        execute(
            rig.url,
            "ALTER TABLE word_count ADD COLUMN note TEXT",
            "ALTER TABLE word_count RENAME COLUMN prev_n TO before_n",
        )
        with pytest.raises(
            StateTableError,
            match=r"'before_n' is not ours; column 'note' is not ours; column 'prev_n' is",
        ):
            rig.join()

    def test_a_dropped_table_is_not_created_again(self, rig: Rig) -> None:
        execute(rig.url, "DROP TABLE word_count")
        with pytest.raises(CorruptStateError, match="no longer there"):
            rig.commit(1, {"a": 1})
        assert rig.database.last_batch("words") is None
        with pytest.raises(CorruptStateError, match="was created for topology 'words' and is gone"):
            rig.join()
        assert not table_exists(rig.url, "word_count")


def other_life(rig: Rig) -> Rig:
    return Rig(rig.database, rig.url, uuid="uuid-2")


def declared(rig: Rig, **options: Any) -> Rig:
    return Rig(rig.database, rig.url, word_table(**options))


def succeeded(rig: Rig, epoch: int = 2) -> Rig:
    rig.states.raise_fence(attempt_id(epoch, 0))
    return rig


def forgotten(rig: Rig) -> Rig:
    rig.database.delete("words", drop_state=False)
    return rig


Call = Callable[[Rig], Any]
TOLD: dict[str, tuple[Call, type[TxstreamError], str]] = {
    "zombie": (
        lambda rig: succeeded(rig).commit(1, {"a": 1}),
        StaleAttemptError,
        r"at attempt 2\.0, newer than 1\.3.*nothing was written",
    ),
    "superseded": (lambda rig: rig.commit(1, {"a": 1}, under=attempt(1, 1)), StaleAttemptError, "superseded"),
    "used": (
        lambda rig: rig.commit(1, {"a": 1}, under=attempt(2, 2)),
        StaleAttemptError,
        "already been used for a commit",
    ),
    "lower fence": (
        lambda rig: succeeded(succeeded(rig, 3)),
        StaleAttemptError,
        r"3\.0.*2\.0",
    ),
    "superseded task": (
        lambda rig: rig.write(attempt(2, 1), {"b": 1}),
        StaleAttemptError,
        r"attempt 1\.1 has been superseded .* 1\.2; nothing was",
    ),
    "task of another driver": (
        lambda rig: succeeded(rig).write(attempt(2, 2), {"b": 1}),
        StaleAttemptError,
        "another driver has taken over",
    ),
    "end of another driver": (
        lambda rig: succeeded(rig).states.end_commit(rig.whole(attempt(2, 2))),
        StaleAttemptError,
        "another driver has taken over",
    ),
    "not begun": (
        lambda rig: rig.write(rig.next(3), {"a": 1}),
        CorruptStateError,
        r"is at attempt 1\.2, but 1\.3 was begun",
    ),
    "no fence": (
        lambda rig: forgotten(rig).commit(3, {"a": 1}),
        CorruptStateError,
        "no row for topology 'words'.*txstream delete words",
    ),
    "other life": (
        lambda rig: other_life(rig).join(),
        ProgressMismatchError,
        "uuid-2 in ZooKeeper and uuid uuid-1",
    ),
    "earlier life": (
        lambda rig: other_life(forgotten(rig)).join(),
        IdentityMismatchError,
        "earlier life.*txstream delete words --uuid uuid-1 --drop-state",
    ),
    "other topology": (
        lambda rig: Rig(rig.database, rig.url, topology="other").join(),
        IdentityMismatchError,
        r"belongs to topology 'words'.*delete words --drop",
    ),
    "other database": (
        lambda rig: Rig(rig.database, rig.url, topology="other").join(first_run=False),
        ProgressMismatchError,
        "knows nothing of it",
    ),
    "table not there": (
        lambda rig: declared(rig, table="second").join(first_run=False),
        ProgressMismatchError,
        "'second' is not in this database",
    ),
    "other type": (
        lambda rig: declared(rig, value="n double").join(),
        StateTableError,
        "value was declared 'n bigint' and is now 'n double'.*--drop-state",
    ),
    "other key": (
        lambda rig: declared(rig, key="word string, page string").join(),
        StateTableError,
        "key was declared 'word string' and is now.*--drop-state",
    ),
    "other semantics": (
        lambda rig: declared(rig, semantics=Semantics.TRANSACTIONAL).join(),
        StateTableError,
        "semantics was declared 'opaque' and is now 'transact.*--drop-state",
    ),
    "no column type": (
        lambda rig: declared(rig, table="t", value="n array<bigint>", reducers={"n": Max("n")}).join(),
        StateTableError,
        r"column 'n' of type array<bigint>",
    ),
    "long name": (lambda rig: declared(rig, table="t" * 300).join(), StateTableError, "at most 255"),
    "regression": (
        lambda rig: rig.commit(1, {"a": 1, "b": 1, "c": 1}),
        TxidRegressionError,
        r"'word_count', key word='b'.* txid 2.*txid 1 attempt",
    ),
    "regression of a task": (
        lambda rig: rig.write(rig.begin(1), {"a": 1, "b": 1}),
        TxidRegressionError,
        "key word='b': the row carries txid 2",
    ),
    "overflow": (
        lambda rig: rig.commit(3, {"a": 1, "b": LARGEST}),
        StateValueError,
        rf"'word_count', key word='b': column 'n' \(bigint\).*{LARGEST + 1}",
    ),
    "null in a key": (
        lambda rig: rig.commit(3, {None: 1}),
        StateValueError,
        "'word' of table 'word_count' got a null",
    ),
    "NUL in text": (
        lambda rig: rig.commit(3, {"c": 1, "a\0b": 1}),
        StateValueError,
        r"'word' of table 'word_count': 'a\\x00b' has the ch",
    ),
    "not a number": (
        lambda rig: declared(rig, table="t", value="n double").join().commit(3, {"a": math.nan}),
        StateValueError,
        "'n' of table 't' got nan",
    ),
    "late year": (
        lambda rig: declared(rig, table="t", key="k date").join().commit(3, pa.table({"k": LATE, "n": [1]})),
        StateValueError,
        "'k' of table 't': the year",
    ),
    "two deltas": (
        lambda rig: rig.commit(3, pa.table({"word": ["b", "a", "b"], "n": [1, 1, 2]})),
        StateValueError,
        "key word='b' has two deltas",
    ),
    "other columns": (
        lambda rig: rig.commit(3, pa.table({"word": ["a"]})),
        StateTableError,
        "takes deltas of 'word string, n bigint', got 'word",
    ),
    "other values": (
        lambda rig: rig.commit(3, pa.table({"word": ["a"], "n": ["x"]})),
        StateValueError,
        r"'n' of table 'word_count' \(bigint\)",
    ),
}


class TestWords:
    """Messages say what was found, what was expected and what to do, whichever database it is."""

    @pytest.mark.parametrize("what", TOLD)
    def test_what_is_refused_is_told(self, rig: Rig, what: str) -> None:
        call, error, words = TOLD[what]
        rig.commit(1, None)
        rig.commit(2, {"b": 1})
        with pytest.raises(error, match=words):
            call(rig)
        assert rig.values() == {"b": 1}

    def test_a_new_row_of_only_nulls_in_one_column(self, database: StateDatabase, url: str) -> None:
        spec = word_table(value="n bigint, least double", reducers={"n": Count(), "least": Min("x")})
        rig = Rig(database, url, spec).join()
        with pytest.raises(StateValueError, match=r"key word='a': column 'least' is NOT NULL.*only nulls"):
            rig.commit(1, {"a": (3, None), "b": (1, 1.0)})

    def test_what_people_ask_before_anything_was_run(self, database: StateDatabase) -> None:
        with pytest.raises(StateTableError, match="no topology has been run on it"):
            database.top("word_count", topology="words")


@each(
    ("storage", "reason"),
    [
        ({"fillfactor) AS SELECT 1 --": 50}, "storage names 'fillfactor"),
        ({"FillFactor": 50}, "storage names 'FillFactor'"),
        ({7: 50}, "storage names 7"),
        ({"fillfactor": "50"}, "'fillfactor' is '50'; it must be a number or a boolean"),
        ({"fillfactor": math.nan}, "'fillfactor' is nan"),
    ],
)
def test_storage_parameters_are_plain_names_and_numbers(storage: dict[Any, Any], reason: str) -> None:
    with pytest.raises(TopologyError, match=reason):
        word_table(storage=storage)


@pytest.mark.parametrize("where", ["sqlite", "memory"])
def test_storage_parameters_are_refused_where_there_are_none(where: str, sqlite_url: str) -> None:
    url = sqlite_url if where == "sqlite" else "memory://storage"
    with closing(open_database(url)) as database:
        rig = Rig(database, url, word_table(storage={"fillfactor": 70}))
        with pytest.raises(
            StateTableError, match=r"\{'fillfactor': 70\} is for PostgreSQL alone.*leave it out"
        ):
            rig.join()
