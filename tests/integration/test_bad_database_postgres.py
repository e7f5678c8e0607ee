"""A PostgreSQL that becomes read-only or cuts connections while a topology runs on it; and names in it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from support.bad_server_contract import BadServerContract
from support.names_contract import NamesContract


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class TestNames(NamesContract):
    pass


class Administrator:
    """Somebody who may do everything to one database."""

    def __init__(self, url: str) -> None:
        found = sa.make_url(url)
        self.name = str(found.database)
        self.connection = psycopg.connect(host=str(found.query["host"]), user="postgres", autocommit=True)

    def set_read_only(self, value: bool) -> None:
        statement = "ALTER DATABASE {} SET default_transaction_read_only = {}"
        self.connection.execute(
            sql.SQL(statement).format(sql.Identifier(self.name), sql.SQL("on" if value else "off"))
        )
        self.end_sessions()  # a session has the setting that it began with

    def end_sessions(self) -> None:
        """They are gone when this returns."""
        self.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (self.name,)
        )


class TestBadServer(BadServerContract):
    read_only = "in a read-only transaction"
    cut = "terminat"

    @pytest.fixture
    def administrator(self, url: str) -> Iterator[Administrator]:
        found = Administrator(url)
        yield found
        found.connection.close()
