"""States of committers on a real MariaDB and a real MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from support.server_map_states import ServerMapStates


@pytest.fixture
def url(mysql_server: MySQLFamilyServer, unique: str) -> str:
    return mysql_server.create_database(unique)


class TestMapStates(ServerMapStates):
    pass
