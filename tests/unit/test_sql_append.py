"""Rows as they are: the rules of a `SqlTable` in a database. It is SQLite here; the tests of each server run
the same class. What must be in the table is said row by row, and read with plain SQL."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.lists import each
from support.states import Rig, attempt
from support.tables import read_rows

from txstream import inspect
from txstream.api.reducers import Put
from txstream.api.state import OnConflict, SqlState, SqlTable
from txstream.core.errors import (
    StaleAttemptError,
    StateTableError,
    StateValueError,
    TopologyError,
    TxidRegressionError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.settings import Settings
from txstream.state import StateDatabase, TableSpec

FENCED = [Semantics.OPAQUE, Semantics.TRANSACTIONAL]
ONE, TWO, THREE = ("t", 0, 0), ("t", 0, 1), ("t", 1, 0)


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def order_table(semantics: Semantics, on_conflict: OnConflict = "fail", **options: Any) -> TableSpec:
    table = SqlTable("orders", "customer string, amount decimal(10,2)", on_conflict=on_conflict, **options)
    return TableSpec(table, semantics, {name: Put() for name in table.value_names})


def named_table(
    semantics: Semantics, on_conflict: OnConflict, value: str = "note string", **options: Any
) -> TableSpec:
    return order_table_of(
        SqlTable("names", value, key="id bigint", on_conflict=on_conflict, **options), semantics
    )


def order_table_of(table: SqlTable, semantics: Semantics) -> TableSpec:
    return TableSpec(table, semantics, {name: Put() for name in table.value_names})


def joined(database: StateDatabase, url: str, spec: TableSpec) -> Rig:
    return Rig(database, url, spec).join()


def rows(rig: Rig, *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of all rows, sorted."""
    found = read_rows(rig.url, rig.spec.state.table)
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


class TestAppended:
    @pytest.mark.parametrize("semantics", FENCED)
    def test_the_columns_and_rows_of_the_default_key(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, order_table(semantics))
        rig.commit(1, {ONE: ("ann", None), TWO: (None, None)})
        rig.commit(2, {THREE: ("bob", None)})
        assert list(read_rows(url, "orders")[0]) == [
            "topic", "partition", "offset", "customer", "amount", "txid"
        ]  # fmt: skip
        assert rows(rig, "topic", "partition", "offset", "customer", "txid") == [
            (*ONE, "ann", 1),
            (*TWO, None, 1),
            (*THREE, "bob", 2),
        ]

    def test_a_transactional_row_is_written_once(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, order_table(Semantics.TRANSACTIONAL))
        rig.commit(1, {ONE: ("ann", None)})
        under = rig.begin(2)
        rig.write(under, {TWO: ("bob", None)})
        rig.commit(2, {TWO: ("bob", None), THREE: ("cid", None)})
        assert rows(rig, "customer", "txid") == [("ann", 1), ("bob", 2), ("cid", 2)]

    @pytest.mark.parametrize("by_executors", [False, True])
    def test_an_opaque_replay_that_shrinks_leaves_no_row(
        self, database: StateDatabase, url: str, by_executors: bool
    ) -> None:
        rig = joined(database, url, order_table(Semantics.OPAQUE))
        rig.commit(1, {ONE: ("ann", None)})
        if by_executors:
            rig.write(rig.begin(2), {TWO: ("bob", None), THREE: ("cid", None)})
        else:
            rig.commit(2, {TWO: ("bob", None), THREE: ("cid", None)})
        rig.commit(2, {THREE: ("cid", None)})
        rig.commit(3, {TWO: ("bob", None)})
        assert rows(rig, "customer", "txid") == [("ann", 1), ("bob", 3), ("cid", 2)]

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_share_is_written_twice_under_one_attempt(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        for on_conflict in ("fail", "ignore", "replace"):
            spec = order_table_of(
                SqlTable(f"t_{on_conflict}", "note string", key="id bigint", on_conflict=on_conflict),
                semantics,
            )
            rig = Rig(database, url, spec, topology=on_conflict).join()
            rig.commit(1, {1: "old"})
            under = rig.begin(2)
            new = {2: "new"} if on_conflict == "fail" else {1: "again", 2: "new"}
            assert rig.write(under, new) == len(new)
            assert rig.write(under, new) == len(new)
            rig.end(under)
            kept = "again" if on_conflict == "replace" else "old"
            assert rows(rig, "id", "note") == [(1, kept), (2, "new")]

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_key_that_is_there_fails_and_writes_nothing(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, named_table(semantics, "fail"))
        rig.commit(1, {7: "first"})
        expected = r"'names': key id=7 is there since txid 1, and txid 2 .*of this key: \(note='second'\)"
        with pytest.raises(StateValueError, match=expected):
            rig.commit(2, {6: "other", 7: "second"})
        assert rows(rig, "id", "note", "txid") == [(7, "first", 1)]

    @pytest.mark.parametrize("semantics", list(Semantics))
    def test_two_rows_of_one_key_in_a_batch_are_refused(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, named_table(semantics, "fail"))
        twice = rig.table_of({7: "first"}), rig.table_of({7: "second"})
        expected = r"two rows of one batch have the key id=7: \(note='first'\), and \(note='second'\)"
        with pytest.raises(StateValueError, match=expected):
            rig.commit(1, pa.concat_tables(twice))
        assert rows(rig, "id") == []

    @pytest.mark.parametrize("semantics", FENCED)
    def test_ignore_keeps_the_older_row(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, named_table(semantics, "ignore"))
        rig.commit(1, {7: "first"})
        rig.commit(2, {7: "second", 8: "new"})
        if semantics is Semantics.OPAQUE:
            rig.commit(2, {7: "third", 9: None})
        new = (9, None, 2) if semantics is Semantics.OPAQUE else (8, "new", 2)
        assert rows(rig, "id", "note", "txid") == [(7, "first", 1), new]

    @each("on_conflict", ["fail", "ignore", "replace"])
    def test_what_a_bolt_reads_is_from_before_its_batch(
        self, database: StateDatabase, url: str, on_conflict: OnConflict
    ) -> None:
        named = f"names_{on_conflict}"
        table = SqlTable(named, "note string", key="id bigint", on_conflict=on_conflict)
        rig = Rig(database, url, order_table_of(table, Semantics.OPAQUE), topology=named).join()

        def read(before: int) -> dict[int, str | None]:
            keys = pa.table({"id": pa.array([9, 8, 7], pa.int64())})
            found = rig.database.read(rig.spec, keys, before=Txid(before)).to_pylist()
            return {row["id"]: row["note"] for row in found}

        rig.commit(1, {7: None})
        again = {} if on_conflict == "fail" else {7: "second"}
        rig.commit(2, {**again, 8: "new"})
        assert read(2) == {7: None}
        assert read(3) == {7: "second" if on_conflict == "replace" else None, 8: "new"}

    def test_what_an_undone_attempt_replaced_comes_back(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, "replace", "note string, n bigint"))
        rig.commit(1, {7: ("first", None), 8: (None, None)})
        rig.commit(2, {7: ("second", 2), 8: ("eight", 2), 9: ("nine", 2)})
        assert rows(rig, "id", "note", "prev_note", "prev_txid", "txid") == [
            (7, "second", "first", 1, 2),
            (8, "eight", None, 1, 2),
            (9, "nine", None, None, 2),
        ]
        rig.commit(2, {10: ("ten", 2)})
        assert rows(rig, "id", "note", "n", "txid") == [
            (10, "ten", 2, 2),
            (7, "first", None, 1),
            (8, None, None, 1),
        ]
        with database.read_state(rig.topology) as reading:
            known = {row.key["id"]: (row.prev, row.knows_before) for row in reading.written_by("names", 1)}
        assert known == {7: (None, False), 8: (None, False)}, "what txid 1 has replaced is forgotten"
        found = inspect.diff(rig.topology, "names", 1, Settings(database=url))
        assert (found.created, found.changed, found.unchanged) == ((), (), 0)
        assert [row.key for row in found.carrying] == [{"id": 7}, {"id": 8}]
        rig.commit(3, {7: ("third", 3), 10: ("TEN", 3)})
        rig.commit(3, {7: ("THIRD", 3)})
        rig.commit(4, {})
        assert rows(rig, "id", "note", "n", "txid") == [
            (10, "ten", 2, 2),
            (7, "THIRD", 3, 3),
            (8, None, None, 1),
        ]

    def test_a_transactional_row_is_replaced_by_a_later_batch_alone(
        self, database: StateDatabase, url: str
    ) -> None:
        rig = joined(database, url, named_table(Semantics.TRANSACTIONAL, "replace"))
        rig.commit(1, {7: "first"})
        rig.write(rig.begin(2), {7: "second"})
        rig.commit(2, {7: "second", 8: None})
        assert list(read_rows(url, "names")[0]) == ["id", "note", "txid"]
        assert rows(rig, "id", "note", "txid") == [(7, "second", 2), (8, None, 2)]

    @pytest.mark.parametrize("semantics", FENCED)
    @pytest.mark.parametrize("on_conflict", ["fail", "ignore", "replace"])
    def test_a_newer_row_ends_the_batch(
        self, database: StateDatabase, url: str, semantics: Semantics, on_conflict: OnConflict
    ) -> None:
        rig = joined(database, url, named_table(semantics, on_conflict))
        rig.commit(1, {1: "a"})
        rig.commit(2, {2: "b"})
        with contextlib.closing(rig.database.sessions.engine.connect()) as connection:
            connection.exec_driver_sql("UPDATE names SET txid = 9 WHERE id = 2")
            connection.commit()
        with pytest.raises(TxidRegressionError, match="'names', key id=2: the row carries txid 9"):
            rig.commit(3, {2: "c", 3: "d"})
        assert rows(rig, "id", "note") == [(1, "a"), (2, "b")]

    @pytest.mark.parametrize(
        ("on_conflict", "expected"),
        [("fail", ["a", "a", "b", "c"]), ("ignore", ["a", "b"]), ("replace", ["b", "c"])],
    )
    def test_non_transactional_rows_come_twice_unless_a_key_forbids_it(
        self, database: StateDatabase, url: str, on_conflict: OnConflict, expected: list[str]
    ) -> None:
        rig = joined(database, url, named_table(Semantics.NON_TRANSACTIONAL, on_conflict))
        rig.commit(1, {1: "a", 2: "b"})
        rig.commit(1, {1: "a" if on_conflict == "fail" else "c"})
        if on_conflict == "fail":
            rig.commit(2, {1: "c"})
        assert sorted(row["note"] for row in read_rows(url, "names")) == expected
        assert list(read_rows(url, "names")[0]) == ["id", "note"]

    @pytest.mark.parametrize("on_conflict", ["fail", "ignore", "replace"])
    @pytest.mark.parametrize("semantics", list(Semantics))
    def test_the_next_driver_accepts_the_table_and_reads_it(
        self, database: StateDatabase, url: str, semantics: Semantics, on_conflict: OnConflict
    ) -> None:
        spec = named_table(semantics, on_conflict)
        rig = joined(database, url, spec)
        rig.commit(1, {1: "a", 2: None})
        rig.join(first_run=False)
        with rig.database.read_state("words") as reading:
            assert reading.differences("names") == []
            (stored,) = reading.tables()
            assert stored.on_conflict == on_conflict
            found = [(row.key["id"], row.value["note"]) for row in reading.top("names", 5)]
            assert sorted(found) == [(1, "a"), (2, None)]
            assert reading.count("names") == 2

    def test_another_declaration_is_refused(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, "ignore"))
        rig.spec = named_table(Semantics.OPAQUE, "fail")
        with pytest.raises(StateTableError, match="its on_conflict was declared 'ignore' and is now 'fail'"):
            rig.join(first_run=False)
        state = SqlState("names", key="id bigint", value="note string")
        rig.spec = TableSpec(state, Semantics.OPAQUE, {"note": Put()})
        with pytest.raises(StateTableError, match="on_conflict was declared 'ignore' and is now None"):
            rig.join(first_run=False)

    @pytest.mark.parametrize("on_conflict", ["fail", "replace"])
    def test_a_column_is_added(self, database: StateDatabase, url: str, on_conflict: OnConflict) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, on_conflict))
        under = rig.commit(1, {1: "a", 2: "b"})
        rig.spec = named_table(Semantics.OPAQUE, on_conflict, "note string, n bigint", defaults={"n": None})
        rig.join(first_run=False)
        assert rig.states.migrate(under.attempt) == ["names: column 'n' added, with default None"]
        rig.commit(2, {3: ("c", 3)})
        assert rows(rig, "id", "note", "n", "txid") == [(1, "a", None, 1), (2, "b", None, 1), (3, "c", 3, 2)]
        rig.commit(2, {})
        assert rows(rig, "id", "n") == [(1, None), (2, None)]

    @pytest.mark.parametrize("on_conflict", ["fail", "replace"])
    def test_a_batch_in_the_middle_of_its_commit_is_not_shown(
        self, database: StateDatabase, url: str, on_conflict: OnConflict
    ) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, on_conflict))
        rig.commit(1, {1: "a"})
        under = rig.begin(2)
        rig.write(under, {2: "b"} if on_conflict == "fail" else {1: "A", 2: "b"})
        with rig.database.read_state("words") as reading:
            assert [row.value["note"] for row in reading.top("names", 5)] == ["a"]
            assert reading.count("names") == 1
            assert reading.find("names", [2]) is None
        rig.end(under)
        with rig.database.read_state("words") as reading:
            assert reading.count("names") == 2

    def test_every_row_of_a_large_batch(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, "fail"))
        many = {number: f"note {number}" for number in range(30_011)}
        rig.commit(1, many)
        rig.commit(1, many)
        assert rig.values() == many

    @pytest.mark.parametrize("semantics", list(Semantics))
    def test_values_that_look_like_syntax_are_kept(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        texts = ["\\N", "a\tb", "line\nbreak\r", "\\", "\\.", "", None, "'\"{},", "é\u4e16\U0001f600"]
        rig = joined(
            database,
            url,
            named_table(semantics, "fail", "note string, raw binary, x double, ok boolean, at timestamp"),
        )
        given = {
            number: (
                texts[number % len(texts)],
                None if number % 5 == 0 else bytes([number % 256, 0, 92, 10]),
                None if number % 4 == 0 else number * 1.1e17,
                [True, False, None][number % 3],
                None if number % 9 == 0 else datetime(1, 1, 2, 3, 4, 5, number, tzinfo=UTC),
            )
            for number in range(400)
        }
        rig.commit(1, given)
        found = {
            row["id"]: (
                row["note"],
                None if row["raw"] is None else bytes(row["raw"]),
                row["x"],
                None if row["ok"] is None else bool(row["ok"]),
            )
            for row in read_rows(url, "names")
        }
        assert found == {number: values[:4] for number, values in given.items()}
        with rig.database.read_state("words") as reading:
            times = {row.key["id"]: row.value["at"] for row in reading.top("names", 500)}
        assert times == {number: values[4] for number, values in given.items()}

    def test_rows_of_a_replay_beside_new_ones(self, database: StateDatabase, url: str) -> None:
        """Some of a large batch's rows are there from an attempt that died, others are not."""
        rig = joined(database, url, named_table(Semantics.TRANSACTIONAL, "fail"))
        many = {number: f"note {number}" for number in range(1_000)}
        rig.write(rig.begin(1), {number: many[number] for number in range(300, 700)})
        rig.commit(1, many)
        assert rig.values() == many
        with pytest.raises(StateValueError, match="key id=999 is there since txid 1, and txid 2"):
            rig.commit(2, dict.fromkeys(range(999, 1500), "again"))
        assert rig.values() == many

    def test_a_stale_attempt_writes_nothing(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, named_table(Semantics.OPAQUE, "fail"))
        under = rig.begin(1)
        rig.states.raise_fence(attempt(1, 1, epoch=2).attempt)
        with pytest.raises(StaleAttemptError):
            rig.write(under, {1: "a"})
        assert rows(rig, "id") == []


@each(
    ("given", "expected"),
    [
        ({"on_conflict": "update"}, "on_conflict is 'update'; it must be one of 'fail', 'ignore', 'replace'"),
        ({"key": "note string"}, "value column 'note' clashes with key column 'note'"),
        ({"key": "prev_txid bigint"}, "clashes with the framework's column"),
    ],
)
def test_an_impossible_table(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(TopologyError, match=expected):
        SqlTable("names", "note string", **given)
