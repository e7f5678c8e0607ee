"""Lookups in a real MariaDB and a real MySQL, through a driver that dies within a commit."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from unit.test_lookups import SPOUTS, expected, running, some_records, users_table

from txstream.core.fault_points import Point


@pytest.mark.parametrize("name", SPOUTS)
def test_a_replay_joins_what_was_joined(mysql_server: MySQLFamilyServer, unique: str, name: str) -> None:
    records = some_records(7)
    table = users_table(removed_by="kind = 'gone'", index_txid=True, url=mysql_server.create_database(unique))
    with running(records, SPOUTS[name], table, width=2, commit="executors") as test:
        for txid in (2, 5, 8):
            test.crash(at=Point.AFTER_WRITE, txid=txid)
            test.restart()
        test.run()
        assert test.table("joined") == expected(records)
