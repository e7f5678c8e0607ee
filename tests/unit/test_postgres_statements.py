"""PostgreSQL's statements as text, where a test server cannot show the effect: it has only one locale."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.states import word_table

from txstream.api.reducers import Last, Max, Min, Reducer
from txstream.state.sql.postgresql import PostgreSQLDialect, UnnestUpsert
from txstream.state.sql.writer import TableWriter


def statement(value: str, reducer: Reducer) -> str:
    dialect = PostgreSQLDialect(sa.make_url("postgresql://host/db"), 1.0, 1.0)
    upsert = TableWriter(word_table(value=value, reducers={"n": reducer}), dialect)._upsert
    assert isinstance(upsert, UnnestUpsert)
    return " ".join(upsert._sql.split())


@pytest.mark.parametrize(("reducer", "function"), [(Min("x"), "least"), (Max("x"), "greatest")], ids=str)
def test_text_is_compared_as_the_folds_compare_it(reducer: Reducer, function: str) -> None:
    """By the bytes of UTF-8, whatever the collation of the database."""
    sql = statement("n string", reducer)
    assert f'{function}("word_count"."n" COLLATE "C", excluded."n" COLLATE "C")' in sql
    assert f'{function}("word_count"."prev_n" COLLATE "C", excluded."n" COLLATE "C")' in sql
    assert "COLLATE" not in statement("n bigint", reducer)
    assert "COLLATE" not in statement("n string", Last("x", by="t"))
