"""Rows as they are in a real server: drivers that append a topic's records are killed by SIGKILL on both
commit paths, and every record is one row. What must be there comes from kafka-python's consumer and plain
SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysql_servers import MySQLFamilyServer
from support.appended import fill, kill_and_finish, produced
from support.runs import Launcher

from txstream.plugins.local.embedded import Services


@pytest.mark.parametrize("semantics", ["opaque"])
def test_every_record_is_one_row(
    services: Services, contract_server: MySQLFamilyServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    fill(services.kafka, unique)
    launcher = Launcher(services, tmp_path, contract_server.create_database(unique)).without_spark
    kill_and_finish(launcher, unique, semantics)
    with contract_server.connect(database=unique) as connection, connection.cursor() as cursor:
        cursor.execute(
            f"SELECT topic, `partition`, `offset`, customer, CAST(amount AS CHAR) FROM {unique} "
            f"ORDER BY 1, 2, 3"
        )
        found = [tuple(row) for row in cursor.fetchall()]
    assert found == produced(services.kafka, unique)
