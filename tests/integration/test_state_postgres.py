"""State in a real PostgreSQL: the contract, and what only a server can do."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from postgres import PostgresServer
from psycopg import sql
from support.cut import AnswerLosingProxy
from support.framework_contract import AtomicFrameworkContract
from support.growth_contract import GrowthContract
from support.pruning_contract import PruningContract
from support.reducer_contract import ReducerContract
from support.server_contract import ServerLocks, ServerOutages, closing
from support.server_databases import OneDatabase, new_database
from support.sql_contract import SqlStateContract
from support.state_contract import StateFixtures
from support.state_histories import HistoryContract
from support.states import Rig, word_table
from support.type_contract import AllTypesContract
from support.upgrade_contract import UpgradeContract
from support.value_rules import StoreValueRules

from txstream.api.errors import (
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
)
from txstream.api.reducers import Min, Sum
from txstream.state import StateDatabase, open_database

_SOCKET = ".s.PGSQL.5432"


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


def administrator(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(host=host_of(url), user="postgres", autocommit=True)


def busy_backend(url: str) -> int:
    """The process that serves the one session of this database that is in a transaction."""
    pid = _asked(url, "state LIKE 'idle in tran%%'")
    assert pid is not None
    return pid


def _asked(url: str, condition: LiteralString) -> int | None:
    """A session of this database for which this holds."""
    with administrator(url) as connection:
        query = f"SELECT pid FROM pg_stat_activity WHERE datname = %s AND {condition}"
        row = connection.execute(query, (sa.make_url(url).database,)).fetchone()
    return None if row is None else int(row[0])


def host_of(url: str) -> str:
    return str(sa.make_url(url).query["host"])


class TestContract(SqlStateContract):
    pass


class TestEveryType(OneDatabase, AllTypesContract):
    pass


class TestEveryReducer(OneDatabase, ReducerContract):
    pass


class TestFramework(AtomicFrameworkContract):
    pass


class TestUpgrades(UpgradeContract):
    pass


class TestGrowth(GrowthContract):
    pass


class TestPruning(PruningContract):
    pass


class TestValueRules(StoreValueRules):
    pass


class TestTypes(StateFixtures):
    def test_decimals_are_exact(self, database: StateDatabase, url: str) -> None:
        spec = word_table(
            key="k decimal(4,2)",
            value="n decimal(10,2), least decimal(38,10)",
            reducers={"n": Sum("n"), "least": Min("x")},
        )
        rig = Rig(database, url, spec).join()
        one = Decimal("0.10")
        rig.commit(1, {one: (one, Decimal("-9999999999999999999999999999.0000000001"))})
        for txid in (2, 3):
            rig.commit(txid, {one: (one, Decimal(0))})
        assert rig.values() == {one: (Decimal("0.30"), Decimal("-9999999999999999999999999999.0000000001"))}
        with pytest.raises(StateValueError, match=r"key k=Decimal\('0.10'\): column 'n' \(decimal\(10,2\)\)"):
            rig.commit(4, {one: (Decimal("99999999.99"), Decimal(0))})
        assert rig.join(first_run=False)

    def test_sum_beyond_the_largest_float(self, database: StateDatabase, url: str) -> None:
        rig = Rig(database, url, word_table(value="n double")).join()
        rig.commit(1, {"a": 1.7e308})
        with pytest.raises(StateValueError, match=r"key word='a': column 'n' \(double\) cannot hold"):
            rig.commit(2, {"a": 1.7e308})

    def test_a_key_too_long_for_an_index(self, rig: Rig) -> None:
        noise = random.Random(1)
        key = "".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(4000))
        with pytest.raises(StateValueError, match=r"table 'word_count': a key has 12000 bytes.*index row"):
            rig.commit(1, {key: 1})

    def test_a_name_too_long(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match=r"exceeds maximum length of 63.*shorter name"):
            Rig(database, url, word_table("t" * 64)).join()

    def test_room_for_updates_in_each_page(self, rig: Rig, admin: psycopg.Connection[Any]) -> None:
        engine = sa.create_engine(rig.url)
        with engine.connect() as connection:
            query = sa.text("SELECT reloptions FROM pg_class WHERE relname = 'word_count'")
            assert connection.execute(query).scalar_one() == ["fillfactor=50"]
        engine.dispose()


class TestArrayLiterals(StateFixtures):
    """PostgreSQL reads back exactly what was written, whatever the text."""

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
        shared.commit(shared.sequence + 1, None)
        txid = shared.sequence + 1
        shared.commit(txid, rows)
        assert shared.values() == rows
        shared.commit(txid, None)  # a replay without them, so that the table is empty again
        assert shared.rows() == []


class TestHistories(OneDatabase, HistoryContract):
    pass


class PostgreSQLTools:
    """How a PostgreSQL is asked and treated."""

    lock_timeout: ClassVar[tuple[str, str]] = ("SHOW lock_timeout", "10s")

    def is_waiting(self, url: str) -> bool:
        return _asked(url, "wait_event_type = 'Lock'") is not None

    def end_session(self, url: str) -> None:
        with administrator(url) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (busy_backend(url),))


class TestLocks(PostgreSQLTools, ServerLocks):
    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        url = new_database(server)
        name = sa.make_url(url).database
        with administrator(url) as connection:
            connection.execute(
                sql.SQL('ALTER DATABASE {} SET default_transaction_isolation = "repeatable read"').format(
                    sql.Identifier(str(name))
                )
            )
        return url


class TestOutages(PostgreSQLTools, ServerOutages):
    @pytest.fixture
    def server(self, own_postgres: PostgresServer) -> PostgresServer:
        self.data = own_postgres.data
        return own_postgres

    @contextlib.contextmanager
    def freeze(self, url: str | None) -> Iterator[object]:
        (postmaster, *_) = (self.data / "postmaster.pid").read_text().split()
        pid = int(postmaster) if url is None else busy_backend(url)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield None
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        with tempfile.TemporaryDirectory(prefix="txs") as directory:
            proxy = AnswerLosingProxy(f"{host_of(url)}/{_SOCKET}", f"{directory}/{_SOCKET}")
            with closing(proxy):
                yield f"postgresql://postgres@/{sa.make_url(url).database}?host={directory}", proxy


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
