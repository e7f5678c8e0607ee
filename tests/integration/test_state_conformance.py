"""The database servers under the conformance suite that authors of backends run on their own."""

from __future__ import annotations

from contextlib import closing

import pytest
from mysql_servers import MariaDBServer
from postgres import PostgresServer

from txstream.state import open_database
from txstream.testing import StateCheck, state_checks


@pytest.fixture(scope="module")
def postgres_database(postgres: PostgresServer) -> str:
    """One for all checks: each has topologies and tables of its own."""
    return ready(postgres.create_database("conformance"))


@pytest.fixture(scope="module")
def mariadb_database(mariadb: MariaDBServer) -> str:
    return ready(mariadb.create_database("conformance"))


def ready(url: str) -> str:
    with closing(open_database(url)) as database:
        database.ensure_framework_tables()
    return url


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_postgresql_keeps_every_promise(check: StateCheck, postgres_database: str) -> None:
    assert check.run(postgres_database) is None


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_mariadb_keeps_every_promise(check: StateCheck, mariadb_database: str) -> None:
    assert check.run(mariadb_database) is None
