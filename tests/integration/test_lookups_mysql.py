"""Lookups in a real MariaDB and a real MySQL, through a driver that dies within a commit, and in batches that
are run again long after."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from plugins.audit.test_replay_versions import kept, looked_up
from unit.test_lookups import SPOUTS, expected, running, some_records

from txstream import Semantics
from txstream.core.fault_points import Point
from txstream.settings import Settings


@pytest.mark.parametrize("name", SPOUTS)
def test_a_replay_joins_what_was_joined(mysql_server: MySQLFamilyServer, unique: str, name: str) -> None:
    records = some_records(7)
    table = kept(semantics=Semantics.OPAQUE, index_txid=True, url=mysql_server.create_database(unique))
    with running(records, SPOUTS[name], table, width=2, commit="executors") as test:
        for txid in (2, 5, 8):
            test.crash(at=Point.AFTER_WRITE, txid=txid)
            test.restart()
        test.run()
        assert test.table("joined") == expected(records)
        settings = Settings(database=test.database_url)
        assert looked_up(test.topology, settings, 1, test.current - 1) == expected(records)
