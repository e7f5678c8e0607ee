"""Locks of a PostgreSQL, between sessions that write at once, freeze or are ended.

`ServerLocks` is a suite for every server; the tests of MariaDB and MySQL run it too.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support import postgres_tools
from support.held_locks import PATIENCE_SECONDS, Held, another, tasks
from support.server_databases import new_database
from support.states import Rig, word_table
from support.tables import execute
from unit import test_sql_locks

from txstream.core.errors import ServiceUnavailableError, StaleAttemptError, StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.core.waits import wait_until
from txstream.state import AnswerLostError, FenceLockedError, StateBackend, open_sql_database
from txstream.state.sql import postgresql
from txstream.state.sql.postgresql import PostgreSQLDialect

OPAQUE = Semantics.OPAQUE


class ServerLocks(test_sql_locks.TestLocks):
    """For servers where two sessions can write at once, and whose default is REPEATABLE READ."""

    begin = ()
    proofs: ClassVar[tuple[str, ...]] = ()
    """What a commit asks beside what it writes, to prove that all of it is there."""
    lock_timeout: ClassVar[tuple[str, str]]
    """The query for a session's lock timeout, and its answer with a message timeout of ten seconds."""

    def waiting(self, url: str) -> int:
        """Return how many sessions of this database wait for a lock."""
        raise NotImplementedError

    def end_session(self, url: str) -> None:
        """End the session of this database that is in a transaction; return when it has ended."""
        raise NotImplementedError

    # --- tasks ----------------------------------------------------------------------------------------

    def test_tasks_of_one_attempt_write_side_by_side(self, rig: Rig, held: Held) -> None:
        """They can because they take the fence in share mode."""
        under = rig.begin(1)
        with tasks(2) as pool:
            shares = [pool.submit(rig.write, under, {key: 1}) for key in "ab"]
            held.wait_for(2)
            held.go_on.set()
            assert [share.result(PATIENCE_SECONDS) for share in shares] == [1, 1]
        assert rig.values() == {"a": 1, "b": 1}

    @pytest.mark.parametrize("path", ["begin", "commit"])
    def test_whoever_waited_for_a_task_undoes_what_it_wrote(self, rig: Rig, held: Held, path: str) -> None:
        """Under REPEATABLE READ, the server's default here, the undo would see nothing and raise no error."""
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        with tasks(1) as pool, ThreadPoolExecutor(1) as later, another(rig) as driver:
            share = pool.submit(rig.write, under, {"a": 5, "b": 5})
            held.wait_for(1)
            again = driver.begin if path == "begin" else functools.partial(driver.commit, deltas=None)
            undone = later.submit(again, 2)
            assert wait_until(lambda: self.waiting(rig.url) > 0, PATIENCE_SECONDS)
            held.go_on.set()
            assert share.result(PATIENCE_SECONDS) == 2
            undone.result(PATIENCE_SECONDS)
        assert rig.values() == {"a": 1}

    def test_a_commit_sees_what_was_committed_while_it_waited(self, rig: Rig, held: Held) -> None:
        """The ledger's row of the attempt that held the fence says that there is something to undo."""
        rig.commit(1, {"a": 1})
        with tasks(1) as pool, ThreadPoolExecutor(1) as later:
            earlier = pool.submit(rig.commit, 2, {"a": 5, "b": 5})
            held.wait_for(1)
            with another(rig) as driver:
                again = later.submit(driver.commit, 2, {"a": 2})
                assert wait_until(lambda: self.waiting(rig.url) > 0, PATIENCE_SECONDS)
                held.go_on.set()
                earlier.result(PATIENCE_SECONDS)
                again.result(PATIENCE_SECONDS)
        assert rig.values() == {"a": 3}

    def test_isolation_is_set_whatever_the_servers_default_is(self, rig: Rig) -> None:
        with another(rig) as fresh, fresh.database.sessions.engine.connect() as connection:
            assert connection.get_isolation_level() == "READ COMMITTED"

    def test_copies_of_a_share_do_not_deadlock(self, rig: Rig) -> None:
        """Keys are written in one order, whatever order they come in: else each would have half of them when
        it waits for the one in the middle."""
        keys = [f"key{number:04}" for number in range(2000)]
        rig.commit(1, dict.fromkeys(keys, 1))
        under = rig.begin(2)
        with tasks(2) as pool:
            with self.middle_held(rig.url, "word_count"):
                copies = [dict.fromkeys(order, 1) for order in (keys, keys[::-1])]
                shares = [pool.submit(rig.write, under, copy) for copy in copies]
                assert wait_until(lambda: self.waiting(rig.url) == 2, PATIENCE_SECONDS)
            assert [share.result(PATIENCE_SECONDS) for share in shares] == [2000, 2000]
        rig.end(under)
        assert set(rig.values().values()) == {2}

    def test_copies_of_a_share_of_several_tables_do_not_deadlock(
        self, database: StateBackend, url: str
    ) -> None:
        """Tables are written in one order too."""
        specs = [word_table(name) for name in ("first", "second")]
        first, second = (Rig(database, url, spec) for spec in specs)
        first.join()
        database.of(first.topology, first.uuid, OPAQUE, specs).join(first_run=True)
        keys = [f"key{number:04}" for number in range(2000)]
        writes = [(rig.spec, rig.table_of(dict.fromkeys(keys, 1))) for rig in (first, second)]
        under = first.begin(1)
        assert first.states.write(under, writes) == 4000
        first.end(under)
        under = first.begin(2)
        with tasks(2) as pool:
            with self.middle_held(url, "first", "second"):
                copies = [pool.submit(first.states.write, under, order) for order in (writes, writes[::-1])]
                assert wait_until(lambda: self.waiting(url) == 2, PATIENCE_SECONDS)
            assert [copy.result(PATIENCE_SECONDS) for copy in copies] == [4000, 4000]
        first.end(under)
        assert set(first.values().values()) == set(second.values().values()) == {2}

    @staticmethod
    @contextlib.contextmanager
    def middle_held(url: str, *tables: str) -> Iterator[None]:
        """Hold the row of the key in the middle, until it is certain that both wait."""
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            for table in tables:
                connection.execute(sa.text(f"SELECT n FROM {table} WHERE word = 'key1000' FOR UPDATE"))
            yield
        engine.dispose()

    def test_a_task_that_freezes_loses_its_transaction(self, rig: Rig, held: Held) -> None:
        """A lost executor that is frozen inside its transaction would hold the fence for ever. The server
        ends it before the topology's message timeout. Woken, the task gets an error; it wrote nothing."""
        with another(rig, message_timeout_seconds=2.0) as frozen, tasks(1) as pool:
            under = rig.begin(1)
            share = pool.submit(frozen.write, under, {"a": 1})
            held.wait_for(1)
            rig.commit(1, {"b": 1})  # waits until that has happened
            held.go_on.set()
            with pytest.raises(ServiceUnavailableError):
                share.result(PATIENCE_SECONDS)
        assert rig.values() == {"b": 1}

    # --- drivers --------------------------------------------------------------------------------------

    def test_statements_of_a_small_commit(self, rig: Rig) -> None:
        """Each is a round trip, or goes with the one before. BEGIN goes with the first; COMMIT is extra."""
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
            "SELECT txstream_batch.txid, txstream_batch.status,",
            "INSERT INTO word_count",
            *self.proofs,
            "INSERT INTO txstream_batch",
        ]

    def test_restore_sees_what_the_transaction_committed_that_it_waited_for(self, rig: Rig) -> None:
        """Attempt 2 waits at the fence while attempt 1 of the same txid commits {x, y}; it must undo that.
        Under the server's default, REPEATABLE READ, it would restore nothing and raise no error."""
        first, second = open_sql_database(rig.url), open_sql_database(rig.url)
        inside, go_on = threading.Event(), threading.Event()

        def hold(_point: str) -> None:
            inside.set()
            assert go_on.wait(PATIENCE_SECONDS)

        slow, fast = Rig(first, rig.url), Rig(second, rig.url, sequence=1)
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(slow.commit, 1, {"x": 1, "y": 1}, reached=hold)
            assert inside.wait(PATIENCE_SECONDS)
            two = pool.submit(fast.commit, 1, {"x": 1})
            try:
                assert wait_until(lambda: self.waiting(rig.url) > 0, PATIENCE_SECONDS)
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
                assert wait_until(lambda: self.waiting(rig.url) > 0, PATIENCE_SECONDS)
            finally:
                go_on.set()
            one.result(PATIENCE_SECONDS)
            two.result(PATIENCE_SECONDS)
            assert slow.values() == {"new": 110, "there": 111}

    def test_a_lock_that_stays_is_told(self, rig: Rig) -> None:
        """The lock is held by somebody else's session, which has none of our timeouts."""
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
        server ends that transaction. Woken, the driver gets an error and writes nothing."""
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


class TestLocks(ServerLocks):
    share = "FOR SHARE"
    proofs = ("SELECT relhastriggers FROM",)  # a trigger may have taken a row
    lock_timeout = ("SHOW lock_timeout", "10s")

    @pytest.fixture
    def url(self, postgres: PostgresServer) -> str:
        url = new_database(postgres)
        name = sa.make_url(url).database
        execute(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
        return url

    def test_a_transaction_begins_with_fence_and_ledger_in_one_message(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun: list[Any] = []
        begin_with = PostgreSQLDialect.begin_with

        def noting(*given: Any) -> Any:
            begun.append(begin_with(*given))
            return begun[-1]

        monkeypatch.setattr(PostgreSQLDialect, "begin_with", noting)
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        assert begun == [(1, []), (1, [["1", "committed", str(under.attempt - 1)]])]

    def test_a_trigger_is_asked_for_in_the_message_that_writes(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody has just made one, and the write waits for the table until its maker commits."""
        messages: list[str] = []
        encoded = postgresql._texts

        def noting(*given: Any) -> Any:
            messages.append("; ".join(texts := [*encoded(*given)]))
            return texts

        monkeypatch.setattr(postgresql, "_texts", noting)
        rig.commit(1, {"a": 1})
        assert re.search(
            r'^INSERT INTO "word_count" .*; SELECT relhastriggers [^;]*$', messages[-1], re.DOTALL
        )
        engine = sa.create_engine(rig.url)
        with ThreadPoolExecutor(1) as pool:
            with engine.begin() as maker:
                maker.exec_driver_sql(
                    "CREATE FUNCTION loses() RETURNS trigger LANGUAGE plpgsql AS "
                    "'BEGIN DELETE FROM word_count WHERE word = NEW.word; RETURN NULL; END'; "
                    "CREATE TRIGGER loses AFTER INSERT ON word_count FOR EACH ROW EXECUTE FUNCTION loses()"
                )
                write = pool.submit(rig.commit, 2, {"lost": 1})
                assert wait_until(lambda: self.waiting(rig.url) > 0, PATIENCE_SECONDS)
            with pytest.raises(StateTableError, match="1 of them"):
                write.result(PATIENCE_SECONDS)
        engine.dispose()
        assert rig.values() == {"a": 1}

    def waiting(self, url: str) -> int:
        return len(postgres_tools.sessions(url, "wait_event_type = 'Lock'"))

    def end_session(self, url: str) -> None:
        with postgres_tools.administrator(url) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (postgres_tools.busy_backend(url),))
