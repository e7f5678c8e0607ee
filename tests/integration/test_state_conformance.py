"""The state databases under the conformance suite that authors of backends run on their own."""

from __future__ import annotations

from contextlib import closing

import pytest
from postgres import PostgresServer

from txstream.state import open_database
from txstream.testing import StateCheck, state_checks


@pytest.fixture(scope="module")
def postgres_database(postgres: PostgresServer) -> str:
    """One for all checks: each has topologies and tables of its own."""
    url = postgres.create_database("conformance")
    with closing(open_database(url)) as database:
        database.ensure_framework_tables()
    return url


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_postgresql_keeps_every_promise(check: StateCheck, postgres_database: str) -> None:
    assert check.run(postgres_database) is None
