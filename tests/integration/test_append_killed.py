"""Rows as they are in a real server: drivers that append a topic's records are killed by SIGKILL on both
commit paths, and every record is one row. What must be there comes from kafka-python's consumer and plain
SQL."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from postgres import PostgresServer
from support.appended import fill, kill_and_finish, produced
from support.runs import Launcher

from txstream.plugins.local.embedded import Services


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_every_record_is_one_row(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    fill(services.kafka, unique)
    launcher = Launcher(services, tmp_path, postgres.create_database(unique)).without_spark
    kill_and_finish(launcher, unique, semantics)
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        rows = connection.execute(
            f'SELECT topic, partition, "offset", customer, amount::text FROM {unique} ORDER BY 1, 2, 3'
        ).fetchall()
    found = [tuple(row) for row in rows]
    assert found == produced(services.kafka, unique)
