"""State in a real MariaDB: the contract, and what only a server can do."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any, ClassVar

import pymysql
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from mariadb import MariaDBServer
from support.cut import AnswerLosingProxy
from support.framework_contract import FrameworkContract
from support.growth_contract import GrowthContract
from support.server_contract import ServerLocks, ServerOutages, closing
from support.sql_contract import SqlStateContract
from support.state_histories import histories, play
from support.type_contract import INFINITY, AllTypesContract
from support.upgrade_contract import UpgradeContract
from support.value_rules import Runner, ValueRules, sql_runner

from txstream.embedded.process import wait_until
from txstream.semantics import Semantics
from txstream.state import StateDatabase, open_sql_database

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(mariadb: MariaDBServer) -> MariaDBServer:
    return mariadb


@pytest.fixture
def url(server: MariaDBServer) -> str:
    return server.create_database(f"db{next(numbers)}")


class TestContract(SqlStateContract):
    pass


class TestFramework(FrameworkContract):
    pass


class TestUpgrades(UpgradeContract):
    pass


class TestGrowth(GrowthContract):
    pass


class TestAllTypes(AllTypesContract):
    cannot_keep: ClassVar[frozenset[str]] = frozenset({INFINITY})

    @pytest.fixture(scope="class")
    @staticmethod
    def url(server: MariaDBServer) -> str:
        return server.create_database("types")


class TestValueRules(ValueRules):
    @pytest.fixture
    def run(self, url: str) -> Iterator[Runner]:
        database = open_sql_database(url)
        yield sql_runner(database, url)
        database.close()


class TestHistories:
    @pytest.fixture(scope="class")
    @staticmethod
    def at(server: MariaDBServer) -> Iterator[tuple[StateDatabase, str]]:
        url = server.create_database("histories")
        database = open_sql_database(url)
        yield database, url
        database.close()

    @pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
    @given(data=st.data())
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_history_gives_what_its_committed_attempts_held(
        self, at: tuple[StateDatabase, str], semantics: Semantics, data: st.DataObject
    ) -> None:
        play(*at, str(next(numbers)), semantics, data.draw(histories(semantics)))


class MariaDBTools:
    """How a MariaDB is asked and treated."""

    lock_timeout: ClassVar[tuple[str, str]] = ("SELECT @@innodb_lock_wait_timeout", "10")

    def is_waiting(self, url: str) -> bool:
        return bool(ask(url, f"SELECT 1 {_TRANSACTIONS} AND trx_state = 'LOCK WAIT'"))

    def end_session(self, url: str) -> None:
        ((session,),) = ask(url, f"SELECT id {_TRANSACTIONS}")
        ask(url, f"KILL CONNECTION {session}")
        gone = f"SELECT 1 FROM information_schema.processlist WHERE id = {session}"
        assert wait_until(lambda: not ask(url, gone), 10)


class TestLocks(MariaDBTools, ServerLocks):
    pass


class TestOutages(MariaDBTools, ServerOutages):
    @pytest.fixture
    def server(self, own_mariadb: MariaDBServer) -> MariaDBServer:
        self.pid = own_mariadb.pid
        return own_mariadb

    @contextlib.contextmanager
    def freeze(self, url: str | None) -> Iterator[object]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        server = sa.make_url(url)
        assert server.host is not None
        assert server.port is not None
        with closing(AnswerLosingProxy((server.host, server.port), ("127.0.0.1", 0))) as proxy:
            # Encrypted, nobody could tell what is a COMMIT.
            through = server.set(port=proxy.address[1]).update_query_dict({"ssl_disabled": "true"})
            yield through.render_as_string(hide_password=False), proxy


_TRANSACTIONS = (
    "FROM information_schema.innodb_trx JOIN information_schema.processlist ON id = trx_mysql_thread_id "
    "WHERE db = DATABASE()"
)


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """What an administrator is answered in this database."""
    server = sa.make_url(url)
    connection = pymysql.connect(
        host=server.host, port=server.port or 0, user=server.username, database=server.database
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())
