"""Tables that are built once for each dialect, and are gone with it."""

from __future__ import annotations

import gc
import weakref

from support.lists import each

from txstream.api.state import SqlState
from txstream.core.semantics import Semantics
from txstream.state.sql.tables import build_table
from txstream.state.sql.urls import dialect_of

STATE = SqlState("cached_words", "word string", "n bigint")
URLS = ("sqlite:////nowhere/state.db", "postgresql://user@host/name", "mysql://user@host/name")


@each("url", URLS)
def test_a_table_is_built_once_and_nothing_keeps_it(url: str) -> None:
    dialect = dialect_of(url, 1.0, 1.0)
    table = build_table(STATE, Semantics.OPAQUE, dialect)
    assert (
        build_table(SqlState("cached_words", "word string", "n bigint"), Semantics.OPAQUE, dialect) is table
    )
    assert build_table(STATE, Semantics.TRANSACTIONAL, dialect) is not table
    kept = weakref.ref(dialect)
    del dialect, table
    gc.collect()
    assert kept() is None
