"""Asks a MariaDB or a MySQL about a database, as an administrator would."""

from __future__ import annotations

from typing import Any

import pymysql
import sqlalchemy as sa

SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
"""Lists the sessions of this database except one's own."""


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the answer that an administrator gets in this database."""
    server = sa.make_url(url)
    connection = pymysql.connect(
        host=server.host,
        port=server.port or 0,
        user=server.username,
        database=server.database,
        ssl_disabled=True,
    )
    with connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())
