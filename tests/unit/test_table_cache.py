"""Tables that are built once for each kind of database, and not for each connection to one."""

from __future__ import annotations

import gc
import weakref

import pytest

from txstream.api.state import SqlState
from txstream.semantics import Semantics
from txstream.state.sql.tables import build_table
from txstream.state.sql.urls import dialect_of

STATE = SqlState("cached_words", "word string", "n bigint")
URLS = ("sqlite:////nowhere/state.db", "postgresql://user@host/name", "mysql://user@host/name")


@pytest.mark.parametrize("url", URLS)
def test_a_table_keeps_no_database_that_it_was_built_for(url: str) -> None:
    dialects = [dialect_of(url, 1.0, 1.0) for _ in range(100)]
    built = {id(build_table(STATE, Semantics.OPAQUE, one)) for one in dialects}
    assert len(built) == 1, "or statements are compiled again for each"
    kept = [weakref.ref(one) for one in dialects]
    del dialects
    gc.collect()
    assert not [one for one in kept if one() is not None]


def test_each_kind_of_database_has_its_own_tables() -> None:
    dialects = [dialect_of(url, 1.0, 1.0) for url in URLS]
    assert len({id(build_table(STATE, Semantics.OPAQUE, one)) for one in dialects}) == len(URLS)
