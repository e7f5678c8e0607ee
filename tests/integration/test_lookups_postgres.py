"""Batches with lookups that are run again long after, over a real PostgreSQL. What a tuple must get is told
by a loop over the records, and what is kept for that by plain SQL."""

from __future__ import annotations

import psycopg
from plugins.audit.test_replay_versions import kept, looked_up
from postgres import PostgresServer
from unit.test_lookups import BATCH, FIELDS, expected, joining, some_records

from txstream import MemorySpout, inspect
from txstream.core.fault_points import Point
from txstream.settings import Settings
from txstream.testing import TopologyTest


def test_each_batch_is_joined_again_with_the_rows_of_then(postgres: PostgresServer, unique: str) -> None:
    settings = Settings(database=postgres.create_database(unique))
    records = some_records(11, count=24)
    with MemorySpout(FIELDS, {"p": records}) as source:
        made = joining(source, table=kept(), commit="executors")
        with TopologyTest(made, database=settings.database, width=2) as test:
            for txid in (2, 5):
                test.crash(at=Point.AFTER_WRITE, txid=txid)
                test.restart()
            test.run()
            last = test.current - 1
        assert looked_up(made, settings, 1, last) == expected(records)
        assert inspect.replay(made, 1, settings, last=last).lookups == "then"
    names: dict[str, str | None] = {}
    versions = []
    for txid, start in enumerate(range(0, len(records), BATCH), 1):
        told = {key: name for _, kind, key, name in records[start : start + BATCH] if kind != "order" and key}
        versions += [(txid, key, names.get(key)) for key in told]
        names |= told
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        found = connection.execute("SELECT txid, id, name FROM users_versions ORDER BY txid, id").fetchall()
    assert found == sorted(versions)
