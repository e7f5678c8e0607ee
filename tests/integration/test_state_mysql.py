"""State in a real MariaDB and a real MySQL: what holds for every SQL database, and what is their own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from mysql_servers import MariaDBServer, MySQLFamilyServer, MySQLServer
from support.commit_paths import PATHS, check, counted, counting, paths, word_source
from support.lists import each
from support.server_databases import OneDatabase, new_database
from support.states import Rig
from support.tables import execute
from unit import test_sql_append, test_sql_types, test_sql_written
from unit.test_concurrent_reader import TestReaders as TestReaders
from unit.test_dead_letter_rows import TestDeadLetterRows as TestDeadLetterRows
from unit.test_pruning import TestLedger as TestLedger
from unit.test_rows_removed import TestRemoved as TestRemoved
from unit.test_sql_growth import TestGrowth as TestGrowth
from unit.test_sql_names import TestNames as TestNames
from unit.test_sql_state import (
    TestBehindOurBack as TestBehindOurBack,
    TestTables as TestTables,
    TestWords as TestWords,
)
from unit.test_sql_written import TestSecondIndex as TestSecondIndex
from unit.test_upgrades import TestUpgrades as TestUpgrades

from txstream.core.errors import StateTableError, TxstreamError
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.state import StateDatabase, TableSpec, open_sql_database
from txstream.testing import TopologyTest


@pytest.fixture(scope="module")
def server(contract_server: MySQLFamilyServer) -> MySQLFamilyServer:
    return contract_server


@pytest.fixture
def url(server: MySQLFamilyServer) -> str:
    return new_database(server)


class TestTypesMariaDB(OneDatabase, test_sql_types.TestTypes):
    cannot_keep = frozenset({"infinity"})

    @pytest.fixture(scope="class")
    @staticmethod
    def server(mariadb: MariaDBServer) -> MySQLFamilyServer:
        return mariadb


class TestTypesMySQL(OneDatabase, test_sql_types.TestTypes):
    cannot_keep = frozenset({"infinity", "decimal(38,38)"})

    @pytest.fixture(scope="class")
    @staticmethod
    def server(mysql: MySQLServer) -> MySQLFamilyServer:
        return mysql


class TestReducers(OneDatabase, test_sql_types.TestReducers):
    @pytest.fixture(scope="class")
    @staticmethod
    def server(mysql_server: MySQLFamilyServer) -> MySQLFamilyServer:
        return mysql_server


class TestAppended(test_sql_append.TestAppended):
    @pytest.fixture(autouse=True)
    @staticmethod
    def may_lack_a_key(request: pytest.FixtureRequest, server: MySQLFamilyServer) -> Iterator[None]:
        """Non-transactional tables may have no primary key, which our MySQL demands."""
        may = not server.is_mariadb and re.search("non.transactional", request.node.name)
        if may:
            server.execute("SET GLOBAL sql_require_primary_key = OFF")
        yield
        if may:
            server.execute("SET GLOBAL sql_require_primary_key = ON")


def test_a_mysql_that_demands_primary_keys_refuses_a_table_without_one(mysql: MySQLServer) -> None:
    url = new_database(mysql)
    keyless = test_sql_append.named_table(Semantics.NON_TRANSACTIONAL, "fail")
    with contextlib.closing(open_sql_database(url)) as database:
        rig = Rig(database, url, keyless)
        with pytest.raises(TxstreamError, match=r"without a primary key.*sql_require_primary_key"):
            rig.join()


@pytest.mark.parametrize("path", ["driver", "executors"])
@pytest.mark.parametrize("at", [Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS, Point.AFTER_COMMIT])
def test_a_word_count_whose_driver_dies_in_a_commit(
    url: str, server: MySQLFamilyServer, path: str, at: Point
) -> None:
    """In two databases, by either path: the replay holds less, what it left out comes again later, and every
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


class TestRefusedAtTheStart:
    @each("spec", test_sql_written.KEYED)
    def test_a_second_unique_index(self, database: StateDatabase, url: str, spec: TableSpec) -> None:
        rig = Rig(database, url, spec, topology="one", uuid="one").join()
        execute(url, "CREATE UNIQUE INDEX second ON word_count (n)")
        for look in (rig.join, lambda: rig.states.check_join(first_run=False)):
            with pytest.raises(StateTableError, match=r"'word_count' has .*'second'.*DROP INDEX `second`"):
                look()
        database.delete("one", drop_state=True)
