"""Runs the conformance suite for state backends, which their authors run, on PostgreSQL."""

from __future__ import annotations

import pytest
from postgres import PostgresServer
from support.promises import STATE_KINDS
from support.server_databases import with_framework_tables

from txstream.testing import check_state_backend


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> str:
    """One database for all checks: each has topologies and tables of its own."""
    return with_framework_tables(postgres)


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_promises(kind: str, url: str) -> None:
    assert not check_state_backend(url, only=STATE_KINDS[kind]).not_applicable
