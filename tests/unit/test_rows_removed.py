"""Rows that are removed, in a database. It is SQLite here; the tests of each server run the same class. What
people see is read with plain SQL and compared with a dict that knows nothing of attempts."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.states import Rig
from support.tables import read_rows

from txstream.api.reducers import Put
from txstream.api.state import RECORD_KEY, REMOVED, ROWS_SUFFIX, SqlState, SqlTable
from txstream.core.errors import StateTableError, TopologyError, TxidRegressionError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.state import StateDatabase, TableSpec

FENCED = [Semantics.OPAQUE, Semantics.TRANSACTIONAL]
GONE = (None, None, True)
KEYS = "abcde"


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


def removing(semantics: Semantics, name: str = "users", **options: Any) -> TableSpec:
    table = SqlTable(
        name,
        "name string, at bigint",
        key="id string",
        on_conflict="replace",
        removed_by="op = 'd'",
        **options,
    )
    return TableSpec(table, semantics, {one: Put() for one in table.value_names})


def joined(database: StateDatabase, url: str, spec: TableSpec) -> Rig:
    return Rig(database, url, spec, topology=spec.state.table).join()


def seen(rig: Rig) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in read_rows(rig.url, rig.spec.state.table)}


def by_executors(
    rig: Rig, txid: int, deltas: dict[str, Any], *, ends: bool = True, twice: bool = False
) -> None:
    """Commit a batch in two shares; without `ends` the driver dies before the end."""
    under = rig.begin(txid)
    shares = [{key: row for key, row in deltas.items() if (key < "c") is low} for low in (True, False)]
    for share in shares if ends else shares[:1]:
        for _ in range(2 if twice else 1):
            rig.write(under, share)
    if ends:
        rig.end(under, len(deltas))


class TestRemoved:
    @pytest.mark.parametrize("path", ["driver", "executors"])
    def test_an_undone_removal_brings_the_row_back_as_it_was(
        self, database: StateDatabase, url: str, path: str
    ) -> None:
        rig = joined(database, url, removing(Semantics.OPAQUE))
        rig.commit(1, {"a": ("ann", 1, False), "b": ("bob", 1, False), "c": ("cid", 1, False)})
        rig.commit(2, {"a": ("Ann", 2, False), "c": GONE})
        rig.commit(3, {"c": ("Cid", 3, False)})
        before = seen(rig)
        with database.read_state("users") as reading:
            whole = pa.concat_tables(reading.whole("users")).to_pylist()
        stored = read_rows(url, f"users{ROWS_SUFFIX}")
        by_id = [{row["id"]: {**row} for row in rows} for rows in (whole, stored)]
        assert by_id[0] == by_id[1], "removed rows and what undoing needs are among them"
        assert before["a"] == {
            "id": "a", "name": "Ann", "prev_name": "ann", "at": 2, "prev_at": 1, "prev_txid": 1, "txid": 2
        }  # fmt: skip
        assert before["c"]["prev_txid"] is before["c"]["prev_name"] is None  # as a new row
        removal = {"a": GONE, "b": GONE, "c": GONE, "d": GONE}
        if path == "driver":
            rig.commit(4, removal)
        else:
            by_executors(rig, 4, removal, twice=True)
        assert seen(rig) == {}
        rig.commit(4, {"e": ("eve", 4, False)})
        after = seen(rig)
        assert after.pop("e")["txid"] == 4
        assert after == before
        rig.commit(4, {"b": GONE})
        del before["b"]
        assert seen(rig) == before

    @pytest.mark.parametrize("semantics", Semantics)
    def test_nothing_of_a_removed_row_is_left_once_nothing_can_bring_it_back(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, removing(semantics))
        rig.commit(1, {"a": ("ann", 1, False), "b": ("bob", 1, False)})
        rig.commit(2, {"a": GONE})
        assert list(seen(rig)) == ["b"]
        rig.commit(3, None)
        assert [row["id"] for row in read_rows(url, f"users{ROWS_SUFFIX}")] == ["b"]

    @pytest.mark.parametrize("semantics", FENCED)
    def test_what_is_remembered_of_a_removal_is_its_key_and_sequence(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, removing(semantics, sequence_by="at"))
        rig.commit(1, {"a": ("ann", 5, False), "b": ("bob", 5, False)})
        rig.commit(2, {"a": (None, 7, True), "b": ("old", 4, False), "c": (None, 9, True)})
        rig.commit(3, None)
        assert {key: row["name"] for key, row in seen(rig).items()} == {"b": "bob"}
        left = {row["id"]: row for row in read_rows(url, f"users{ROWS_SUFFIX}")}
        del left["b"]
        for key, row in left.items():
            told = {name: value for name, value in row.items() if value is not None}
            assert told == {"id": key, "at": {"a": 7, "c": 9}[key], "txid": 2}
        rig.commit(4, {"a": ("late", 6, False), "c": ("new", 9, False)})
        assert {key: row["name"] for key, row in seen(rig).items()} == {"b": "bob", "c": "new"}

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_removal_is_remembered_as_long_as_rows_are_kept(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        table = SqlTable(
            "days",
            "n bigint",
            key="id string, day date",
            on_conflict="replace",
            removed_by="gone",
            sequence_by="n",
            keep="1d",
        )
        spec = TableSpec(table, semantics, {one: Put() for one in table.value_names})
        rig = joined(database, url, spec)
        first, second = (("a", date(2026, 3, day)) for day in (1, 5))
        rig.commit(1, {first: (5, False), second: (5, False)})
        rig.commit(2, {first: (6, True), second: (6, True)})
        rig.commit(3, {first: (4, False)})
        assert rig.rows() == []
        horizon = int(datetime(2026, 3, 3, tzinfo=UTC).timestamp())
        under = rig.next(4)
        rig.states.commit(replace(rig.whole(under, {}), horizons={"days": horizon}))
        left = read_rows(url, f"days{ROWS_SUFFIX}")
        assert [str(row["day"]) for row in left] == ["2026-03-05"]

    @pytest.mark.parametrize("sequence_by", [None, "at"])
    @pytest.mark.parametrize("semantics", FENCED)
    def test_histories_of_attempts_that_are_undone(
        self, database: StateDatabase, url: str, semantics: Semantics, sequence_by: str | None
    ) -> None:
        for seed in range(12):
            chance = random.Random(f"{semantics} {sequence_by} {seed}")
            rig = joined(database, url, removing(semantics, f"users_{seed}", sequence_by=sequence_by))
            truth: dict[str, Any] = {}
            for txid in range(1, 9):
                deltas: dict[str, Any] = {}
                for attempt in range(chance.choice([1, 1, 2, 3])):
                    if attempt == 0 or semantics is Semantics.OPAQUE:
                        keys = [key for key in KEYS if chance.random() < 0.5]
                        deltas = {key: _row(chance, txid) for key in keys}
                    how = chance.choice(["driver", "executors", "twice"])
                    ends = attempt > 0 and chance.random() < 0.5
                    if how == "driver":
                        rig.commit(txid, deltas)
                    else:
                        by_executors(rig, txid, deltas, ends=ends, twice=how == "twice")
                rig.commit(txid, deltas)
                for key, row in deltas.items():
                    if sequence_by is None or key not in truth or truth[key][1] <= row[1]:
                        truth[key] = (*row, txid)
                there = {key: (name, at, by) for key, (name, at, gone, by) in truth.items() if not gone}
                found = {key: (row["name"], row["at"], row["txid"]) for key, row in seen(rig).items()}
                assert found == there, (seed, txid)

    @pytest.mark.parametrize("semantics", FENCED)
    def test_a_row_is_shown_until_executors_have_removed_it(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, removing(semantics))
        rig.commit(1, {"a": ("ann", 1, False), "b": ("bob", 1, False)})
        rig.commit(2, {"b": GONE})
        under = rig.begin(3)
        rig.write(under, {"a": GONE, "b": ("Bob", 3, False)})
        assert list(seen(rig)) == ["b"]
        with database.read_state("users") as state:
            found = state.find("users", ["a"]), state.find("users", ["b"])
            there = [None if row is None else row.value["name"] for row in found]
            # What a transactional table held before is not known, as with any of its rows.
            assert there == (["ann", None] if semantics is Semantics.OPAQUE else [None, "Bob"])
            assert state.count("users") == len(state.top("users", 9)) == 1
            assert [(row.key["id"], row.removed) for row in state.written_by("users", 3)] == [
                ("a", True),
                ("b", False),
            ]
            assert [name for table in state.tables() for name in table.value.names] == ["name", "at"]
        rig.end(under, 2)
        with database.read_state("users") as state:
            assert state.find("users", ["a"]) is None
            assert state.count("users") == 1

    @pytest.mark.parametrize("semantics", FENCED)
    def test_what_a_bolt_reads_is_from_before_its_batch(
        self, database: StateDatabase, url: str, semantics: Semantics
    ) -> None:
        rig = joined(database, url, removing(semantics))

        def read(before: int) -> dict[str, Any]:
            keys = pa.table({"id": [*KEYS, "f"]})
            found = rig.database.read(rig.spec, keys, before=Txid(before)).to_pylist()
            return {row["id"]: (row["name"], row["at"]) for row in found if row[REMOVED] is False}

        rig.commit(1, {"a": ("ann", 1, False), "b": ("bob", 1, False), "d": ("dan", None, False)})
        first = read(2)
        assert first == {"a": ("ann", 1), "b": ("bob", 1), "d": ("dan", None)}
        rig.commit(2, {"a": ("Ann", 2, False), "b": GONE, "c": ("cid", None, False)})
        second = {"a": ("Ann", 2), "c": ("cid", None), "d": ("dan", None)}
        # A transactional batch that is written again is the same: its rows are as they will be.
        assert read(2) == (first if semantics is Semantics.OPAQUE else second)
        assert read(3) == second
        by_executors(rig, 3, {"b": ("Bob", 3, False), "c": GONE}, ends=False)
        half = {**second, "b": ("Bob", 3)}
        assert read(3) == (second if semantics is Semantics.OPAQUE else half)

    def test_a_removal_of_a_newer_row_ends_the_run(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, removing(Semantics.OPAQUE))
        rig.commit(1, {"a": ("ann", 1, False)})
        under = rig.begin(2)
        rig.write(under, {"a": ("Ann", 1, False)})
        with pytest.raises(TxidRegressionError, match="newer than"):
            rig.write(TransactionAttempt(Txid(1), under.attempt), {"a": GONE})

    def test_a_table_of_the_name_of_its_rows_is_refused(self, database: StateDatabase, url: str) -> None:
        other = TableSpec(
            SqlState(f"users{ROWS_SUFFIX}", key="id string", value="n bigint"), Semantics.OPAQUE, {"n": Put()}
        )
        joined(database, url, other)
        with pytest.raises(StateTableError, match="users__rows"):
            joined(database, url, removing(Semantics.OPAQUE))

    def test_a_table_that_is_there_gets_no_removals(self, database: StateDatabase, url: str) -> None:
        plain = SqlTable("users", "name string, at bigint", key="id string", on_conflict="replace")
        rig = joined(database, url, TableSpec(plain, Semantics.OPAQUE, {n: Put() for n in plain.value_names}))
        rig.spec = removing(Semantics.OPAQUE)
        what_to_do = r"nor does it get or lose that\)\. Choose another table under another topology id"
        with pytest.raises(StateTableError, match=what_to_do):
            rig.join(first_run=False)

    def test_the_view_goes_with_the_table(self, database: StateDatabase, url: str) -> None:
        rig = joined(database, url, removing(Semantics.OPAQUE))
        rig.commit(1, {"a": ("ann", 1, False)})
        rig.join(first_run=False)
        assert database.delete("users", drop_state=True) == ["users"]
        joined(database, url, removing(Semantics.OPAQUE)).commit(1, {"a": GONE})


def _row(chance: random.Random, txid: int) -> tuple[Any, ...]:
    at = chance.randrange(10)
    if chance.random() < 0.4:
        return None, at, True
    return f"{txid} {chance.random():.3f}", at, False


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"on_conflict": "fail", "removed_by": "op = 'd'"}, "the last row of each key"),
        ({"on_conflict": "replace", "removed_by": "op = 'd'", "key": RECORD_KEY}, "the last row of each key"),
        ({"on_conflict": "ignore", "sequence_by": "at"}, "the last row of each key"),
        ({"on_conflict": "replace", "sequence_by": "when"}, "one of the value columns 'name', 'at'"),
        ({"on_conflict": "replace", "value": f"{REMOVED} boolean"}, "framework's own column"),
    ],
)  # fmt: skip
def test_an_impossible_table(options: dict[str, Any], expected: str) -> None:
    given = {"value": "name string, at bigint", "key": "id string", **options}
    with pytest.raises(TopologyError, match=expected):
        SqlTable("users", given.pop("value"), **given)
