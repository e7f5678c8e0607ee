"""The executor path, and the fence's locks, in real servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from mysql_servers import MariaDBServer
from postgres import PostgresServer
from support.executor_contract import ExecutorContract
from support.lock_contract import ServerLockContract
from support.reader_contract import ReaderContract
from support.tables import execute

numbers = itertools.count()


class PostgreSQL:
    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        return postgres.create_database(f"executors{next(numbers)}")


class TestPostgreSQL(PostgreSQL, ExecutorContract):
    pass


class TestPostgreSQLLocks(PostgreSQL, ServerLockContract):
    share = "FOR SHARE"

    def set_default_isolation(self, url: str) -> None:
        name = sa.make_url(url).database
        execute(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")

    @pytest.fixture
    def is_waiting(self, url: str, postgres: PostgresServer) -> Iterator[Callable[[], bool]]:
        query = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        name = sa.make_url(url).database
        with psycopg.connect(host=str(postgres.data), user="postgres", autocommit=True) as connection:
            yield lambda: connection.execute(query, (name,)).fetchone() is not None


class TestPostgreSQLReaders(PostgreSQL, ReaderContract):
    pass


class MariaDB:
    @pytest.fixture
    def url(self, mariadb: MariaDBServer) -> str:
        return mariadb.create_database(f"executors{next(numbers)}")


class TestMariaDB(MariaDB, ExecutorContract):
    pass


class TestMariaDBLocks(MariaDB, ServerLockContract):
    share = "LOCK IN SHARE MODE"

    def set_default_isolation(self, url: str) -> None:
        """It is what the server has."""
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            query = "SELECT @@global.tx_isolation"
            assert connection.exec_driver_sql(query).scalar_one() == "REPEATABLE-READ"
        engine.dispose()

    @pytest.fixture
    def is_waiting(self, url: str) -> Iterator[Callable[[], bool]]:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        # Not information_schema.innodb_trx, which shows an old copy while it is asked again and again.
        with engine.connect() as connection:
            status = "SHOW ENGINE INNODB STATUS"
            yield lambda: "LOCK WAIT" in connection.exec_driver_sql(status).one()[2]
        engine.dispose()


class TestMariaDBReaders(MariaDB, ReaderContract):
    pass
