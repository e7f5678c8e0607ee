"""`txstream doctor` names what may take or change rows of a PostgreSQL, and a pooler before it."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support import pgbouncer
from support.server_databases import new_database
from support.tables import execute
from support.transaction_pooler import TransactionPooler

from txstream.plugins.doctor.clocks import Clocks
from txstream.plugins.doctor.database_check import look_at_database
from txstream.settings import Settings

NULL = "RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
DAMAGES = (
    'CREATE TABLE "Sums" (word text PRIMARY KEY, n bigint)',
    f"CREATE FUNCTION nothing() {NULL}",
    'CREATE TRIGGER takes BEFORE INSERT ON "Sums" FOR EACH ROW EXECUTE FUNCTION nothing()',
    'CREATE TRIGGER off BEFORE INSERT ON "Sums" FOR EACH ROW EXECUTE FUNCTION nothing()',
    'ALTER TABLE "Sums" DISABLE TRIGGER off',
    'CREATE TRIGGER audit AFTER INSERT ON "Sums" FOR EACH ROW EXECUTE FUNCTION nothing()',
    'CREATE TRIGGER once BEFORE INSERT ON "Sums" EXECUTE FUNCTION nothing()',
    'CREATE RULE instead AS ON UPDATE TO "Sums" DO INSTEAD NOTHING',
)


def look(url: str) -> list[tuple[str, bool, str]]:
    checks = look_at_database(Settings(), url, ["Sums"], Clocks())
    found = [(check.name.rpartition(": ")[2], check.ok, check.message) for check in checks]
    return [one for one in found if one[0] in ("triggers", "pooler")]


def test_what_may_take_rows_and_nothing_else_is_named(postgres: PostgresServer) -> None:
    url = new_database(postgres)
    assert look(url) == []
    execute(url, *DAMAGES)
    assert [(name, ok, text.partition(", which")[0]) for name, ok, text in look(url)] == [
        ("triggers", True, "note: table Sums has the rule instead"),
        ("triggers", True, "note: table Sums has the trigger takes"),
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_a_pooler_of_transactions_is_named(postgres: PostgresServer, size: int) -> None:
    direct = new_database(postgres)
    with contextlib.closing(TransactionPooler(str(postgres.data / ".s.PGSQL.5432"), size)) as pooler:
        url = f"postgresql://postgres@127.0.0.1:{pooler.port}/{sa.make_url(direct).database}"
        assert [name for name, *_ in look(url)] == ["pooler"]


@pytest.mark.soak
def test_pgbouncer_is_named(postgres: PostgresServer) -> None:
    if pgbouncer.PROGRAM is None:
        pytest.skip(pgbouncer.MISSING)
    direct = new_database(postgres)
    for size in (1, 3):
        with pgbouncer.PgBouncer(postgres, size=size, prepared=0) as pooler:
            for _ in range(10):
                assert [name for name, *_ in look(pooler.url(direct))] == ["pooler"]
