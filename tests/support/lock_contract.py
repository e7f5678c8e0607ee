"""What the fence's locks do in every SQL database, as far as two sessions can tell.

Subclasses have a fixture `url` with an empty database and say how a task takes the fence. Those of servers,
where two can write at once, have a fixture `is_waiting`: does a session of this database wait for a lock?
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa

from support.state_contract import StateFixtures
from support.states import Rig, attempt, word_table
from txstream.api.errors import ServiceUnavailableError, StaleAttemptError
from txstream.embedded.process import wait_until
from txstream.semantics import Semantics
from txstream.state import FenceLockedError, StateBackend, open_sql_database
from txstream.state.sql.transaction import SqlTransaction

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
PATIENCE_SECONDS = 30


class Held:
    """Tasks stop inside their transaction, after the fence, before their first delta."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = threading.Semaphore(0)
        self.go_on = threading.Event()
        write = SqlTransaction.write

        def wait_and_write(here: SqlTransaction, *arguments: Any) -> None:
            if threading.current_thread().name.startswith("task"):
                self.inside.release()
                assert self.go_on.wait(PATIENCE_SECONDS)
            write(here, *arguments)

        monkeypatch.setattr(SqlTransaction, "write", wait_and_write)

    def wait_for(self, tasks: int) -> None:
        for _ in range(tasks):
            assert self.inside.acquire(timeout=PATIENCE_SECONDS)


@contextmanager
def another(rig: Rig, message_timeout_seconds: float = 10.0) -> Iterator[Rig]:
    """The same topology through other connections."""
    database = open_sql_database(
        rig.url, connect_timeout_seconds=5.0, message_timeout_seconds=message_timeout_seconds
    )
    yield Rig(database, rig.url, rig.spec, rig.topology, rig.uuid, sequence=rig.sequence)
    database.close()


def tasks(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="task")


class LockContract(StateFixtures):
    """SQLite too, whose one lock is the whole file's."""

    begin: ClassVar[tuple[str, ...]] = ()  # statements that SQLAlchemy sends to begin a transaction
    share: ClassVar[str | tuple[str, ...]]  # how the statement ends by which a task takes the fence

    @pytest.fixture
    def held(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
        held = Held(monkeypatch)
        yield held
        held.go_on.set()

    @pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
    def test_the_fence_is_the_first_statement_of_every_transaction(
        self, database: StateBackend, url: str, semantics: Semantics
    ) -> None:
        """A plain read before it would see the ledger as it was before the fence's lock was granted."""
        rig = Rig(database, url, word_table(semantics=semantics)).join()
        engine = rig.database.sessions.engine
        transactions: list[list[str]] = [[]]

        def sends(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            transactions[-1].append(" ".join(statement.split()))

        sa.event.listen(engine, "before_cursor_execute", sends)
        sa.event.listen(engine, "commit", lambda _: transactions.append([]))
        rig.commit(1, {"a": 1})
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        rig.write(under, {"a": 1})
        rig.end(under)
        rig.states.raise_fence(attempt(1, 0, epoch=2).attempt)
        assert transactions.pop() == []
        first = [statements[len(self.begin)] for statements in transactions]
        assert [tuple(statements[: len(self.begin)]) for statements in transactions] == [self.begin] * 6
        raises = "UPDATE txstream_fence SET attempt="
        assert [statement.startswith(raises) for statement in first[:3]] == [True] * 3
        assert first[5].startswith(raises)
        for statement in first[3:5]:
            assert "txstream_fence" in statement
            assert statement.endswith(self.share), statement

    def test_nobody_raises_the_fence_while_a_task_writes(self, rig: Rig, held: Held) -> None:
        """Otherwise the new attempt would undo the batch first, and the task would write afterwards."""
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        with tasks(1) as pool, another(rig) as driver:
            share = pool.submit(rig.write, under, {"a": 5, "b": 5})
            held.wait_for(1)
            leader = attempt(2, 0, epoch=2).attempt
            with pytest.raises(FenceLockedError):
                driver.states.raise_fence(leader, lock_timeout_seconds=0.1)
            held.go_on.set()
            assert share.result(PATIENCE_SECONDS) == 2
            driver.commit(2, None)
            with pytest.raises(StaleAttemptError):
                rig.write(under, {"a": 5})
        assert rig.values() == {"a": 1}


class ServerLockContract(LockContract):
    """Where two sessions can write at once."""

    def set_default_isolation(self, url: str) -> None:
        """Make REPEATABLE READ what the server gives to sessions that do not say."""
        raise NotImplementedError

    def test_tasks_of_one_attempt_write_side_by_side(self, rig: Rig, held: Held) -> None:
        """The fence is taken in share mode."""
        under = rig.begin(1)
        with tasks(2) as pool:
            shares = [pool.submit(rig.write, under, {key: 1}) for key in "ab"]
            held.wait_for(2)
            held.go_on.set()
            assert [share.result(PATIENCE_SECONDS) for share in shares] == [1, 1]
        assert rig.values() == {"a": 1, "b": 1}

    @pytest.mark.parametrize("path", ["begin", "commit"])
    def test_whoever_waited_for_a_task_undoes_what_it_wrote(
        self, rig: Rig, held: Held, is_waiting: Callable[[], bool], path: str
    ) -> None:
        """Under REPEATABLE READ, the server's default here, it would see nothing of it, without an error."""
        self.set_default_isolation(rig.url)
        rig.commit(1, {"a": 1})
        under = rig.begin(2)
        with tasks(1) as pool, ThreadPoolExecutor(1) as later, another(rig) as driver:
            share = pool.submit(rig.write, under, {"a": 5, "b": 5})
            held.wait_for(1)
            again = driver.begin if path == "begin" else functools.partial(driver.commit, deltas=None)
            undone = later.submit(again, 2)
            assert wait_until(is_waiting, PATIENCE_SECONDS)
            held.go_on.set()
            assert share.result(PATIENCE_SECONDS) == 2
            undone.result(PATIENCE_SECONDS)
        assert rig.values() == {"a": 1}

    def test_isolation_is_set_whatever_the_servers_default_is(self, rig: Rig) -> None:
        self.set_default_isolation(rig.url)
        with another(rig) as fresh, fresh.database.sessions.engine.connect() as connection:
            assert connection.get_isolation_level() == "READ COMMITTED"

    def test_copies_of_a_share_do_not_deadlock(self, rig: Rig) -> None:
        """Keys are written in one order, whatever order they come in."""
        keys = [f"key{number:04}" for number in range(2000)]
        rig.commit(1, dict.fromkeys(keys, 1))
        for txid in range(2, 6):
            under = rig.begin(txid)
            with tasks(2) as pool:
                copies = [dict.fromkeys(order, 1) for order in (keys, keys[::-1])]
                shares = [pool.submit(rig.write, under, copy) for copy in copies]
                assert [share.result(PATIENCE_SECONDS) for share in shares] == [2000, 2000]
            rig.end(under)
        assert set(rig.values().values()) == {5}

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
        for txid in range(1, 5):
            under = first.begin(txid)
            with tasks(2) as pool:
                copies = [pool.submit(first.states.write, under, order) for order in (writes, writes[::-1])]
                assert [copy.result(PATIENCE_SECONDS) for copy in copies] == [4000, 4000]
            first.end(under)
        assert set(first.values().values()) == set(second.values().values()) == {4}

    def test_a_task_that_freezes_loses_its_transaction(self, rig: Rig, held: Held) -> None:
        """A lost executor that is frozen inside its transaction would hold the fence for ever. The server
        ends it before the topology's message timeout; woken, the task is told, and has written nothing."""
        with another(rig, message_timeout_seconds=2.0) as frozen, tasks(1) as pool:
            under = rig.begin(1)
            share = pool.submit(frozen.write, under, {"a": 1})
            held.wait_for(1)
            rig.commit(1, {"b": 1})  # which waits until then
            held.go_on.set()
            with pytest.raises(ServiceUnavailableError):
                share.result(PATIENCE_SECONDS)
        assert rig.values() == {"b": 1}
