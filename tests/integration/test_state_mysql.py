"""State in a real MariaDB and a real MySQL: the contract, and what only a server can do."""

from __future__ import annotations

import contextlib
import operator
import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar

import pymysql
import pytest
import sqlalchemy as sa
from mysql_servers import MariaDBServer, MySQLFamilyServer, MySQLServer
from support.commit_paths import PATHS, check, counted, counting, paths, word_source
from support.cut import AnswerLosingProxy
from support.framework_contract import StepwiseFrameworkContract
from support.growth_contract import GrowthContract
from support.names_contract import NamesContract
from support.pruning_contract import PruningContract
from support.reducer_contract import ReducerContract
from support.server_contract import ServerLocks, ServerOutages, closing
from support.server_databases import OneDatabase, new_database
from support.sql_contract import SqlStateContract
from support.state_contract import CrashError, StateFixtures
from support.state_histories import HistoryContract
from support.states import Rig, word_table
from support.tables import execute
from support.type_contract import INFINITY, KINDS, AllTypesContract
from support.upgrade_contract import UpgradeContract
from support.value_rules import StoreValueRules

from txstream.api.errors import ServiceUnavailableError, StateTableError, StateValueError
from txstream.api.reducers import Put, Sum, custom
from txstream.embedded.process import wait_until
from txstream.engine.points import Point
from txstream.semantics import Semantics
from txstream.state import (
    AnswerLostError,
    FenceLockedError,
    StateDatabase,
    open_database,
    open_sql_database,
    place_of,
)
from txstream.state.sql.mysql_types import collation
from txstream.testing import TopologyTest
from txstream.transaction import Txid

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(mysql_server: MySQLFamilyServer) -> MySQLFamilyServer:
    return mysql_server


@pytest.fixture
def url(server: MySQLFamilyServer) -> str:
    return new_database(server)


class TestContract(SqlStateContract):
    pass


class TestFramework(StepwiseFrameworkContract):
    @pytest.fixture
    def fresh(self, server: MySQLFamilyServer) -> Callable[[], str]:
        return lambda: new_database(server)


class TestUpgrades(UpgradeContract):
    pass


class TestGrowth(GrowthContract):
    pass


class TestAllTypesMariaDB(OneDatabase, AllTypesContract):
    cannot_keep: ClassVar[frozenset[str]] = frozenset({INFINITY})

    @pytest.fixture(scope="class")
    @staticmethod
    def server(mariadb: MariaDBServer) -> MySQLFamilyServer:
        return mariadb


class TestAllTypesMySQL(OneDatabase, AllTypesContract):
    cannot_keep: ClassVar[frozenset[str]] = frozenset({INFINITY, "decimal(38,38)"})

    @pytest.fixture(scope="class")
    @staticmethod
    def server(mysql: MySQLServer) -> MySQLFamilyServer:
        return mysql


class TestPruning(PruningContract):
    pass


class TestNames(NamesContract):
    pass


class TestEveryReducer(OneDatabase, ReducerContract):
    cannot_keep: ClassVar[frozenset[str]] = frozenset({INFINITY})


class TestValueRules(StoreValueRules):
    pass


class TestHistories(OneDatabase, HistoryContract):
    pass


class Tools:
    """How these servers are asked and treated."""

    lock_timeout: ClassVar[tuple[str, str]] = ("SELECT @@innodb_lock_wait_timeout", "10")

    def is_waiting(self, url: str) -> bool:
        # Not innodb_trx: it is as it was for as long as it is asked for more often than every 100 ms.
        ((_, waits),) = ask(url, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(waits) > 0

    def end_session(self, url: str) -> None:
        for (session,) in ask(url, _SESSIONS):
            ask(url, f"KILL CONNECTION {session}")
        assert wait_until(lambda: not ask(url, _SESSIONS), 10)


class TestLocks(Tools, ServerLocks):
    pass


class TestOutages(Tools, ServerOutages):
    @pytest.fixture(params=["own_mariadb", "own_mysql"])
    def server(self, request: pytest.FixtureRequest) -> MySQLFamilyServer:
        found: MySQLFamilyServer = request.getfixturevalue(request.param)
        self.pid = found.pid
        return found

    @contextlib.contextmanager
    def freeze(self, url: str | None) -> Iterator[object]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield None
        finally:
            os.kill(self.pid, signal.SIGCONT)

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        server = sa.make_url(url)
        assert server.host is not None
        assert server.port is not None
        with closing(AnswerLosingProxy((server.host, server.port), ("127.0.0.1", 0))) as proxy:
            through = server.set(port=proxy.address[1])
            yield through.render_as_string(hide_password=False), proxy


HOSTILE = {
    "sql_safe_updates": "ON",
    "sql_select_limit": "1",
    "max_join_size": "1",  # which changes the next one
    "sql_big_selects": "OFF",
    "sql_quote_show_create": "OFF",
    "completion_type": "'RELEASE'",
    "innodb_default_row_format": "'COMPACT'",
}


@contextlib.contextmanager
def given(server: MySQLFamilyServer, defaults: dict[str, str]) -> Iterator[None]:
    """While open, these are what a new session of this server has."""
    (before,) = server.execute(f"SELECT {', '.join(f'@@global.{name}' for name in defaults)}")
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in defaults.items()))
    try:
        yield
    finally:
        usual = [f"'{value}'" if isinstance(value, str) else value for value in before]
        server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in zip(defaults, usual, strict=True)))


_SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """What an administrator is answered in this database."""
    server = sa.make_url(url)
    connection = pymysql.connect(
        host=server.host,
        port=server.port or 0,
        user=server.username,
        database=server.database,
        ssl_disabled=True,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


class TestSessions(StateFixtures):
    """What a session is like, whatever the server's defaults: those of the tests' server are others."""

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
        """All rows of a SELECT, changes without a key, what is sent after a COMMIT, long keys."""
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
        """MySQL has no other limit for a frozen driver than one for every idle session."""
        with (
            given(server, {"wait_timeout": "1"}),
            contextlib.closing(open_sql_database(url, message_timeout_seconds=2.0)) as database,
        ):
            rig = Rig(database, url).join()
            rig.commit(1, {"a": 1})
            assert wait_until(lambda: not ask(url, _SESSIONS), 10)
            rig.commit(2, {"a": 1})
            assert rig.values() == {"a": 2}

    def test_rows_that_an_update_leaves_as_they_were_are_counted(self, rig: Rig) -> None:
        with rig.database.sessions.engine.begin() as connection:
            assert connection.exec_driver_sql("UPDATE txstream_fence SET attempt = attempt").rowcount == 1

    def test_the_definitions_lock_is_given_back(self, rig: Rig) -> None:
        """It is the session's, so neither a transaction's end nor a failure lets it go by itself."""

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
                    other.join("words", "u", [], semantics=Semantics.OPAQUE, first_run=True)

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
        """A chunk is cut to what the server takes, and a row that is too long for it is named."""
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


class TestKeys(StateFixtures):
    """Columns of text and bytes share the 3072 bytes of a primary key."""

    @pytest.mark.parametrize(
        ("key", "fits", "too_long", "expected"),
        [
            ("k string", "🦀" * 768, "a" * 769, "'k' of table 'word_count': 'a.*769 characters, and 768"),
            ("k binary", b"\xff" * 3072, b"\xff" * 3073, "3073 bytes, and 3072 is what it can have"),
            (
                "k string, l string",
                ("🦀" * 384, "b" * 384),
                ("a", "b" * 385),
                "'l' .*385 characters, and 384",
            ),
            ("i bigint, k binary", (1, b"a" * 3064), (1, b"a" * 3065), "3065 bytes, and 3064"),
            (
                "a decimal(38,10), b timestamp, c date, d boolean, k binary",
                (Decimal(1), NOON, NOON.date(), True, b"a" * 3036),
                (Decimal(1), NOON, NOON.date(), True, b"a" * 3037),
                "3037 bytes, and 3036",
            ),
        ],
    )
    def test_longest(
        self, database: StateDatabase, url: str, key: str, fits: Any, too_long: Any, expected: str
    ) -> None:
        rig = Rig(database, url, word_table(key=key, index_txid=True)).join()
        rig.commit(1, {fits: 1})
        rig.commit(2, {fits: 1})
        assert list(rig.values().values()) == [2]
        with pytest.raises(StateValueError, match=expected):
            rig.commit(3, {too_long: 1})
        assert rig.join(first_run=False)

    def test_too_many_key_columns(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match="800 key columns do not fit into a primary key of 3072"):
            Rig(database, url, word_table(key=", ".join(f"k{n} string" for n in range(800)))).join()

    def test_a_name_too_long(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match=r"64 characters at most; choose a shorter one"):
            Rig(database, url, word_table("t" * 65)).join()

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    def test_no_type_is_found_to_differ_from_itself(
        self, database: StateDatabase, url: str, server: MySQLFamilyServer, semantics: Semantics
    ) -> None:
        kinds = [kind.ddl for kind in KINDS if server.is_mariadb or kind.ddl != "decimal(38,38)"]
        value = ", ".join(f"v{number} {ddl}" for number, ddl in enumerate(kinds))
        keys = ", ".join(f"k{number} {ddl}" for number, ddl in enumerate(kinds))
        reducers = {f"v{number}": Put() for number in range(len(kinds))}
        spec = word_table(semantics=semantics, key=keys, value=value, reducers=reducers)
        rig = Rig(database, url, spec).join()
        assert rig.join(first_run=False)

    @pytest.mark.parametrize(
        "change",
        [
            "MODIFY word VARCHAR(768) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
            "MODIFY word VARCHAR(700) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL",
            "MODIFY n INT NOT NULL",
            "MODIFY n BIGINT UNSIGNED NOT NULL",
            "MODIFY n BIGINT NULL",
        ],
    )
    def test_a_column_that_was_altered_is_told(
        self, rig: Rig, server: MySQLFamilyServer, change: str
    ) -> None:
        ours = collation(mariadb=server.is_mariadb)
        execute(rig.url, f"ALTER TABLE word_count {change.format(collation=ours)}")
        with pytest.raises(StateTableError, match=r"column '(word|n)' is .*, expected"):
            rig.join(first_run=False)


class TestRefusals(StateFixtures):
    def test_a_read_only_server(self, url: str, server: MySQLFamilyServer) -> None:
        """What was being committed is not, and goes on when the server can be written again."""
        server.create_account("writer", "ALL ON `db%`.*")
        with contextlib.closing(open_sql_database(url.replace("root@", "writer@"))) as database:
            rig = Rig(database, url).join()
            rig.commit(1, {"a": 1})
            server.execute("SET GLOBAL read_only = ON")
            try:
                with pytest.raises(ServiceUnavailableError, match="read-only") as told:
                    rig.commit(2, {"a": 1})
                assert not isinstance(told.value, AnswerLostError)
            finally:
                server.execute("SET GLOBAL read_only = OFF")
            rig.commit(2, {"a": 1})
            assert rig.values() == {"a": 2}

    def test_an_account_without_rights(self, url: str, server: MySQLFamilyServer) -> None:
        name = sa.make_url(url).database
        server.create_account("guest", f"SELECT ON `{name}`.*")
        guest = open_database(url.replace("root@", "guest@"))
        guest.check()
        with pytest.raises(StateTableError, match=r"does not allow creating txstream's.*command denied"):
            guest.ensure_framework_tables()
        guest.close()

    def test_a_database_that_does_not_exist(self, server: MySQLFamilyServer) -> None:
        with pytest.raises(ServiceUnavailableError, match="Unknown database 'nowhere'"):
            open_database(server.url("nowhere")).check()

    def test_a_wrong_password(self, server: MySQLFamilyServer) -> None:
        wrong = server.url().replace("root@", "root:hidden@")
        with pytest.raises(ServiceUnavailableError, match="Access denied for user 'root'") as told:
            open_database(wrong).check()
        assert "hidden" not in str(told.value)

    @pytest.mark.parametrize("driver", ["mysql", "mariadb", "mariadb+pymysql"])
    def test_every_spelling_of_its_url(self, url: str, driver: str) -> None:
        spelled = url.replace("mysql+pymysql:", f"{driver}:").partition("?")[0]
        assert place_of(spelled) == place_of(url)
        with contextlib.closing(open_sql_database(spelled)) as database:
            assert Rig(database, url).join().commit(1, {"a": 1})

    @pytest.mark.parametrize("query", ["", "?connect_timeout=3", "?unix_socket=/nowhere"])
    def test_unreachable(self, query: str) -> None:
        unreachable = open_database(f"mysql://me:hidden@127.0.0.1:1/db{query}", connect_timeout_seconds=3.0)
        expected = "No such file" if "socket" in query else "refused"
        with pytest.raises(ServiceUnavailableError, match=f"{expected}.*start or repair it, or set") as told:
            unreachable.check()
        assert "hidden" not in str(told.value)


@pytest.mark.parametrize("path", ["driver", "executors"])
@pytest.mark.parametrize("at", [Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS, Point.AFTER_COMMIT])
def test_a_word_count_whose_driver_dies_in_a_commit(
    url: str, server: MySQLFamilyServer, path: str, at: Point
) -> None:
    """In two databases, and by both paths: the replay holds less, what it left out comes again, and every
    word counts once."""
    second = new_database(server)
    with word_source() as source:
        topology = counting(source, second=second, **PATHS[path])
        with TopologyTest(topology, database=url) as test:
            test.commit(1)
            test.crash(at=at, txid=2)
            source.hide("p1")
            test.restart()
            test.commit()
            source.show("p1")
            test.run()
            check(test, counted())
            assert set(paths(url)) == {path}
