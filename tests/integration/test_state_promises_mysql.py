"""Runs the conformance suite for state backends, which their authors run, on MariaDB and MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer, MySQLServer
from support.server_databases import with_framework_tables

from txstream.testing import StateCheck, state_checks
from txstream.testing.state import column_types


@pytest.fixture(scope="module")
def url(contract_server: MySQLFamilyServer) -> str:
    """One database for all checks: each has topologies and tables of its own."""
    return with_framework_tables(contract_server)


@pytest.fixture(scope="module")
def mysql_url(mysql: MySQLServer) -> str:
    return with_framework_tables(mysql)


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_promise(check: StateCheck, url: str) -> None:
    assert check.run(url) is None


@pytest.mark.parametrize("check", column_types.CHECKS, ids=str)
def test_promise_about_types(check: StateCheck, mysql_url: str) -> None:
    """MySQL differs from MariaDB here, so it is always checked too."""
    assert check.run(mysql_url) is None
