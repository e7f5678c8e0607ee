"""What a session with a MariaDB or a MySQL is like, whatever the server's defaults."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from mysql_servers import MySQLFamilyServer, MySQLServer
from support.mysql_tools import SESSIONS, ask
from support.server_databases import new_database
from support.states import CrashError, Rig, word_table

from txstream.api.reducers import Put, Sum, custom
from txstream.core.errors import StateValueError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.core.waits import wait_until
from txstream.state import (
    FenceLockedError,
    open_sql_database,
)


@pytest.fixture(scope="module")
def server(mysql_server: MySQLFamilyServer) -> MySQLFamilyServer:
    return mysql_server


@pytest.fixture
def url(server: MySQLFamilyServer) -> str:
    return new_database(server)


HOSTILE = {
    "sql_safe_updates": "ON",
    "sql_select_limit": "1",
    "max_join_size": "1",  # this one changes the next one
    "sql_big_selects": "OFF",
    "sql_quote_show_create": "OFF",
    "completion_type": "'RELEASE'",
    "innodb_default_row_format": "'COMPACT'",
}


@contextlib.contextmanager
def given(server: MySQLFamilyServer, defaults: dict[str, str]) -> Iterator[None]:
    """While open, new sessions of this server have these defaults."""
    (before,) = server.execute(f"SELECT {', '.join(f'@@global.{name}' for name in defaults)}")
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in defaults.items()))
    try:
        yield
    finally:
        usual = [f"'{value}'" if isinstance(value, str) else value for value in before]
        server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in zip(defaults, usual, strict=True)))


class TestSessions:
    """Sessions are the same whatever the server's defaults: the tests' server has others."""

    def test_settings(self, rig: Rig, server: MySQLFamilyServer) -> None:
        settings: dict[str, object] = {
            "autocommit": 0,
            "sql_mode": "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
            "time_zone": "+00:00",
            "character_set_connection": "utf8mb4",
            "lock_wait_timeout": 10,
            "innodb_lock_wait_timeout": 10,
            "net_read_timeout": 5,
            "net_write_timeout": 5,
        }
        if server.is_mariadb:
            settings |= {
                "tx_isolation": "READ-COMMITTED",
                "collation_connection": "utf8mb4_nopad_bin",
                "idle_transaction_timeout": 5,
                "idle_write_transaction_timeout": 5,
                "max_statement_time": 10,
            }
        else:
            settings |= {
                "transaction_isolation": "READ-COMMITTED",
                "collation_connection": "utf8mb4_0900_bin",
                "wait_timeout": 5,
                "max_execution_time": 10_000,
            }
        query = f"SELECT {', '.join(f'@@{name} AS {name}' for name in settings)}"
        with rig.database.sessions.engine.connect() as connection:
            assert dict(connection.exec_driver_sql(query).mappings().one()) == settings

    @pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL], ids=str)
    def test_defaults_that_would_lose_or_refuse_something(
        self, url: str, server: MySQLFamilyServer, semantics: Semantics
    ) -> None:
        """At risk: all rows of a SELECT, changes without a key, what is sent after a COMMIT, long keys."""
        spec = word_table(
            semantics=semantics,
            value="n bigint, m bigint, t string",
            reducers={"n": Sum("n"), "m": custom(operator.add, 0), "t": Put()},
        )
        rows = {f"key{number}": (1, 1, f"text {number}") for number in range(5)}
        with given(server, HOSTILE), contextlib.closing(open_sql_database(url)) as database:
            rig = Rig(database, url, spec).join()
            rig.commit(1, rows)
            for _ in range(2):
                rig.commit(2, rows)
            under = rig.begin(3)
            rig.end(under, rig.write(under, rows))
            assert len(database.top("word_count", topology="words")) == 5
            assert [row.txid for row in database.batches("words")] == [1, 2, 3]
            assert rig.join(first_run=False)
            assert database.prune("words", committed_before=datetime.now(UTC), newest=Txid(4), rows=100) == 1
        assert rig.values() == {key: (3, 3, text) for key, (_, _, text) in rows.items()}

    def test_a_session_that_the_server_ended_between_two_batches(
        self, url: str, server: MySQLFamilyServer
    ) -> None:
        """MySQL's only limit for a frozen driver is the one for every idle session."""
        with (
            given(server, {"wait_timeout": "1"}),
            contextlib.closing(open_sql_database(url, message_timeout_seconds=2.0)) as database,
        ):
            rig = Rig(database, url).join()
            rig.commit(1, {"a": 1})
            assert wait_until(lambda: not ask(url, SESSIONS), 10)
            rig.commit(2, {"a": 1})
            assert rig.values() == {"a": 2}

    def test_rows_that_an_update_leaves_as_they_were_are_counted(self, rig: Rig) -> None:
        with rig.database.sessions.engine.begin() as connection:
            assert connection.exec_driver_sql("UPDATE txstream_fence SET attempt = attempt").rowcount == 1

    def test_the_definitions_lock_is_given_back(self, rig: Rig) -> None:
        """The lock is the session's, so neither a transaction's end nor a failure releases it by itself."""

        def lock_and_crash() -> None:
            with rig.database.sessions.writing("a test") as (connection, _):
                rig.database.sessions.dialect.lock_definitions(connection)
                raise CrashError

        with pytest.raises(CrashError):
            lock_and_crash()
        with contextlib.closing(open_sql_database(rig.url)) as other:
            Rig(other, rig.url, word_table("another"), topology="another").join()

    def test_a_definitions_lock_that_stays_is_told(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        with contextlib.closing(open_sql_database(rig.url)) as other:
            monkeypatch.setattr(other.sessions.dialect, "lock_timeout_seconds", 1)
            with rig.database.sessions.writing("a test") as (connection, _):
                rig.database.sessions.dialect.lock_definitions(connection)
                with pytest.raises(FenceLockedError, match="creating txstream's tables in database 'db"):
                    other.of("words", "u", Semantics.OPAQUE).join(first_run=True)

    def test_a_statement_may_take_longer_than_connecting(self, url: str) -> None:
        database = open_sql_database(url, connect_timeout_seconds=0.5)
        with contextlib.closing(database), database.sessions.reading("a test") as connection:
            assert connection.exec_driver_sql("SELECT SLEEP(0.8)").scalar_one() == 0

    def test_patience_ends_with_its_transaction(self, rig: Rig, server: MySQLFamilyServer) -> None:
        limit, usual = ("max_statement_time", 10) if server.is_mariadb else ("max_execution_time", 10_000)
        seen = []
        for patient in (True, False):
            with rig.database.sessions.writing("a test", patient=patient) as (connection, _):
                seen.append(connection.exec_driver_sql(f"SELECT @@{limit}").scalar_one())
        assert seen == [0, usual]

    def test_a_server_that_takes_short_statements(self, url: str, server: MySQLFamilyServer) -> None:
        """A chunk is cut to what the server takes; a row that is still too long is named."""
        (before,) = server.execute("SELECT @@global.max_allowed_packet")
        server.execute("SET GLOBAL max_allowed_packet = 65536")
        try:
            with contextlib.closing(open_sql_database(url)) as database:
                rig = Rig(database, url, word_table(value="v string", reducers={"v": Put()})).join()
                rows = {f"key{number:04}": "'" * 100 for number in range(1500)}
                rig.commit(1, rows)
                assert rig.values() == rows
                with pytest.raises(
                    StateValueError, match=r"key word='long': .* 80\d\d\d bytes.*max_allowed_packet is 65536"
                ):
                    rig.commit(2, {"a": "b", "long": "'" * 40_000})
                assert rig.last().txid == 1
        finally:
            server.execute(f"SET GLOBAL max_allowed_packet = {before[0]}")


def test_a_log_of_statements_is_told(mysql: MySQLServer, unique: str) -> None:
    """Such a log cannot replicate READ COMMITTED, and only an administrator may change it for a session."""
    with (
        given(mysql, {"binlog_format": "'STATEMENT'"}),
        contextlib.closing(open_sql_database(mysql.create_database(unique))) as database,
        pytest.raises(TxstreamError, match="BINLOG_FORMAT = STATEMENT"),
    ):
        Rig(database, "").join()
