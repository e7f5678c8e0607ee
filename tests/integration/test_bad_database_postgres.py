"""A PostgreSQL that becomes read-only or cuts connections in mid-commit while a topology runs on it: nothing
is lost, and the run goes on when it is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from psycopg import sql
from support.mending import Mending
from support.names_contract import NamesContract
from support.tables import read_counts
from support.upgrade_contract import COUNTS, ROWS, SPOUTS, counts, storing

from txstream.api.errors import ServiceUnavailableError
from txstream.api.spouts import OpaqueSpout
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase, open_database
from txstream.testing import TopologyTest

PATHS = pytest.mark.parametrize("path", ["driver", "executors"])


class TestNames(NamesContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


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


@pytest.fixture
def administrator(postgres: PostgresServer, postgres_url: str) -> Iterator[Administrator]:
    found = Administrator(postgres_url)
    yield found
    found.connection.close()


def ledger(url: str) -> list[tuple[int, str]]:
    database = open_database(url)
    found: list[tuple[int, str]] = [(row.txid, row.status) for row in database.batches("words")]
    database.close()
    return found


@PATHS
def test_a_database_that_becomes_read_only(
    postgres_url: str, administrator: Administrator, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with (
        MemorySpout("word string, x bigint", {"p": ROWS}) as source,
        TopologyTest(storing(source, OpaqueSpout, counts(), commit=path), database=postgres_url) as test,
    ):
        test.commit(1)
        trouble = Mending(
            2,
            lambda: administrator.set_read_only(True),
            lambda: administrator.set_read_only(False),
            lambda: (read_counts(postgres_url, "counts"), ledger(postgres_url)),
            times=3,  # the first one meets the end of its session
        ).watch(monkeypatch)
        test.run()
        assert test.table("counts") == COUNTS
    assert trouble.seen[:3] == [({"a": 1, "b": 1}, [(1, "committed")])] * 3
    assert all(isinstance(error, ServiceUnavailableError) for error in trouble.errors)
    assert any("in a read-only transaction" in str(error) for error in trouble.errors)
    assert ledger(postgres_url) == [(txid, "committed") for txid in (1, 2, 3, 4)]


@SPOUTS
@PATHS
def test_a_connection_that_is_cut_in_mid_commit(
    postgres_url: str, administrator: Administrator, monkeypatch: pytest.MonkeyPatch, spout: Any, path: str
) -> None:
    cut = Cut(administrator, 2).watch(monkeypatch)
    with (
        MemorySpout("word string, x bigint", {"p": ROWS}) as source,
        TopologyTest(storing(source, spout, counts(), commit=path), database=postgres_url) as test,
    ):
        test.run()
        assert test.table("counts") == COUNTS
        # The executors' sessions are ended too: each costs an attempt more, which writes nothing either.
        *failed, last = [str(attempt.state) for attempt in test.attempts(2)]
        assert (set(failed), last) == ({"failed"}, "committed")
        assert len(failed) == 2 if path == "driver" else len(failed) >= 2
        assert "terminat" in str(test.attempts(2)[0].error)
    assert cut.left == 0
    assert ledger(postgres_url) == [(txid, "committed") for txid in (1, 2, 3, 4)]


class Cut:
    """Every session of the database is ended inside the commit of txid 2, as often as that is `left`."""

    def __init__(self, administrator: Administrator, left: int) -> None:
        self.administrator, self.left = administrator, left

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Cut:
        for name in ("commit", "end_commit"):
            monkeypatch.setattr(StateDatabase, name, self._cut(getattr(StateDatabase, name)))
        return self

    def _cut(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def cut(database: StateDatabase, *arguments: Any, **options: Any) -> Any:
            reached = options.pop("reached")

            def inside(point: str) -> None:
                reached(point)
                if self.left and arguments[3].attempt.txid == 2:
                    self.left -= 1
                    self.administrator.end_sessions()

            return write(database, *arguments, **options, reached=inside)

        return cut
