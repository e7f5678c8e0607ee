"""A PostgreSQL that becomes read-only or cuts connections in mid-commit while a topology runs on it.

Nothing is lost, and the run goes on once the server is mended. Also: names and errors' texts here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql
from support.mending import Mending
from support.tables import read_counts
from support.upgrading import COUNTS, ROWS, SPOUTS, counts, storing
from unit.test_error_texts import TestErrorTexts as TestErrorTexts
from unit.test_sql_names import TestNames as TestNames

from txstream.api.spouts import OpaqueSpout
from txstream.core.errors import ServiceUnavailableError
from txstream.spouts.memory import MemorySpout
from txstream.state import Commit, TopologyStates, open_database
from txstream.testing import TopologyTest

PATHS = pytest.mark.parametrize("path", ["driver", "executors"])


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class AnAdministrator(Protocol):
    """Somebody who may do everything to one database."""

    def set_read_only(self, value: bool) -> None: ...

    def end_sessions(self) -> None:
        """End all sessions but one's own; they are gone when this returns."""


def ledger(url: str) -> list[tuple[int, str]]:
    database = open_database(url)
    found: list[tuple[int, str]] = [(row.txid, row.status) for row in database.batches("words")]
    database.close()
    return found


class BadServer:
    """Suite for every server; the tests of MariaDB and MySQL run it too."""

    read_only: ClassVar[str]
    """What the server says when it is read-only."""

    cut: ClassVar[str]
    """What the error says after a session was ended."""

    @PATHS
    def test_a_database_that_becomes_read_only(
        self, url: str, administrator: AnAdministrator, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        with (
            MemorySpout("word string, x bigint", {"p": ROWS}) as source,
            TopologyTest(storing(source, OpaqueSpout, counts(), commit=path), database=url) as test,
        ):
            test.commit(1)
            trouble = Mending(
                2,
                lambda: administrator.set_read_only(True),
                lambda: administrator.set_read_only(False),
                lambda: (read_counts(url, "counts"), ledger(url)),
                times=3,  # the first one may be the end of its session
            ).watch(monkeypatch)
            test.run()
            assert test.table("counts") == COUNTS
        assert trouble.seen[:3] == [({"a": 1, "b": 1}, [(1, "committed")])] * 3
        assert all(isinstance(error, ServiceUnavailableError) for error in trouble.errors)
        assert any(self.read_only in str(error) for error in trouble.errors)
        assert ledger(url) == [(txid, "committed") for txid in (1, 2, 3, 4)]

    @SPOUTS
    @PATHS
    def test_a_connection_that_is_cut_in_mid_commit(
        self, url: str, administrator: AnAdministrator, monkeypatch: pytest.MonkeyPatch, spout: Any, path: str
    ) -> None:
        cut = Cut(administrator, 2).watch(monkeypatch)
        with (
            MemorySpout("word string, x bigint", {"p": ROWS}) as source,
            TopologyTest(storing(source, spout, counts(), commit=path), database=url) as test,
        ):
            test.run()
            assert test.table("counts") == COUNTS
            # The executors' sessions are ended too: each costs one attempt more, which writes nothing either.
            *failed, last = [str(attempt.state) for attempt in test.attempts(2)]
            assert (set(failed), last) == ({"failed"}, "committed")
            assert len(failed) == 2 if path == "driver" else len(failed) >= 2
            assert self.cut in str(test.attempts(2)[0].error)
        assert cut.left == 0
        assert ledger(url) == [(txid, "committed") for txid in (1, 2, 3, 4)]


class Cut:
    """Ends every session of the database inside the commit of txid 2, `left` times."""

    def __init__(self, administrator: AnAdministrator, left: int) -> None:
        self.administrator, self.left = administrator, left

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Cut:
        for name in ("commit", "end_commit"):
            monkeypatch.setattr(TopologyStates, name, self._cut(getattr(TopologyStates, name)))
        return self

    def _cut(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def cut(states: TopologyStates, commit: Commit, **options: Any) -> Any:
            reached = options.pop("reached")

            def inside(point: str) -> None:
                reached(point)
                if self.left and commit.attempt.txid == 2:
                    self.left -= 1
                    self.administrator.end_sessions()

            return write(states, commit, **options, reached=inside)

        return cut


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
        self.end_sessions()  # a session keeps the setting that it began with

    def end_sessions(self) -> None:
        """End all sessions; they are gone when this returns."""
        self.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (self.name,)
        )


class TestBadServer(BadServer):
    read_only = "in a read-only transaction"
    cut = "terminat"

    @pytest.fixture
    def administrator(self, url: str) -> Iterator[Administrator]:
        found = Administrator(url)
        yield found
        found.connection.close()
