"""Runs the conformance suite for state backends, which their authors run, on MariaDB and MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer, MySQLServer
from support.promises import STATE_KINDS
from support.server_databases import with_framework_tables

from txstream.testing import check_state_backend


@pytest.fixture(scope="module")
def url(contract_server: MySQLFamilyServer) -> str:
    """One database for all checks: each has topologies and tables of its own."""
    return with_framework_tables(contract_server)


@pytest.fixture(scope="module")
def mysql_url(mysql: MySQLServer) -> str:
    return with_framework_tables(mysql)


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_promises(kind: str, url: str) -> None:
    assert not check_state_backend(url, only=STATE_KINDS[kind]).not_applicable


def test_promises_about_types(mysql_url: str) -> None:
    """MySQL differs from MariaDB here, so it is always checked too."""
    assert not check_state_backend(mysql_url, only=STATE_KINDS["column_types"]).not_applicable
