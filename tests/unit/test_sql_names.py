"""Names of tables and columns on a SQL database: they work through quoting, or are refused in time.

The database here is SQLite; the tests of each server run the same class.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.states import Rig, word_table

from txstream.core.errors import StateTableError, StateValueError
from txstream.core.semantics import Semantics
from txstream.state import StateDatabase


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


WITH_QUOTES = [
    ("select", "`order` string, `group` string", "`from` bigint, `table` bigint"),
    ("say \"x\" 'y' %s :z", "`a%(b)s` string", "`:c \"'` bigint"),
    ("a-b", "`a.b` string", "`c.d` bigint"),
    ("größe 日本", "`ö` string", "`日` bigint"),
    ("a\\b(c)", "`[d]` string", "`e\\f` bigint"),
    ("deltas", "rowid string, excluded string", "`values` bigint, new bigint, old bigint"),
    ("lateral", "`offset` string, `lateral` string", "`rank` bigint, `system` bigint"),
    ("offset", "array_0 string, key0 string", "place bigint, txid_1 bigint"),
    ("k", "restored_txid string, txstream_txid string", "k bigint, t bigint"),
    ("t", "`.b` string, b string", "`.n` bigint, n bigint"),
]

RESERVED = [
    word_table(key="ctid string"),
    word_table(value="xmin bigint"),
    word_table("excluded"),
    word_table("new"),
    word_table("sqlite_mine"),
    word_table(value=f"`{'v' * 59}` bigint"),  # its prev_ column has a name of 64 characters
    word_table(key=f"`{'k' * 70}` string"),
    word_table(key=f"`{'ö' * 40}` string"),  # 80 bytes
    word_table("ö" * 40),
    word_table("t" * 64),
    word_table("日" * 64),  # its file's name has five bytes for each character
    word_table("日" * 51),
    word_table("日" * 50),
    word_table("ö" * 31, index_txid=True),  # its index's name is cut
    word_table(key="` k` string", value="`n ` bigint"),
    word_table("blank "),
    word_table(key="`🦀` string"),
]


def tables_of(url: str) -> list[str]:
    engine = sa.create_engine(url)
    found = sa.inspect(engine).get_table_names()
    engine.dispose()
    return found


def use(database: StateDatabase, url: str, spec: Any) -> None:
    """Do everything with the table that a topology does."""
    rig = Rig(database, url, spec).join()
    key, value = (1 if name == "value" else "k" for name in ("key", "value"))
    keys, values = len(spec.state.key_names), len(spec.state.value_names)
    deltas = {key if keys == 1 else (key,) * keys: value if values == 1 else (value,) * values}
    rig.commit(1, deltas)
    for _ in range(2):
        rig.commit(2, deltas)
    again = Rig(database, url, spec, epoch=2).join(first_run=False)
    assert database.of(again.topology, again.uuid, Semantics.OPAQUE, [spec]).migrate(again.fence()) == []
    (found,) = rig.values().values()
    assert found == (2 if values == 1 else (2,) * values)
    assert len(database.top(spec.state.table, topology="words")) == 1


class TestNames:
    @pytest.mark.parametrize(("table", "key", "value"), WITH_QUOTES)
    def test_names_that_need_quotes_work(
        self, database: StateDatabase, url: str, table: str, key: str, value: str
    ) -> None:
        use(database, url, word_table(table, key=key, value=value))

    @pytest.mark.parametrize("spec", RESERVED)
    def test_reserved_and_long_names_work_or_are_refused_at_once(
        self, database: StateDatabase, url: str, spec: Any
    ) -> None:
        refused: StateTableError | None = None
        try:
            use(database, url, spec)
        except StateTableError as error:
            refused = error
        if refused is not None:
            assert any(word in str(refused) for word in ("choose another name", "choose a shorter name"))
            assert repr(spec.state.table) in str(refused)
            assert spec.state.table not in tables_of(url)
            assert database.topologies() == []

    def test_keys_are_told_apart_by_columns_of_any_name(self, database: StateDatabase, url: str) -> None:
        """`.b` is a column of its own, not another spelling of `b`."""
        rig = Rig(database, url, word_table(key="`.b` int, b int")).join()
        rig.commit(1, {(1, 2): 1, (2, 1): 1, (1, 1): 1})
        with pytest.raises(StateValueError, match=r"key \.b=1, b=2 has two deltas"):
            rig.commit(2, pa.table({".b": [1, 2, 1], "b": [2, 2, 2], "n": [1, 1, 1]}))
        assert rig.values() == {(1, 2): 1, (2, 1): 1, (1, 1): 1}
