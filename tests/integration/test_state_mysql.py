"""State in a real MariaDB and a real MySQL: the contract, and what only a server can do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
import sqlalchemy as sa
from mysql_servers import MariaDBServer, MySQLFamilyServer, MySQLServer
from support.commit_paths import PATHS, check, counted, counting, paths, word_source
from support.cut import AnswerLosingProxy
from support.framework_contract import StepwiseFrameworkContract
from support.growth_contract import GrowthContract
from support.mysql_tools import SESSIONS, ask
from support.names_contract import NamesContract
from support.pruning_contract import PruningContract
from support.reducer_contract import ReducerContract
from support.server_contract import ServerLocks, ServerOutages, closing
from support.server_databases import OneDatabase, new_database
from support.sql_contract import SqlStateContract
from support.state_histories import HistoryContract
from support.states import Rig
from support.type_contract import INFINITY, AllTypesContract
from support.upgrade_contract import UpgradeContract
from support.value_rules import StoreValueRules

from txstream.embedded.process import wait_until
from txstream.engine.fault_points import Point
from txstream.state import open_sql_database
from txstream.state.sql.sessions import Sessions
from txstream.testing import TopologyTest


@pytest.fixture(scope="module")
def server(contract_server: MySQLFamilyServer) -> MySQLFamilyServer:
    return contract_server


@pytest.fixture
def url(server: MySQLFamilyServer) -> str:
    return new_database(server)


class BothServers:
    """Where the two differ: their SQL, types and errors."""

    @pytest.fixture(scope="class")
    @staticmethod
    def server(mysql_server: MySQLFamilyServer) -> MySQLFamilyServer:
        return mysql_server


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


class TestEveryReducer(BothServers, OneDatabase, ReducerContract):
    cannot_keep: ClassVar[frozenset[str]] = frozenset({INFINITY})


class TestValueRules(BothServers, StoreValueRules):
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
        for (session,) in ask(url, SESSIONS):
            ask(url, f"KILL CONNECTION {session}")
        assert wait_until(lambda: not ask(url, SESSIONS), 10)


class TestLocks(BothServers, Tools, ServerLocks):
    pass


class TestOutages(Tools, ServerOutages):
    @pytest.fixture(params=["own_mariadb", "own_mysql"])
    def server(self, request: pytest.FixtureRequest) -> MySQLFamilyServer:
        found: MySQLFamilyServer = request.getfixturevalue(request.param)
        self.own = found
        return found

    def freeze(self, url: str | None) -> contextlib.AbstractContextManager[object]:
        return self.own.frozen()

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        server = sa.make_url(url)
        assert server.host is not None
        assert server.port is not None
        with closing(AnswerLosingProxy((server.host, server.port), ("127.0.0.1", 0))) as proxy:
            through = server.set(port=proxy.address[1])
            yield through.render_as_string(hide_password=False), proxy

    def test_a_server_that_freezes_when_it_has_committed_is_not_waited_for(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The batch is committed, and giving the connection back asks the server once more."""
        impatient = open_sql_database(rig.url)
        release = Sessions._release
        with contextlib.ExitStack() as frozen:

            def freeze(sessions: Sessions, connection: sa.Connection) -> None:
                monkeypatch.undo()
                frozen.enter_context(self.own.frozen())
                sessions.dialect.silence_seconds = 1.0  # type: ignore[attr-defined]  # its usual is 35 s
                release(sessions, connection)

            monkeypatch.setattr(Sessions, "_release", freeze)
            Rig(impatient, rig.url).commit(1, {"a": 1}, under=rig.next(1))
        assert rig.values() == {"a": 1}
        Rig(impatient, rig.url).commit(2, {"a": 1}, under=rig.next(2))
        assert rig.values() == {"a": 2}
        impatient.close()


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
