"""For any table, tuples and history, memory and SQLite hold what a fold in Python gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.differential import play

from txstream.plugins.proof.stores.memory import forget
from txstream.state import StateBackend, open_database

names = itertools.count()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, StateBackend]]:
    urls = [
        "memory://differential",
        f"sqlite:///{tmp_path_factory.mktemp('differential') / Path('state.db')}",
    ]
    stores = {url: open_database(url) for url in urls}
    for store in stores.values():
        store.ensure_framework_tables()
    yield stores
    for store in stores.values():
        store.close()
    forget("differential")


@given(random=st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_stores_agree_with_a_fold_in_python(stores: Mapping[str, StateBackend], random: Random) -> None:
    play(random, f"table {next(names)}", stores)
