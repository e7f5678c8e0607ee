"""A MariaDB and a MySQL that become read-only or cut connections while a topology runs on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from integration.test_bad_database_postgres import BadServer
from mysql_servers import MySQLFamilyServer

from txstream.core.waits import wait_until


class Administrator:
    """An administrator of the server who ends the sessions of one account."""

    def __init__(self, server: MySQLFamilyServer, account: str) -> None:
        self._server = server
        self._sessions = f"SELECT id FROM information_schema.processlist WHERE user = '{account}'"

    def set_read_only(self, value: bool) -> None:
        self._server.execute(f"SET GLOBAL read_only = {'ON' if value else 'OFF'}")

    def end_sessions(self) -> None:
        """End the sessions; they are gone when this returns."""
        for (session,) in self._server.execute(self._sessions):
            self._server.execute(f"KILL CONNECTION {session}")
        assert wait_until(lambda: not self._server.execute(self._sessions), 10)


class TestBadServer(BadServer):
    read_only = "read-only"
    cut = "onnection"  # PyMySQL's message depends on the moment

    @pytest.fixture
    def url(self, mysql_server: MySQLFamilyServer, unique: str) -> str:
        """The URL of an account that may not write while the server is read-only."""
        url = mysql_server.create_database(unique)
        mysql_server.create_account(unique, f"ALL ON `{unique}`.*")
        return sa.make_url(url).set(username=unique).render_as_string(hide_password=False)

    @pytest.fixture
    def administrator(self, mysql_server: MySQLFamilyServer, unique: str) -> Iterator[Administrator]:
        found = Administrator(mysql_server, unique)
        yield found
        found.set_read_only(False)
