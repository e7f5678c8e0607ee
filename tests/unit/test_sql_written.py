"""What a database was told to write and did not, without an error: the commit is refused. The database is
SQLite here; the tests of each server run the same classes, with its own ways to lose a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
from support.lists import each
from support.states import Rig, word_table
from support.tables import execute
from unit.test_dead_letter_rows import kept, letter, retried, write

from txstream.api.reducers import Put
from txstream.api.state import OnConflict, SqlTable
from txstream.core.errors import StateTableError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.state import StateDatabase, TableSpec

FENCED = [Semantics.OPAQUE, Semantics.TRANSACTIONAL]
MANY = {f"word {number}": number for number in range(1000)}

Commit = Callable[[Rig, int, dict[str, int]], object]


def on_driver(rig: Rig, txid: int, deltas: dict[str, int]) -> None:
    rig.commit(txid, deltas)


def on_executors(rig: Rig, txid: int, deltas: dict[str, int]) -> None:
    under = rig.begin(txid)
    for key, delta in deltas.items():
        rig.write(under, {key: delta})
    rig.end(under, keys=len(deltas))


PATHS: list[Commit] = [on_driver, on_executors]


def appended(semantics: Semantics, on_conflict: OnConflict) -> TableSpec:
    table = SqlTable("word_count", "n bigint", key="word string", on_conflict=on_conflict)
    return TableSpec(table, semantics, {"n": Put()})


KEYED = [
    *(word_table(semantics=semantics) for semantics in Semantics),
    *(appended(semantics, how) for semantics in FENCED for how in ("fail", "ignore", "replace")),
]


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestSecondIndex:
    """A UNIQUE index beside the key. For MySQL and MariaDB a row that has its value is the row to update."""

    @each("spec", KEYED)
    def test_no_row_goes_into_another(self, database: StateDatabase, url: str, spec: TableSpec) -> None:
        rig = Rig(database, url, spec).join()
        rig.commit(1, {"a": 5})
        before = rig.rows()
        execute(url, "CREATE UNIQUE INDEX second ON word_count (n)")
        for deltas in ({"b": 5, "c": 6}, MANY):
            with pytest.raises(TxstreamError, match=self.told):
                rig.commit(2, deltas)
            assert (rig.rows(), rig.last().txid) == (before, 1)
            with pytest.raises(TxstreamError, match=self.told):
                on_executors(rig, 2, {"b": 5})
            if spec.semantics is not Semantics.NON_TRANSACTIONAL:
                assert rig.last().status == "committing"
            assert rig.rows() == before
            rig.commit(2, None)
            execute(url, "DELETE FROM txstream_batch WHERE txid = 2")
        rig.database.delete(rig.topology, drop_state=True)

    told: ClassVar[str] = "second|n"


class TestLost:
    """A trigger that loses rows of some words."""

    drop: ClassVar[str] = "DROP TRIGGER loses"
    ways: ClassVar[Sequence[Sequence[str]]] = (
        [
            "CREATE TRIGGER loses BEFORE INSERT ON word_count WHEN new.word LIKE 'lost _%' "
            "BEGIN SELECT RAISE(IGNORE); END"
        ],
        [
            "CREATE TRIGGER loses BEFORE UPDATE ON word_count WHEN new.word = 'lost' "
            "BEGIN SELECT RAISE(IGNORE); END"
        ],
        [
            "CREATE TRIGGER loses AFTER INSERT ON word_count WHEN new.word LIKE 'lost _%' "
            "BEGIN DELETE FROM word_count WHERE word = new.word; END"
        ],
        [
            "CREATE TRIGGER loses AFTER UPDATE ON word_count WHEN new.word = 'lost' AND new.txid > 1 "
            "BEGIN UPDATE word_count SET txid = 1 WHERE word = new.word; END"
        ],
    )
    letters: ClassVar[Sequence[str]] = (
        "CREATE TRIGGER loses BEFORE INSERT ON txstream_dead_letter BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER keeps BEFORE UPDATE ON txstream_dead_letter BEGIN SELECT RAISE(IGNORE); END",
    )

    @pytest.mark.parametrize("semantics", FENCED)
    def test_counts(self, database: StateDatabase, url: str, semantics: Semantics) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"lost": 1, "found": 1})
        expected = {"lost": 1, "found": 1}
        for txid, way in enumerate(self.ways, 2):
            deltas = {"found": 1, "lost": 1, f"lost {txid}": 1}
            execute(url, *way)
            for commit in PATHS:
                with pytest.raises(
                    StateTableError,
                    match=r"'word_count'.*1 of them .*second UNIQUE index, a trigger or row-l",
                ):
                    commit(rig, txid, deltas)
            assert rig.last().status == "committing"
            execute(url, self.drop)
            rig.commit(txid, deltas)
            expected = {key: expected.get(key, 0) + deltas.get(key, 0) for key in {**expected, **deltas}}
            assert rig.values() == expected

    @each("how", ["fail", "ignore", "replace"])
    def test_rows_as_they_are(self, database: StateDatabase, url: str, how: OnConflict) -> None:
        rig = Rig(database, url, appended(Semantics.OPAQUE, how), topology=how, uuid=how).join()
        execute(url, *self.ways[0])
        for others in ({"found": 1}, MANY):
            with pytest.raises(StateTableError, match=r"'word_count'.*1 of them"):
                rig.commit(1, {**others, "lost 1": 1})
        assert rig.rows() == []
        execute(url, self.drop)
        rig.database.delete(how, drop_state=True)

    def test_dead_letters(self, rig: Rig) -> None:
        write(rig, 5, [letter(1), letter(2)])
        retried(rig, [(5, 2)], 7)  # the same batch marks another row below
        execute(rig.url, *self.letters)
        with pytest.raises(StateTableError, match=r"'txstream_dead_letter'.*1 of them"):
            write(rig, 6, [letter(2)])
        with pytest.raises(StateTableError, match=r"'txstream_dead_letter'.*1 of them"):
            retried(rig, [(5, 1)], 7)
        assert [status for _, _, status in kept(rig)] == ["dead", "retried in txid 7"]
