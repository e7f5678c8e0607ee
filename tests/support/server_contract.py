"""What every database server must do when locks, outages and frozen processes come: the driver's commit.

Subclasses have a fixture `url` with an empty database, and say by the methods of `ServerFixtures` how their
server is asked and treated.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol

import pytest
import sqlalchemy as sa

from support.cut import AnswerLosingProxy
from support.state_contract import StateFixtures
from support.states import Rig, word_table
from txstream.api.errors import ServiceUnavailableError, StaleAttemptError
from txstream.embedded.process import wait_until
from txstream.semantics import Semantics
from txstream.state import AnswerLostError, FenceLockedError, open_database, open_sql_database
from txstream.state.sql import sessions
from txstream.transaction import attempt_id

PATIENCE_SECONDS = 30


class Server(Protocol):
    """A real one."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """As a crash would."""

    def url(self, database: str = ...) -> str: ...


class ServerFixtures(StateFixtures):
    lock_timeout: ClassVar[tuple[str, str]]
    """How a session's lock timeout is asked for, and what it is with a message timeout of ten seconds."""

    def is_waiting(self, url: str) -> bool:
        """Does a session of this database wait for a lock?"""
        raise NotImplementedError

    def end_session(self, url: str) -> None:
        """End the session of this database that is in a transaction, and return when it has ended."""
        raise NotImplementedError


class ServerLocks(ServerFixtures):
    def test_statements_of_a_small_commit(self, rig: Rig) -> None:
        """Each is a round trip; BEGIN and COMMIT come on top."""
        rig.commit(1, {"a": 1})
        statements: list[str] = []
        sa.event.listen(
            rig.database.sessions.engine,
            "before_cursor_execute",
            lambda conn, cursor, statement, *_: statements.append(" ".join(statement.split()[:3])),
        )
        rig.commit(2, {f"{key}": 1 for key in range(10)})
        assert [re.sub('[`"]', "", statement.split(" (")[0]) for statement in statements] == [
            "UPDATE txstream_fence SET",
            "SELECT EXISTS",
            "INSERT INTO word_count",
            "INSERT INTO txstream_batch",
        ]

    def test_restore_sees_what_the_transaction_committed_that_it_waited_for(self, rig: Rig) -> None:
        """Attempt 2 waits at the fence while attempt 1 of the same txid commits {x, y}; it must undo that.
        The server's default is REPEATABLE READ, under which it would restore nothing, without an error."""
        first, second = open_sql_database(rig.url), open_sql_database(rig.url)
        inside, go_on = threading.Event(), threading.Event()

        def hold(_point: str) -> None:
            inside.set()
            assert go_on.wait(PATIENCE_SECONDS)

        slow, fast = Rig(first, rig.url), Rig(second, rig.url, sequence=1)
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(slow.commit, 5, {"x": 1, "y": 1}, reached=hold)
            assert inside.wait(PATIENCE_SECONDS)
            two = pool.submit(fast.commit, 5, {"x": 1})
            try:
                assert wait_until(lambda: self.is_waiting(rig.url), PATIENCE_SECONDS)
            finally:
                go_on.set()
            one.result(PATIENCE_SECONDS)
            two.result(PATIENCE_SECONDS)
        first.close()
        second.close()
        assert rig.values() == {"x": 1}

    def test_two_drivers_without_a_fence_lose_nothing(self, rig: Rig) -> None:
        """Non-transactional state has none, so a zombie may write beside its successor: both are added."""
        spec = word_table("plain", Semantics.NON_TRANSACTIONAL)
        inside, go_on = threading.Event(), threading.Event()

        def hold(_point: str) -> None:
            inside.set()
            assert go_on.wait(PATIENCE_SECONDS)

        with (
            contextlib.closing(open_sql_database(rig.url)) as first,
            contextlib.closing(open_sql_database(rig.url)) as second,
            ThreadPoolExecutor(2) as pool,
        ):
            slow = Rig(first, rig.url, spec, topology="plain").join()
            slow.commit(1, {"there": 1})
            fast = Rig(second, rig.url, spec, topology="plain", epoch=2)
            one = pool.submit(slow.commit, 2, {"new": 10, "there": 10}, reached=hold)
            assert inside.wait(PATIENCE_SECONDS)
            two = pool.submit(fast.commit, 3, {"new": 100, "there": 100})
            try:
                assert wait_until(lambda: self.is_waiting(rig.url), PATIENCE_SECONDS)
            finally:
                go_on.set()
            one.result(PATIENCE_SECONDS)
            two.result(PATIENCE_SECONDS)
            assert slow.values() == {"new": 110, "there": 111}

    def test_a_lock_that_stays_is_told(self, rig: Rig) -> None:
        """Somebody's session without our timeouts."""
        engine = sa.create_engine(rig.url)
        with engine.connect() as other:
            other.exec_driver_sql("UPDATE txstream_fence SET attempt = attempt")
            started = time.monotonic()
            with pytest.raises(
                FenceLockedError,
                match=r"raising the fence of topology 'words' waited for a lock",
            ):
                rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=0.2)
            assert time.monotonic() - started < 5
            other.rollback()
        engine.dispose()
        assert rig.fence() == 0
        rig.states.raise_fence(attempt_id(2, 0))

    def test_the_usual_lock_timeout_comes_back(self, rig: Rig) -> None:
        rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=0.2)
        query, usual = self.lock_timeout
        with rig.database.sessions.engine.connect() as connection:
            assert str(connection.exec_driver_sql(query).scalar_one()) == usual

    def test_a_frozen_writer_is_ended_and_writes_nothing(self, rig: Rig) -> None:
        """Hole 2 with a lock: a driver freezes inside its transaction. Its successor gets the fence when the
        server ends that transaction; woken, the driver is told, and writes nothing."""
        frozen_database = open_sql_database(rig.url, message_timeout_seconds=1.0)
        frozen = Rig(frozen_database, rig.url)
        inside, wake = threading.Event(), threading.Event()

        def freeze(_point: str) -> None:
            inside.set()
            assert wake.wait(PATIENCE_SECONDS)

        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(frozen.commit, 1, {"a": 1}, reached=freeze)
            try:
                assert inside.wait(PATIENCE_SECONDS)
                rig.states.raise_fence(attempt_id(2, 0))
                assert rig.fence() == attempt_id(2, 0)
            finally:
                wake.set()
            with pytest.raises(AnswerLostError):
                commit.result(PATIENCE_SECONDS)
        assert rig.rows() == []
        frozen_database.check()
        with pytest.raises(StaleAttemptError):
            frozen.commit(1, {"a": 1})
        assert (rig.rows(), rig.database.last_batch("words")) == ([], None)
        frozen_database.close()

    def test_a_session_ended_inside_a_commit(self, rig: Rig) -> None:
        lost = rig.next(1)
        with pytest.raises(AnswerLostError):
            rig.commit(1, {"a": 1}, under=lost, reached=lambda _: self.end_session(rig.url))
        assert rig.states.outcome(lost) is False


class ServerOutages(ServerFixtures):
    """Subclasses have a fixture `server`, a Server that a test may stop, and `url` is in it."""

    def freeze(self, url: str | None) -> contextlib.AbstractContextManager[object]:
        """While open, nothing answers: the session of this database that is in a transaction, or without a
        database whoever connects."""
        raise NotImplementedError

    def losing(self, url: str) -> contextlib.AbstractContextManager[tuple[str, AnswerLosingProxy]]:
        """A proxy before this database, and the database's URL through it."""
        raise NotImplementedError

    def test_restarted_while_nothing_was_going_on(
        self, rig: Rig, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection that was idle for long is asked first, so that no batch fails."""
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
            with pytest.raises(ServiceUnavailableError):  # the driver's own error is nobody's to expect
                leader.of("words", rig.uuid, Semantics.OPAQUE).raise_fence(
                    attempt_id(2, 0), lock_timeout_seconds=5
                )
        with pytest.raises(ServiceUnavailableError) as told:
            rig.commit(2, {"a": 1})
        assert not isinstance(told.value, AnswerLostError)  # COMMIT was never sent
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
        """It still holds the connection open, so nothing but a deadline of ours ends the wait."""
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


@contextlib.contextmanager
def closing(proxy: AnswerLosingProxy) -> Iterator[AnswerLosingProxy]:
    try:
        yield proxy
    finally:
        proxy.close()
