"""Runs the conformance suite for state backends, which their authors run, on PostgreSQL."""

from __future__ import annotations

import pytest
from postgres import PostgresServer
from support.server_databases import with_framework_tables

from txstream.testing import StateCheck, state_checks


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    """One database for all checks: each has topologies and tables of its own."""
    return with_framework_tables(postgres)


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_promise(check: StateCheck, url: str) -> None:
    assert check.run(url) is None
