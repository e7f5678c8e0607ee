"""Any table, any tuples, any history: PostgreSQL, MariaDB and MySQL have what a fold in Python gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from mysql_servers import MySQLFamilyServer
from postgres import PostgresServer
from support.differential import play
from support.server_databases import with_framework_tables

from txstream.state import StateBackend, open_database

names = itertools.count()


def opened(url: str) -> Iterator[Mapping[str, StateBackend]]:
    store = open_database(url)
    yield {url: store}
    store.close()


@pytest.fixture(scope="module")
def in_postgres(postgres: PostgresServer) -> Iterator[Mapping[str, StateBackend]]:
    yield from opened(with_framework_tables(postgres))


@pytest.fixture(scope="module")
def in_mysql(mysql_server: MySQLFamilyServer) -> Iterator[Mapping[str, StateBackend]]:
    yield from opened(with_framework_tables(mysql_server))


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_postgresql_agrees_with_a_fold_in_python(
    in_postgres: Mapping[str, StateBackend], random: Random
) -> None:
    play(random, f"table {next(names)}", in_postgres)


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_mysql_agrees_with_a_fold_in_python(in_mysql: Mapping[str, StateBackend], random: Random) -> None:
    play(random, f"table {next(names)}", in_mysql)
