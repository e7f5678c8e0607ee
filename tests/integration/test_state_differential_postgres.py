"""With any table, tuples and history, PostgreSQL holds what a fold in Python gives."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from postgres import PostgresServer
from support.differential import play
from support.server_databases import with_framework_tables

from txstream.state import StateBackend, open_database

names = itertools.count()


@pytest.fixture(scope="module")
def stores(postgres: PostgresServer) -> Iterator[Mapping[str, StateBackend]]:
    url = with_framework_tables(postgres)
    with contextlib.closing(open_database(url)) as store:
        yield {url: store}


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_postgresql_agrees_with_a_fold_in_python(stores: Mapping[str, StateBackend], random: Random) -> None:
    play(random, f"table {next(names)}", stores)
