"""The executor path, and the fence's locks, in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.executor_contract import ExecutorContract
from support.lock_contract import ServerLockContract
from support.reader_contract import ReaderContract
from support.tables import execute


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class TestPostgreSQL(ExecutorContract):
    pass


class TestPostgreSQLLocks(ServerLockContract):
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


class TestPostgreSQLReaders(ReaderContract):
    pass
