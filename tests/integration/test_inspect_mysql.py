"""Inspection on a real MariaDB and a real MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from support.server_readings import ServerReadings


class TestReadings(ServerReadings):
    @pytest.fixture
    def url(self, mysql_server: MySQLFamilyServer, unique: str) -> str:
        return mysql_server.create_database(unique)
