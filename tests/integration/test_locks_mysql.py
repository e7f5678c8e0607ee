"""Locks of a MariaDB and a MySQL, between sessions that write at once, freeze or are ended."""

from __future__ import annotations

import pytest
from integration.test_locks_postgres import ServerLocks
from mysql_servers import MySQLFamilyServer
from support.mysql_tools import SESSIONS, ask
from support.server_databases import new_database

from txstream.core.waits import wait_until


class TestLocks(ServerLocks):
    share = ("LOCK IN SHARE MODE", "FOR SHARE")  # MariaDB's words, and MySQL's
    proofs = ("SHOW CREATE TABLE",)  # a second UNIQUE may have taken a row
    lock_timeout = ("SELECT @@innodb_lock_wait_timeout", "10")

    @pytest.fixture
    def url(self, mysql_server: MySQLFamilyServer) -> str:
        url = new_database(mysql_server)
        names = "('tx_isolation', 'transaction_isolation')"
        levels = ask(url, f"SHOW GLOBAL VARIABLES WHERE variable_name IN {names}")
        assert {level for _, level in levels} == {"REPEATABLE-READ"}
        return url

    def waiting(self, url: str) -> int:
        # Not from innodb_trx: as long as it is read more often than every 100 ms, it is not refreshed.
        ((_, waits),) = ask(url, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(waits)

    def end_session(self, url: str) -> None:
        for (session,) in ask(url, SESSIONS):
            ask(url, f"KILL CONNECTION {session}")
        assert wait_until(lambda: not ask(url, SESSIONS), 10)
