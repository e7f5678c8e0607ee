"""Appended rows of every type in MySQL, compared with the digests of their batches."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLServer
from support.append_types import check_every_type


@pytest.mark.soak
def test_fsck_reads_every_type_as_it_was_written_to_mysql(mysql: MySQLServer, unique: str) -> None:
    check_every_type(mysql.create_database(unique))
