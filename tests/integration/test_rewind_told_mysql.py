"""Topics and Delta tables are told of a rewind of states in MariaDB and MySQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysql_servers import MySQLFamilyServer
from support.rewinds_told import check_who_follows_is_told

from txstream.plugins.local.embedded import Services


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_whoever_follows_is_told(
    services: Services, contract_server: MySQLFamilyServer, tmp_path: Path, unique: str
) -> None:
    url = contract_server.create_database(unique)
    check_who_follows_is_told(services, url, tmp_path, unique, exactly_once=True, step="ended:1")
