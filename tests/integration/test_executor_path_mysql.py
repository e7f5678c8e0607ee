"""The executor path, and the fence's locks, in a real MariaDB and a real MySQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from mysql_servers import MySQLFamilyServer
from support.executor_contract import ExecutorContract
from support.lock_contract import ServerLockContract
from support.reader_contract import ReaderContract


@pytest.fixture
def url(contract_server: MySQLFamilyServer, unique: str) -> str:
    return contract_server.create_database(unique)


class TestMySQL(ExecutorContract):
    pass


class TestMySQLLocks(ServerLockContract):
    share = ("LOCK IN SHARE MODE", "FOR SHARE")  # MariaDB's words, and MySQL's

    @pytest.fixture
    def url(self, mysql_server: MySQLFamilyServer, unique: str) -> str:
        return mysql_server.create_database(unique)

    def set_default_isolation(self, url: str) -> None:
        """It is what the servers have."""
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            names = "('tx_isolation', 'transaction_isolation')"
            query = f"SHOW GLOBAL VARIABLES WHERE variable_name IN {names}"
            levels = connection.exec_driver_sql(query).all()
        engine.dispose()
        assert {level for _, level in levels} == {"REPEATABLE-READ"}

    @pytest.fixture
    def is_waiting(self, url: str) -> Iterator[Callable[[], bool]]:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        # Not information_schema.innodb_trx, which shows an old copy while it is asked again and again.
        with engine.connect() as connection:
            status = "SHOW ENGINE INNODB STATUS"
            yield lambda: "LOCK WAIT" in connection.exec_driver_sql(status).one()[2]
        engine.dispose()


class TestMySQLReaders(ReaderContract):
    pass
