"""Asks a PostgreSQL about a database, as an administrator would."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import sqlalchemy as sa


def host_of(url: str) -> str:
    return str(sa.make_url(url).query["host"])


def administrator(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(host=host_of(url), user="postgres", autocommit=True)


def busy_backend(url: str) -> int:
    """Return the pid of the server process of the one session of this database that is in a transaction."""
    pid = session(url, "state LIKE 'idle in tran%%'")
    assert pid is not None
    return pid


def sessions(url: str, condition: LiteralString) -> list[int]:
    """Return the pids of the server processes of this database's sessions for which the condition holds."""
    with administrator(url) as connection:
        query = f"SELECT pid FROM pg_stat_activity WHERE datname = %s AND {condition}"
        return [int(pid) for (pid,) in connection.execute(query, (sa.make_url(url).database,))]


def session(url: str, condition: LiteralString) -> int | None:
    """Return the pid of one of them, if there is one."""
    return next(iter(sessions(url, condition)), None)
