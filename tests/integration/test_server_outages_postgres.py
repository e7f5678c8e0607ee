"""A PostgreSQL that is stopped, killed or frozen, and answers that are lost.

`ServerOutages` is a suite for every server; the tests of MariaDB and MySQL run it too.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from typing import Protocol

import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.cut import AnswerLosingProxy
from support.postgres_tools import busy_backend, host_of
from support.server_databases import new_database
from support.states import Rig

from txstream.core.errors import ServiceUnavailableError, StaleAttemptError
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.state import AnswerLostError, open_database, open_sql_database
from txstream.state.sql import sessions

_SOCKET = ".s.PGSQL.5432"


class Server(Protocol):
    """A real server."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stop as in a crash."""

    def url(self, database: str = ...) -> str: ...


class ServerOutages:
    """Subclasses have a fixture `server`, a Server that a test may stop, and a `url` in it."""

    def freeze(self, url: str | None) -> contextlib.AbstractContextManager[object]:
        """While open, the server does not answer the session of this database that is in a transaction;
        without a database, it does not answer whoever connects."""
        raise NotImplementedError

    def losing(self, url: str) -> contextlib.AbstractContextManager[tuple[str, AnswerLosingProxy]]:
        """A proxy in front of this database, and the database's URL through it."""
        raise NotImplementedError

    def test_restarted_while_nothing_was_going_on(
        self, rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection that has been idle for long is tested first, so that no batch fails."""
        monkeypatch.setattr(sessions, "_PING_AFTER_IDLE_SECONDS", 0.0)
        rig.commit(1, {"a": 1})
        server.stop()
        server.start()
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_away_between_two_batches(
        self, rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sessions, "_PING_AFTER_IDLE_SECONDS", math.inf)
        rig.commit(1, {"a": 1})
        with contextlib.closing(open_sql_database(rig.url)) as leader:
            assert leader.last_batch("words") == rig.last()
            server.stop()
            with pytest.raises(ServiceUnavailableError):  # and not the database driver's own
                leader.of("words", rig.uuid, Semantics.OPAQUE).raise_fence(
                    attempt_id(2, 0), lock_timeout_seconds=5
                )
        with pytest.raises(ServiceUnavailableError) as told:
            rig.commit(2, {"a": 1})
        assert not isinstance(told.value, AnswerLostError)  # COMMIT was never sent
        assert told.value.service == f"database {rig.database.display_url}"
        with pytest.raises(ServiceUnavailableError, match="set --database / TXSTREAM_DATABASE"):
            rig.database.check()
        server.start()
        rig.database.check()
        assert rig.states.outcome(rig.next(2)) is False
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_killed_inside_a_commit(self, rig: Rig, server: Server) -> None:
        rig.commit(1, {"a": 1})
        lost = rig.next(2)
        with pytest.raises(AnswerLostError, match=r"txid 2 attempt 1\.2 was being committed"):
            rig.commit(2, {"a": 1, "b": 1}, under=lost, reached=lambda _: server.stop())
        server.start()
        rig.database.check()
        assert rig.states.outcome(lost) is False
        assert rig.values() == {"a": 1}
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_committed_but_the_answer_was_lost(self, rig: Rig) -> None:
        with self.losing(rig.url) as (url, proxy):
            through = open_sql_database(url)
            behind = Rig(through, rig.url)
            behind.commit(1, {"a": 1})
            proxy.lose_next_commit()
            lost = behind.next(2)
            with pytest.raises(AnswerLostError):
                behind.commit(2, {"a": 1}, under=lost)
            assert proxy.lost.wait(10)
            through.check()
            assert behind.states.outcome(lost) is True
            assert rig.values() == {"a": 2}
            with pytest.raises(StaleAttemptError, match="already been used"):
                behind.commit(2, {"a": 1}, under=lost)
            assert rig.values() == {"a": 2}
            through.close()

    def test_a_server_that_freezes_is_given_up(self, rig: Rig) -> None:
        """The server keeps the connection open, so only a deadline of ours ends the wait."""
        impatient = open_sql_database(rig.url, message_timeout_seconds=1.0)
        impatient._dialect.silence_seconds = 1.0  # type: ignore[attr-defined]  # its usual is 10 s more
        with contextlib.ExitStack() as frozen:

            def freeze(_point: str) -> None:
                frozen.enter_context(self.freeze(rig.url))

            with pytest.raises(AnswerLostError, match="the server did not answer for 1 s"):
                Rig(impatient, rig.url).commit(1, {"a": 1}, under=rig.next(1), reached=freeze)
        # Awake, the server carries out the COMMIT that was sent. The next attempt waits for it and undoes it.
        rig.commit(1, {"b": 1})
        assert rig.values() == {"b": 1}
        impatient.close()

    def test_a_frozen_server_is_not_ready(self, server: Server) -> None:
        waiting = open_database(server.url(), connect_timeout_seconds=2.0)
        with self.freeze(None):
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError, match="time"):
                waiting.check()
            assert time.monotonic() - started < 10
        waiting.check()
        waiting.close()


class TestOutages(ServerOutages):
    @pytest.fixture
    def server(self, own_postgres: PostgresServer) -> PostgresServer:
        self.data = own_postgres.data
        return own_postgres

    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        return new_database(server)

    @contextlib.contextmanager
    def freeze(self, url: str | None) -> Iterator[object]:
        (postmaster, *_) = (self.data / "postmaster.pid").read_text().split()
        pid = int(postmaster) if url is None else busy_backend(url)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield None
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        with tempfile.TemporaryDirectory(prefix="txs") as directory:
            proxy = AnswerLosingProxy(f"{host_of(url)}/{_SOCKET}", f"{directory}/{_SOCKET}")
            with contextlib.closing(proxy):
                yield f"postgresql://postgres@/{sa.make_url(url).database}?host={directory}", proxy
