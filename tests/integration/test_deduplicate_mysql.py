"""`DeduplicateBolt` with a table of a real MariaDB and a real MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
from support.deduplicating import TableOfFirst


@pytest.fixture
def url(mysql_server: MySQLFamilyServer, unique: str) -> str:
    return mysql_server.create_database(unique)


class TestTableOfFirst(TableOfFirst):
    pass
