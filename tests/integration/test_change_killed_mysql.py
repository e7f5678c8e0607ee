"""Commands that change a topology, killed at each of their steps over MariaDB and MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from support.changes_killed import *  # noqa: F403 - tests and what they need


@pytest.fixture
def urls(mysql_server: MySQLFamilyServer, unique: str) -> list[str]:
    return [mysql_server.create_database(f"{unique}_{number}") for number in (0, 1)]
