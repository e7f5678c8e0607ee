"""State in a real PostgreSQL: the contract, and what only a server can do."""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from postgres import PostgresServer
from support.cut import AnswerLosingProxy
from support.framework_contract import FrameworkContract
from support.growth_contract import GrowthContract
from support.reducer_contract import ReducerContract
from support.pruning_contract import PruningContract
from support.sql_contract import SqlStateContract
from support.state_contract import StateFixtures
from support.state_histories import histories, play
from support.states import Rig, word_table
from support.type_contract import AllTypesContract
from support.upgrade_contract import UpgradeContract
from support.value_rules import Runner, ValueRules, sql_runner

from txstream.api.errors import (
    ServiceUnavailableError,
    StaleAttemptError,
    StateTableError,
    StateValueError,
)
from txstream.api.reducers import Min, Sum
from txstream.semantics import Semantics
from txstream.state import (
    AnswerLostError,
    FenceLockedError,
    StateDatabase,
    database,
    open_database,
    open_sql_database,
)
from txstream.transaction import attempt_id

numbers = itertools.count()


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    return postgres


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.create_database(f"db{next(numbers)}")


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(host=str(server.data), user="postgres", autocommit=True) as connection:
        yield connection


def backend_of(rig: Rig) -> Callable[[], int]:
    """Tells the process that serves the rig's only connection, when asked inside of its transaction."""
    name = sa.make_url(rig.url).database
    query = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND state LIKE 'idle in tran%%'"

    def find() -> int:
        with psycopg.connect(host=host_of(rig.url), user="postgres", autocommit=True) as connection:
            row = connection.execute(query, (name,)).fetchone()
            assert row is not None
            return int(row[0])

    return find


def host_of(url: str) -> str:
    return str(sa.make_url(url).query["host"])


class TestContract(SqlStateContract):
    pass


class TestEveryType(AllTypesContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def url(server: PostgresServer) -> str:
        return server.create_database("types")


class TestEveryReducer(ReducerContract):
    @pytest.fixture(scope="class")
    @staticmethod
    def url(server: PostgresServer) -> str:
        return server.create_database("reducers")


class TestFramework(FrameworkContract):
    pass


class TestUpgrades(UpgradeContract):
    pass


class TestGrowth(GrowthContract):
    pass


class TestPruning(PruningContract):
    pass


class TestValueRules(ValueRules):
    @pytest.fixture
    def run(self, url: str) -> Iterator[Runner]:
        database = open_database(url)
        yield sql_runner(database, url)
        database.close()


class TestTypes(StateFixtures):
    def test_decimals_are_exact(self, database: StateDatabase, url: str) -> None:
        spec = word_table(
            key="k decimal(4,2)",
            value="n decimal(10,2), least decimal(38,10)",
            reducers={"n": Sum("n"), "least": Min("x")},
        )
        rig = Rig(database, url, spec).join()
        one = Decimal("0.10")
        rig.commit(1, {one: (one, Decimal("-9999999999999999999999999999.0000000001"))})
        for txid in (2, 3):
            rig.commit(txid, {one: (one, Decimal(0))})
        assert rig.values() == {one: (Decimal("0.30"), Decimal("-9999999999999999999999999999.0000000001"))}
        with pytest.raises(StateValueError, match=r"key k=Decimal\('0.10'\): column 'n' \(decimal\(10,2\)\)"):
            rig.commit(4, {one: (Decimal("99999999.99"), Decimal(0))})
        assert rig.join(first_run=False)

    def test_sum_beyond_the_largest_float(self, database: StateDatabase, url: str) -> None:
        rig = Rig(database, url, word_table(value="n double")).join()
        rig.commit(1, {"a": 1.7e308})
        with pytest.raises(StateValueError, match=r"key word='a': column 'n' \(double\) cannot hold"):
            rig.commit(2, {"a": 1.7e308})

    def test_a_key_too_long_for_an_index(self, rig: Rig) -> None:
        noise = random.Random(1)
        key = "".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(4000))
        with pytest.raises(StateValueError, match=r"table 'word_count': a key has 12000 bytes.*index row"):
            rig.commit(1, {key: 1})

    def test_a_name_too_long(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match=r"exceeds maximum length of 63.*shorter name"):
            Rig(database, url, word_table("t" * 64)).join()

    def test_room_for_updates_in_each_page(self, rig: Rig, admin: psycopg.Connection[Any]) -> None:
        engine = sa.create_engine(rig.url)
        with engine.connect() as connection:
            query = sa.text("SELECT reloptions FROM pg_class WHERE relname = 'word_count'")
            assert connection.execute(query).scalar_one() == ["fillfactor=50"]
        engine.dispose()


class TestArrayLiterals(StateFixtures):
    """PostgreSQL reads back exactly what was written, whatever the text."""

    @pytest.fixture(scope="class")
    @staticmethod
    def shared(server: PostgresServer) -> Iterator[Rig]:
        url = server.create_database("literals")
        database = open_database(url)
        yield Rig(
            database,
            url,
            word_table(
                key="word string, raw binary",
                value="n bigint, x double",
                reducers={"n": Sum("n"), "x": Min("x")},
            ),
        ).join()
        database.close()

    texts = st.text(
        st.one_of(
            st.sampled_from("\"\\{},' NULLnull\t\r\n\x01\x7f\u2028\ufeff\U0010ffff"),
            st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        ),
        max_size=12,
    )

    @given(
        rows=st.dictionaries(
            st.tuples(texts, st.binary(max_size=6)),
            st.tuples(st.integers(-(2**62), 2**62), st.floats(allow_nan=False)),
            max_size=20,
        )
    )
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_anything_is_read_back_as_it_was_written(self, shared: Rig, rows: dict[Any, Any]) -> None:
        shared.commit(shared.sequence + 1, None)
        txid = shared.sequence + 1
        shared.commit(txid, rows)
        assert shared.values() == rows
        shared.commit(txid, None)  # a replay without them, so that the table is empty again
        assert shared.rows() == []


class TestHistories:
    @pytest.fixture(scope="class")
    @staticmethod
    def at(server: PostgresServer) -> Iterator[tuple[StateDatabase, str]]:
        url = server.create_database("histories")
        database = open_sql_database(url)
        yield database, url
        database.close()

    @pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
    @given(data=st.data())
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_history_gives_what_its_committed_attempts_held(
        self, at: tuple[StateDatabase, str], semantics: Semantics, data: st.DataObject
    ) -> None:
        play(*at, str(next(numbers)), semantics, data.draw(histories(semantics)))


class TestLocks(StateFixtures):
    def test_statements_of_a_small_commit(self, rig: Rig) -> None:
        """Each is a round trip; BEGIN and COMMIT come on top."""
        rig.commit(1, {"a": 1})
        statements: list[str] = []
        sa.event.listen(
            rig.database._engine,
            "before_cursor_execute",
            lambda conn, cursor, statement, *_: statements.append(" ".join(statement.split()[:3])),
        )
        rig.commit(2, {f"{key}": 1 for key in range(10)})
        assert [statement.split(" (")[0] for statement in statements] == [
            "UPDATE txstream_fence SET",
            "SELECT EXISTS",
            "INSERT INTO word_count",
            "INSERT INTO txstream_batch",
        ]

    def test_restore_sees_what_the_transaction_committed_that_it_waited_for(
        self, rig: Rig, admin: psycopg.Connection[Any]
    ) -> None:
        """Attempt 2 waits at the fence while attempt 1 of the same txid commits {x, y}; it must undo that.
        The server's default is REPEATABLE READ, under which it would restore nothing, without an error."""
        name = sa.make_url(rig.url).database
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_isolation = "repeatable read"')
        first = open_database(rig.url)
        inside, go_on = threading.Event(), threading.Event()

        def hold(_point: str) -> None:
            inside.set()
            assert go_on.wait(30)

        slow = Rig(first, rig.url)
        fast = Rig(open_database(rig.url), rig.url, sequence=1)
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(slow.commit, 5, {"x": 1, "y": 1}, reached=hold)
            assert inside.wait(30)
            two = pool.submit(fast.commit, 5, {"x": 1})
            wait_until_somebody_waits_for_a_lock(admin, name)
            go_on.set()
            one.result(30)
            two.result(30)
        first.close()
        fast.database.close()
        assert rig.values() == {"x": 1}

    def test_a_lock_that_stays_is_told(self, rig: Rig) -> None:
        """Somebody's session without our timeouts."""
        with psycopg.connect(rig.url.replace("+psycopg", ""), autocommit=False) as other:
            other.execute("UPDATE txstream_fence SET attempt = attempt")
            started = time.monotonic()
            with pytest.raises(
                FenceLockedError,
                match=r"raising the fence of topology 'words' waited for a lock",
            ):
                rig.database.raise_fence("words", rig.uuid, attempt_id(2, 0), lock_timeout_seconds=0.2)
            assert time.monotonic() - started < 5
            other.rollback()
        assert rig.fence() == 0
        rig.database.raise_fence("words", rig.uuid, attempt_id(2, 0))

    def test_the_usual_lock_timeout_comes_back(self, rig: Rig) -> None:
        rig.database.raise_fence("words", rig.uuid, attempt_id(2, 0), lock_timeout_seconds=0.2)
        with rig.database._engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW lock_timeout").scalar_one() == "10s"

    def test_a_frozen_writer_is_ended_and_writes_nothing(self, rig: Rig) -> None:
        """Hole 2 with a lock: a driver freezes inside its transaction. Its successor gets the fence when the
        server ends that transaction; woken, the driver is told, and writes nothing."""
        frozen_database = open_database(rig.url, message_timeout_seconds=1.0)
        frozen = Rig(frozen_database, rig.url)
        inside, wake = threading.Event(), threading.Event()

        def freeze(_point: str) -> None:
            inside.set()
            assert wake.wait(30)

        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(frozen.commit, 1, {"a": 1}, reached=freeze)
            assert inside.wait(30)
            rig.database.raise_fence("words", rig.uuid, attempt_id(2, 0))
            assert rig.fence() == attempt_id(2, 0)
            wake.set()
            with pytest.raises(AnswerLostError):
                commit.result(30)
        assert rig.rows() == []
        frozen_database.check()
        with pytest.raises(StaleAttemptError):
            frozen.commit(1, {"a": 1})
        assert (rig.rows(), rig.database.last_batch("words")) == ([], None)
        frozen_database.close()


class TestOutages(StateFixtures):
    @pytest.fixture
    def server(self, own_postgres: PostgresServer) -> PostgresServer:
        return own_postgres

    def test_restarted_while_nothing_was_going_on(
        self, rig: Rig, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A connection that was idle for long is asked first, so that no batch fails."""
        monkeypatch.setattr(database, "_PING_AFTER_IDLE_SECONDS", 0.0)
        rig.commit(1, {"a": 1})
        server.stop()
        server.start()
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_away_between_two_batches(self, rig: Rig, server: PostgresServer) -> None:
        rig.commit(1, {"a": 1})
        server.stop()
        with pytest.raises(ServiceUnavailableError) as told:
            rig.commit(2, {"a": 1})
        assert not isinstance(told.value, AnswerLostError)  # COMMIT was never sent
        with pytest.raises(ServiceUnavailableError, match="set --database / TXSTREAM_DATABASE"):
            rig.database.check()
        server.start()
        rig.database.check()
        assert rig.database.outcome("words", rig.next(2)) is False
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_killed_inside_a_commit(self, rig: Rig, server: PostgresServer) -> None:
        rig.commit(1, {"a": 1})
        lost = rig.next(2)
        with pytest.raises(AnswerLostError, match=r"txid 2 attempt 1\.2 was being committed"):
            rig.commit(2, {"a": 1, "b": 1}, under=lost, reached=lambda _: server.stop())
        server.start()
        rig.database.check()
        assert rig.database.outcome("words", lost) is False
        assert rig.values() == {"a": 1}
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_session_ended_inside_a_commit(self, rig: Rig, admin: psycopg.Connection[Any]) -> None:
        find = backend_of(rig)
        lost = rig.next(1)

        def end_session(_point: str) -> None:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", (find(),))

        with pytest.raises(AnswerLostError):
            rig.commit(1, {"a": 1}, under=lost, reached=end_session)
        assert rig.database.outcome("words", lost) is False

    def test_committed_but_the_answer_was_lost(self, rig: Rig, server: PostgresServer) -> None:
        with tempfile.TemporaryDirectory(prefix="txs") as directory:
            proxy = AnswerLosingProxy(server.data, Path(directory))
            name = sa.make_url(rig.url).database
            through = open_database(f"postgresql://postgres@/{name}?host={directory}")
            behind = Rig(through, rig.url)
            behind.commit(1, {"a": 1})
            proxy.lose_next_commit()
            lost = behind.next(2)
            with pytest.raises(AnswerLostError):
                behind.commit(2, {"a": 1}, under=lost)
            assert proxy.lost.wait(10)
            through.check()
            assert through.outcome("words", lost) is True
            assert rig.values() == {"a": 2}
            with pytest.raises(StaleAttemptError, match="already been used"):
                behind.commit(2, {"a": 1}, under=lost)
            assert rig.values() == {"a": 2}
            through.close()
            proxy.close()

    def test_a_server_that_freezes_is_given_up(self, rig: Rig) -> None:
        """It still holds the connection open, so nothing but a deadline of ours ends the wait."""
        impatient = open_database(rig.url, message_timeout_seconds=1.0)
        impatient._dialect.silence_seconds = 1.0  # type: ignore[attr-defined]  # its usual is 10 s more
        frozen: list[int] = []
        find = backend_of(rig)

        def freeze(_point: str) -> None:
            frozen.append(find())
            os.kill(frozen[0], signal.SIGSTOP)

        try:
            lost = rig.next(1)
            with pytest.raises(AnswerLostError, match="the server did not answer for 1 s"):
                Rig(impatient, rig.url).commit(1, {"a": 1}, under=lost, reached=freeze)
        finally:
            os.kill(frozen[0], signal.SIGCONT)
        # Awake, the server carries out the COMMIT that was sent. The next attempt waits for it and undoes it.
        rig.commit(1, {"b": 1})
        assert rig.values() == {"b": 1}
        impatient.close()

    def test_a_frozen_server_is_not_ready(self, server: PostgresServer) -> None:
        (postmaster, *_) = (server.data / "postmaster.pid").read_text().split()
        waiting = open_database(server.url(), connect_timeout_seconds=2.0)
        os.kill(int(postmaster), signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(ServiceUnavailableError, match="timeout"):
                waiting.check()
            assert time.monotonic() - started < 10
        finally:
            os.kill(int(postmaster), signal.SIGCONT)
        waiting.check()
        waiting.close()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:hidden@127.0.0.1:1/db", "refused"),
        ("postgresql://me:hidden@127.0.0.1:1/db?connect_timeout=3", "refused"),
        ("postgresql:///db?host=/nowhere", "No such file or directory"),
    ],
)
def test_unreachable(url: str, expected: str) -> None:
    unreachable = open_database(url, connect_timeout_seconds=3.0)
    with pytest.raises(ServiceUnavailableError, match=f"{expected}.*start or repair it, or set") as told:
        unreachable.check()
    assert "hidden" not in str(told.value)
    assert "\n" not in str(told.value)


def test_a_database_that_does_not_exist(server: PostgresServer) -> None:
    with pytest.raises(ServiceUnavailableError, match='"nowhere" does not exist'):
        open_database(server.url("nowhere")).check()


def test_an_account_without_rights(server: PostgresServer, admin: psycopg.Connection[Any], url: str) -> None:
    admin.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    guest = open_database(url.replace("postgres@", "guest@"))
    guest.check()
    with pytest.raises(StateTableError, match=r"does not allow creating txstream's.*permission denied"):
        guest.ensure_framework_tables()
    guest.close()


def wait_until_somebody_waits_for_a_lock(admin: psycopg.Connection[Any], name: str | None) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
    patience = threading.Event()
    for _ in range(600):
        row = admin.execute(waiting, (name,)).fetchone()
        if row is not None and row[0]:
            return
        patience.wait(0.05)
    raise AssertionError("nobody waits for a lock")
