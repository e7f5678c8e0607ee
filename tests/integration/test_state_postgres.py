"""State in a real PostgreSQL: what holds for every SQL database, and what is its own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from postgres import PostgresServer
from support.server_databases import OneDatabase, new_database
from support.states import Rig, word_table
from support.tables import execute
from unit import test_sql_types, test_sql_written
from unit.test_concurrent_reader import TestReaders as TestReaders
from unit.test_dead_letter_rows import TestDeadLetterRows as TestDeadLetterRows
from unit.test_pruning import TestLedger as TestLedger
from unit.test_rows_removed import TestRemoved as TestRemoved
from unit.test_sql_append import TestAppended as TestAppended
from unit.test_sql_growth import TestGrowth as TestGrowth
from unit.test_sql_state import (
    TestBehindOurBack as TestBehindOurBack,
    TestTables as TestTables,
    TestWords as TestWords,
)
from unit.test_sql_written import TestSecondIndex as TestSecondIndex
from unit.test_state_framework import (
    TestAtomicFramework as TestAtomicFramework,
    TestFramework as TestFramework,
)
from unit.test_upgrades import TestUpgrades as TestUpgrades

from txstream.api.reducers import Min, Put, Sum
from txstream.api.state import SqlTable
from txstream.core.errors import (
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.state import StateBackend, TableSpec, TopologyStates, open_database, open_sql_database
from txstream.state.records import AccessDeniedError


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    return postgres


@pytest.fixture
def url(server: PostgresServer) -> str:
    return new_database(server)


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(host=str(server.data), user="postgres", autocommit=True) as connection:
        yield connection


class TestTypes(OneDatabase, test_sql_types.TestTypes):
    pass


class TestReducers(OneDatabase, test_sql_types.TestReducers):
    pass


@dataclass
class LeavingRig(Rig):
    """A table whose changes leave, and the table in which they wait."""

    @property
    def states(self) -> TopologyStates:
        changes = self.spec.state.changes
        assert changes is not None
        waiting = TableSpec(changes, Semantics.OPAQUE, {name: Put() for name in changes.value_names})
        tables = [self.spec, waiting]
        states: TopologyStates = self.database.of(self.topology, self.uuid, self.spec.semantics, tables)
        return states


class TestChanges:
    def test_they_are_copied_by_the_statement_that_makes_them(self, database: StateBackend, url: str) -> None:
        """So no index on txid is made; one that is there already, made by an earlier txstream, stays."""
        table = SqlTable(
            *("users", "n bigint"),
            key="word string",
            on_conflict="replace",
            sequence_by="n",
            changes_to="elsewhere",
        )
        rig = LeavingRig(database, url, TableSpec(table, Semantics.OPAQUE, {"n": Put()})).join()
        engine = sa.create_engine(url)
        assert sa.inspect(engine).get_indexes("users") == []
        rig.commit(1, {"a": 5, "b": 1})
        under = rig.begin(2)
        for _ in range(2):  # a task that is lost after it has written is run again
            rig.write(under, {"a": 3, "b": 2})  # the 5 stays, with its txid
        rig.end(under, keys=2)
        execute(url, "CREATE INDEX ix_users_txid ON users (txid)")
        rig = replace(rig, epoch=2).join(first_run=False)
        rig.commit(3, {"b": 4})
        copies = sa.text("SELECT txid, txstream_batch, word, n FROM users_changes ORDER BY txid, word")
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(copies)]
        engine.dispose()
        assert found == [(1, 1, "a", 5), (1, 1, "b", 1), (2, 2, "b", 2), (3, 3, "b", 4)]


class TestColumns:
    def test_a_key_too_long_for_an_index(self, rig: Rig) -> None:
        noise = random.Random(1)
        key = "".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(4000))
        with pytest.raises(StateValueError, match=r"table 'word_count': a key has 12000 bytes.*index row"):
            rig.commit(1, {key: 1})

    def test_room_for_updates_in_each_page(self, rig: Rig, admin: psycopg.Connection[Any]) -> None:
        engine = sa.create_engine(rig.url)
        with engine.connect() as connection:
            query = sa.text("SELECT reloptions FROM pg_class WHERE relname = 'word_count'")
            assert connection.execute(query).scalar_one() == ["fillfactor=50"]
        engine.dispose()

    def test_storage_parameters_of_ones_own(self, rig: Rig) -> None:
        given = {"fillfactor": 70, "autovacuum_enabled": False, "autovacuum_vacuum_scale_factor": 0.05}
        own = Rig(rig.database, rig.url, word_table("own", storage=given), topology="own").join()
        own.commit(1, {"a": 1})
        engine = sa.create_engine(rig.url)
        with engine.connect() as connection:
            query = sa.text("SELECT reloptions FROM pg_class WHERE relname = 'own'")
            assert connection.execute(query).scalar_one() == [
                "fillfactor=70",
                "autovacuum_enabled=false",
                "autovacuum_vacuum_scale_factor=0.05",
            ]
        engine.dispose()
        wrong = Rig(rig.database, rig.url, word_table("wrong", storage={"filfactor": 70}), topology="wrong")
        with pytest.raises(StateValueError, match=r'unrecognized parameter "filfactor"'):
            wrong.join()


class TestArrayLiterals:
    """PostgreSQL must read back exactly what was written, whatever the text."""

    @pytest.fixture(scope="class")
    @staticmethod
    def shared(server: PostgresServer) -> Iterator[Rig]:
        url = server.create_database("literals")
        database = open_database(url)
        yield Rig(
            database,
            url,
            word_table(
                key="word string, raw binary",
                value="n bigint, x double",
                reducers={"n": Sum("n"), "x": Min("x")},
            ),
        ).join()
        database.close()

    texts = st.text(
        st.one_of(
            st.sampled_from("\"\\{},' NULLnull\t\r\n\x01\x7f\u2028\ufeff\U0010ffff"),
            st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        ),
        max_size=12,
    )

    @given(
        rows=st.dictionaries(
            st.tuples(texts, st.binary(max_size=6)),
            st.tuples(st.integers(-(2**62), 2**62), st.floats(allow_nan=False)),
            max_size=20,
        )
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_anything_is_read_back_as_it_was_written(self, shared: Rig, rows: dict[Any, Any]) -> None:
        newest = shared.database.batches(shared.topology, limit=1)
        txid = newest[0].txid + 1 if newest else 1
        shared.commit(txid, rows)
        assert shared.values() == rows
        shared.commit(txid, None)  # a replay without these rows, so that the table is empty again
        assert shared.rows() == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:hidden@127.0.0.1:1/db", "refused"),
        ("postgresql://me:hidden@127.0.0.1:1/db?connect_timeout=3", "refused"),
        ("postgresql:///db?host=/nowhere", "No such file or directory"),
    ],
)
def test_unreachable(url: str, expected: str) -> None:
    unreachable = open_database(url, connect_timeout_seconds=3.0)
    with pytest.raises(ServiceUnavailableError, match=f"{expected}.*start or repair it, or set") as told:
        unreachable.check()
    assert "hidden" not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_database_that_does_not_exist(server: PostgresServer) -> None:
    with pytest.raises(ServiceUnavailableError, match='"nowhere" does not exist'):
        open_database(server.url("nowhere")).check()


def test_an_account_without_rights(server: PostgresServer, admin: psycopg.Connection[Any], url: str) -> None:
    admin.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    guest = open_database(url.replace("postgres@", "guest@"))
    guest.check()
    with pytest.raises(StateTableError, match=r"does not allow creating txstream's.*permission denied"):
        guest.ensure_framework_tables()
    guest.close()


def loses(when: str, condition: str, does: str, table: str = "word_count") -> list[str]:
    """SQL that makes a trigger."""
    return [
        f"CREATE FUNCTION loses() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {does}; END'",
        f"CREATE TRIGGER loses {when} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION loses()",
    ]


class TestLost(test_sql_written.TestLost):
    drop = "DROP FUNCTION loses CASCADE"
    ways = (
        loses("BEFORE INSERT", "NEW.word LIKE 'lost _%%'", "RETURN NULL"),
        loses("BEFORE UPDATE", "NEW.word = 'lost'", "RETURN OLD"),
        loses("BEFORE INSERT", "NEW.word LIKE 'lost _%%'", "NEW.word = ''other''; RETURN NEW"),
        loses(
            "AFTER INSERT",
            "NEW.word LIKE 'lost _%%'",
            "DELETE FROM word_count WHERE word = NEW.word; RETURN NULL",
        ),
    )
    letters = loses("BEFORE INSERT OR UPDATE", "true", "RETURN OLD", "txstream_dead_letter")


class TestRowSecurity:
    """Rows that a policy hides would be neither updated nor undone."""

    def test_it_is_refused_at_the_start_and_in_a_commit(self, server: PostgresServer, unique: str) -> None:
        direct = server.create_database(unique)
        server.create_account(unique, "word", owns=unique)
        execute(direct, f'GRANT ALL ON SCHEMA public TO "{unique}"')
        url = sa.make_url(direct).set(username=unique, password="word").render_as_string(hide_password=False)
        with contextlib.closing(open_sql_database(url)) as database:
            rig = Rig(database, url).join()
            rig.commit(1, {"a": 1, "b": 1})
            execute(
                direct,
                "ALTER TABLE word_count ENABLE ROW LEVEL SECURITY",
                "ALTER TABLE word_count FORCE ROW LEVEL SECURITY",
                "CREATE POLICY a ON word_count USING (word = 'a') WITH CHECK (true)",
            )
            with pytest.raises(AccessDeniedError, match="row-level security policy for table"):
                rig.commit(1, {"a": 2})
            assert rig.last().attempt == attempt_id(1, 1)
            with pytest.raises(
                StateTableError, match=r"'word_count' has row-level security.*DISABLE ROW LEVEL"
            ):
                rig.states.check_join(first_run=False)
