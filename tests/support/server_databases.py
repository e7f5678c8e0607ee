"""Databases on a server that the tests of a module share."""

from __future__ import annotations

import contextlib
import itertools
from typing import Protocol

import pytest

from txstream.state import open_database

_numbers = itertools.count()


class Server(Protocol):
    """A real server."""

    def create_database(self, name: str) -> str:
        """Create an empty database; return its URL."""


def new_database(server: Server) -> str:
    """Create an empty database with a name of its own; return its URL."""
    return server.create_database(f"db{next(_numbers)}")


def with_framework_tables(server: Server) -> str:
    """Create a database with the framework's tables in it; return its URL."""
    url = new_database(server)
    with contextlib.closing(open_database(url)) as database:
        database.ensure_framework_tables()
    return url


class OneDatabase:
    """All tests of the class share one database, for contracts that need no empty one each time. The module
    or session must have a fixture `server`."""

    @pytest.fixture(scope="class")
    @staticmethod
    def url(server: Server) -> str:
        return new_database(server)
