"""What every SQL database must do: the contract of all stores, and what can be said in SQL alone.

Subclasses have a fixture `url` with an empty database.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from support.state_contract import StateContract, StateFixtures
from support.states import Rig, word_table
from support.tables import execute, read_rows
from txstream.api.errors import CorruptStateError, StateTableError
from txstream.state import StateDatabase


class SqlContract(StateFixtures):
    """What a person can do to the database behind our back."""

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

    def test_dropped_table_is_not_created_again(self, rig: Rig) -> None:
        execute(rig.url, "DROP TABLE word_count")
        with pytest.raises(CorruptStateError, match="was created for topology 'words' and is gone"):
            rig.join()

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

    def test_top_of_a_table_that_is_nobodys(self, rig: Rig) -> None:
        execute(rig.url, "CREATE TABLE nobodys (word VARCHAR(9) PRIMARY KEY, n BIGINT)")
        with pytest.raises(StateTableError, match=r"no state table 'nobodys'.*it has word_count"):
            rig.database.top("nobodys", topology="words")


class SqlStateContract(StateContract, SqlContract):
    """All of it."""
