"""Random histories of attempts, crashes and zombies on SQLite, against an independent oracle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.state_histories import Try, histories, play

from txstream.semantics import Semantics
from txstream.state import StateBackend, open_database

names = itertools.count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('histories') / Path('state.db')}"


@pytest.fixture(scope="module")
def database(url: str) -> Iterator[StateBackend]:
    database = open_database(url)
    yield database
    database.close()


@pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
@given(data=st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_gives_what_its_committed_attempts_held(
    database: StateBackend, url: str, semantics: Semantics, data: st.DataObject
) -> None:
    play(database, url, str(next(names)), semantics, data.draw(histories(semantics)))


def test_the_oracle_notices_a_batch_that_counts_twice(database: StateBackend, url: str) -> None:
    """The same history without the protocol: a replay on non-transactional state counts twice."""
    replayed = [[Try({"a": (1, 1, 1)}, "commit"), Try({"a": (1, 1, 1)}, "commit")]]
    with pytest.raises(AssertionError):
        play(database, url, str(next(names)), Semantics.NON_TRANSACTIONAL, replayed)
