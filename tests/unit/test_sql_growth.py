"""State tables whose declaration changed: added columns are migrated, other changes are refused.

The database here is SQLite; the tests of each server run the same class.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from support.states import CrashError, Rig, word_table
from support.stepwise import crash_before
from support.tables import execute, read_rows

from txstream.api.reducers import Count, Max, Sum
from txstream.api.state import SqlState
from txstream.core.errors import StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid, attempt_id
from txstream.state import StateDatabase, TableSpec
from txstream.state.sql import tables as growth


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
NON_TRANSACTIONAL = Semantics.NON_TRANSACTIONAL


def grown(semantics: Semantics = OPAQUE, **options: Any) -> TableSpec:
    """Return `word_table()` with one more column."""
    options = {"value": "n bigint, total double", "defaults": {"total": 0.5}, **options}
    state = SqlState("word_count", key="word string", **options)
    return TableSpec(state, semantics, {"n": Count(), "total": Sum("x")})


def next_leader(rig: Rig, spec: TableSpec) -> Rig:
    """Start a driver with another declaration, up to the point where every fence is raised."""
    leader = replace(rig, spec=spec, epoch=rig.epoch + 1).join(first_run=False)
    rig.states.raise_fence(attempt_id(leader.epoch, 0))
    return leader


def migrate(leader: Rig, unfinished: int | None = None) -> list[str]:
    fence = attempt_id(leader.epoch, 0)
    txid = None if unfinished is None else Txid(unfinished)
    done: list[str] = leader.states.migrate(fence, unfinished=txid)
    return done


def migrate_through(leader: Rig, database: StateDatabase) -> list[str]:
    return migrate(replace(leader, database=database))


def by_word(rig: Rig) -> dict[str, dict[str, Any]]:
    return {row.pop("word"): row for row in read_rows(rig.url, "word_count")}


def indexes(url: str) -> list[Any]:
    engine = sa.create_engine(url)
    found = [index["name"] for index in sa.inspect(engine).get_indexes("word_count")]
    engine.dispose()
    return sorted(found)


class TestGrowth:
    def test_a_column_is_added_to_an_opaque_table(self, rig: Rig) -> None:
        rig.commit(1, {"a": 1, "b": 1})
        rig.commit(2, {"b": 1, "c": 1})
        leader = next_leader(rig, grown())
        assert migrate(leader) == ["word_count: column 'total' added, with default 0.5"]
        # A prev is NULL exactly where the row's txid created it.
        assert by_word(leader) == {
            "a": {"n": 1, "prev_n": None, "total": 0.5, "prev_total": None, "txid": 1},
            "b": {"n": 2, "prev_n": 1, "total": 0.5, "prev_total": 0.5, "txid": 2},
            "c": {"n": 1, "prev_n": None, "total": 0.5, "prev_total": None, "txid": 2},
        }
        leader.commit(3, {"a": (1, 2.0), "d": (1, 4.0)})
        leader.commit(3, {"a": (1, 3.0)})
        assert leader.values() == {"a": (2, 3.5), "b": (2, 0.5), "c": (1, 0.5)}
        assert migrate(next_leader(leader, leader.spec)) == []

    @pytest.mark.parametrize("semantics", [TRANSACTIONAL, NON_TRANSACTIONAL])
    @pytest.mark.parametrize("default", [0.5, None])
    def test_a_column_is_added_to_other_tables(
        self, database: StateDatabase, url: str, semantics: Semantics, default: float | None
    ) -> None:
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        rig.commit(1, {"a": 1, "b": 1})
        leader = next_leader(rig, grown(semantics, defaults={"total": default}))
        assert len(migrate(leader)) == 1
        assert leader.values() == {"a": (1, default), "b": (1, default)}
        leader.commit(2, {"a": (1, 2.0)})
        assert leader.values() == {"a": (2, 2.0 + (default or 0)), "b": (1, default)}

    def test_a_transactional_table_must_wait_for_the_end_of_its_txid(
        self, database: StateDatabase, url: str
    ) -> None:
        """Rows of that txid are not written again, so they would never get its part of the new column."""
        rig = Rig(database, url, word_table(semantics=TRANSACTIONAL)).join()
        rig.commit(1, {"a": 1})
        leader = next_leader(rig, grown(TRANSACTIONAL))
        with pytest.raises(StateTableError, match=r"'total' cannot be added while txid 1.*--until-txid 1"):
            migrate(leader, unfinished=1)
        assert by_word(rig) == {"a": {"n": 1, "txid": 1}}
        assert len(migrate(leader)) == 1

    @pytest.mark.parametrize(
        ("kind", "default"),
        [
            ("string", 'it\'s 100% \\ "größe" 🦀'),
            ("string", ""),
            ("binary", b"\0'\xff"),
            ("boolean", True),
            ("tinyint", -128),
            ("bigint", -(2**63) + 1),
            ("double", 0.1),
            ("date", date(1, 1, 1)),
            ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)),
            ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5, 678)),
        ],
    )
    def test_defaults_of_every_type(self, rig: Rig, kind: str, default: Any) -> None:
        """A default reads back like the same value after a commit."""
        rig.commit(1, {"a": 1})
        state = SqlState(
            "word_count", "word string", f"n bigint, `an %s x` {kind}", defaults={"an %s x": default}
        )
        spec = TableSpec(state, OPAQUE, {"n": Count(), "an %s x": Max("x")})
        leader = next_leader(rig, spec)
        assert len(migrate(leader)) == 1
        leader.commit(2, {"b": (1, default)})
        values = leader.values()
        assert values["a"] == values["b"]

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [
            (grown(defaults={}), r"\('total' added without a default: SqlState\(\.\.\., defaults=\{'total'"),
            (grown(value="total double"), r"\('n' removed, 'total' added: a column cannot be renamed\)"),
            (word_table(value="n double"), r"now 'n double' \('n' was bigint and is double\)"),
            (grown(value="n int, total double"), r"\('n' was bigint and is int\)"),
            (grown(TRANSACTIONAL), "its semantics was declared 'opaque' and is now 'transactional'"),
            (grown(defaults={"total": None}), "default of 'total' cannot be None"),
        ],
        ids=["no default", "renamed", "type", "type and column", "semantics", "null"],
    )
    def test_what_cannot_be_migrated(self, rig: Rig, changed: TableSpec, expected: str) -> None:
        rig.commit(1, {"a": 1})
        with pytest.raises(StateTableError, match=expected):
            next_leader(rig, changed)
        assert by_word(rig) == {"a": {"n": 1, "prev_n": None, "txid": 1}}

    @pytest.mark.parametrize(
        ("changed", "expected"),
        [("total double", r"\('n' removed\)"), ("total double, n bigint", "their order changed")],
    )
    def test_what_cannot_be_migrated_back(
        self, database: StateDatabase, url: str, changed: str, expected: str
    ) -> None:
        rig = Rig(database, url, grown()).join()
        with pytest.raises(StateTableError, match=expected):
            next_leader(rig, grown(value=changed))

    def test_a_crash_in_the_middle(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        rig.commit(1, {"a": 1})
        rig.commit(2, {"a": 1, "b": 1})
        leader = next_leader(rig, grown())

        def crash(_document: object) -> str:
            raise CrashError

        with monkeypatch.context() as patch:
            patch.setattr(growth, "to_json", crash)  # all columns are added, the declaration is the old one
            with pytest.raises(CrashError):
                migrate(leader)
        leader = next_leader(leader, leader.spec)
        assert len(migrate(leader)) == 1
        assert {word: row["prev_total"] for word, row in by_word(leader).items()} == {"a": 0.5, "b": None}

    def test_a_migration_that_stopped_where_each_step_is_committed_goes_on(self, rig: Rig) -> None:
        """As on a database that commits each ALTER TABLE by itself: the columns are there, but the stored
        declaration is the old one."""
        rig.commit(1, {"a": 1})
        rig.commit(2, {"a": 1, "b": 1})
        declared = read_rows(rig.url, "txstream_table")[0]["declaration"]
        leader = next_leader(rig, grown())
        migrate(leader)
        execute(rig.url, f"UPDATE txstream_table SET declaration = '{declared}'")
        execute(rig.url, "UPDATE word_count SET prev_total = 0.5")
        leader = next_leader(leader, leader.spec)
        assert len(migrate(leader)) == 1
        assert {word: row["prev_total"] for word, row in by_word(leader).items()} == {"a": 0.5, "b": None}

    def test_a_migration_that_was_broken_off_anywhere(self, database: StateDatabase, url: str) -> None:
        """It breaks off before each statement in turn. As on MySQL, a definition commits what preceded it."""
        for step in itertools.count():
            rig = Rig(database, url, word_table(f"grown{step}"), topology=f"words{step}").join()
            rig.commit(1, {"a": 1})
            rig.commit(2, {"a": 1, "b": 1})
            state = replace(grown().state, table=f"grown{step}")
            leader = next_leader(rig, replace(grown(), state=state))
            crashed = crash_before(url, step, partial(migrate_through, leader))
            leader = next_leader(leader, leader.spec)
            migrate(leader)
            assert migrate(leader) == []
            rows = {row["word"]: row["prev_total"] for row in read_rows(url, f"grown{step}")}
            assert rows == {"a": 0.5, "b": None}
            leader.commit(2, {"a": (3, 2.0)})
            assert leader.values() == {"a": (4, 2.5)}
            if not crashed:
                assert step >= 4  # two columns, nulls, the declaration
                return

    def test_the_index_on_txid_is_neither_made_nor_dropped_later(self, rig: Rig) -> None:
        """The refusal ends with the statement that helps, in the SQL of this database."""
        execute(rig.url, "CREATE INDEX mine ON word_count (txid)")
        leader = rig
        for spec, told in (
            (word_table(index_txid=True), "index_txid=True and has no index ix_word_count_txid"),
            (word_table(), "index_txid=False and has the index ix_word_count_txid"),
        ):
            before = indexes(rig.url)
            with pytest.raises(StateTableError, match=f"'word_count' is declared with {told}") as refused:
                next_leader(leader, spec)
            assert indexes(rig.url) == before
            execute(rig.url, str(refused.value).rpartition("database: ")[2])
            leader = next_leader(leader, spec)
            assert migrate(leader) == []
            leader.commit(leader.epoch - 1, {"a": 1, "b": 1})
            leader.commit(leader.epoch - 1, {"a": 2})
        assert leader.values() == {"a": 4}
        assert indexes(rig.url) == ["mine"]
