"""State in SQLite: what only a file can do."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.lists import each
from support.states import Rig, word_table

from txstream.core.errors import (
    CorruptStateError,
    ServiceUnavailableError,
    StateTableError,
    UsageError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.plugins.local import sqlite
from txstream.state import AnswerLostError, BatchRecord, FenceLockedError, StateDatabase, open_database


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestFile:
    def test_every_commit_is_on_disk_before_it_is_acked(self, rig: Rig) -> None:
        """NORMAL would lose the last commits in a power failure, after ZooKeeper has advanced past them."""
        with rig.database.sessions.engine.connect() as connection:
            settings = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
                for name in ("journal_mode", "synchronous", "busy_timeout")
            }
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            assert driver.isolation_level is None  # no BEGIN but ours
        assert settings == {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 5000}

    def test_the_fence_is_the_first_statement_inside_of_the_transaction(self, rig: Rig) -> None:
        statements: list[str] = []
        with rig.database.sessions.engine.connect() as connection:
            driver = connection.connection.driver_connection
            assert isinstance(driver, sqlite3.Connection)
            driver.set_trace_callback(statements.append)
        rig.commit(1, {"a": 1})
        # What a statement runs within itself is told as a comment.
        sent = [statement for statement in statements if not statement.startswith("--")]
        assert [" ".join(statement.split()[:2]) for statement in sent] == [
            "BEGIN IMMEDIATE",
            "UPDATE txstream_fence",
            "SELECT txstream_batch.txid,",
            "INSERT INTO",
            "SELECT EXISTS",
            "INSERT INTO",
            "COMMIT",
        ]

    def test_readers_do_not_wait_for_a_writer(self, rig: Rig, url: str) -> None:
        rig.commit(1, {"a": 1})
        other = open_database(url, connect_timeout_seconds=0.1)
        seen: list[BatchRecord | None] = []
        rig.commit(2, {"a": 1}, reached=lambda _: seen.append(other.last_batch("words")))
        assert [row.txid for row in seen if row is not None] == [1]
        other.close()

    def test_a_writer_that_holds_the_lock_is_named(self, rig: Rig, url: str) -> None:
        """Nothing ends a frozen process's transaction here, so the message must say which process to end."""
        waiting = open_database(url, connect_timeout_seconds=0.2)
        with frozen_writer(url) as pid:
            with pytest.raises(FenceLockedError, match=rf"database is locked; held by process {pid} \(stopp"):
                waiting.of("words", rig.uuid, Semantics.OPAQUE).raise_fence(attempt_id(2, 0))
            with pytest.raises(FenceLockedError, match="waited for a lock"):
                rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=0.05)
        waiting.of("words", rig.uuid, Semantics.OPAQUE).raise_fence(attempt_id(2, 0))
        waiting.close()

    def test_a_driver_killed_inside_its_commit_leaves_nothing(self, rig: Rig, url: str) -> None:
        rig.commit(1, {"a": 1})
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=commit_and_die, args=(url,))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert rig.values() == {"a": 1}
        assert rig.last().txid == 1
        rig.epoch = 3
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2}

    def test_a_fork_has_connections_of_its_own(self, rig: Rig, url: str) -> None:
        """SQLite's locks belong to a process: over one connection, two may both think that they write."""
        rig.commit(1, {"a": 1})
        parents = open_files(url)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                rig.commit(2, {"a": 1})
                status = 0 if len(open_files(url) - parents) == 1 else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        rig.sequence += 1
        rig.commit(3, {"a": 1})
        assert rig.values() == {"a": 3}

    def test_check_creates_no_file(self, database: StateDatabase, url: str) -> None:
        database.check()
        assert database.topologies() == []
        assert not Path(url.removeprefix("sqlite:///")).exists()

    def test_a_new_file_that_another_session_writes_is_waited_for(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SQLite itself does not wait to turn on its log, as it does for other locks."""
        other = sqlite3.connect(str(sa.make_url(url).database), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite, "_pause", lambda: other.execute("ROLLBACK"))
        with contextlib.closing(open_database(url)) as database:
            assert database.topologies() == []
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite, "_pause", lambda: None)
        with (
            contextlib.closing(open_database(url, connect_timeout_seconds=0.01)) as database,
            pytest.raises(FenceLockedError, match="database is locked"),
        ):
            database.topologies()
        other.close()

    def test_tables_that_a_first_run_makes_while_somebody_looks(
        self, database: StateDatabase, url: str
    ) -> None:
        """The reader finds no table, and then asks why. By then the tables are there."""
        sqlite3.connect(url.removeprefix("sqlite:///")).close()

        def first_run(_: sa.engine.ExceptionContext) -> None:
            first = open_database(url)
            first.ensure_framework_tables()
            first.close()

        sa.event.listen(database.sessions.engine, "handle_error", first_run, once=True)
        assert database.oldest_txid("words") is None
        assert sa.inspect(sa.create_engine(url)).has_table("txstream_batch")

    def test_no_folder(self, tmp_path: Path) -> None:
        database = open_database(f"sqlite:///{tmp_path}/none/state.db")
        with pytest.raises(ServiceUnavailableError, match=r"no folder .*/none; create it, or set --database"):
            database.check()
        with pytest.raises(ServiceUnavailableError, match="unable to open database file"):
            database.ensure_framework_tables()

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_nothing_may_be_written(
        self, rig: Rig, url: str, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        path = Path(url.removeprefix("sqlite:///"))
        refused = path if what == "file" else path.parent
        # The tests may run as root, for whom nothing is read-only.
        monkeypatch.setattr(os, "access", lambda name, mode: Path(name) != refused)
        with pytest.raises(ServiceUnavailableError, match="cannot be written by this user"):
            rig.database.check()

    def test_a_file_that_is_no_database(self, database: StateDatabase, url: str) -> None:
        Path(url.removeprefix("sqlite:///")).write_bytes(b"This is no database. " * 100)
        with pytest.raises(CorruptStateError, match=r"is damaged.*file is not a database"):
            database.check()

    def test_more_columns_than_every_sqlite_has_parameters(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each row then goes alone, and SQLite itself refuses one that still has too many."""
        monkeypatch.setattr(sqlite, "_MOST_PARAMETERS", 1)
        rig.commit(1, {"a": 1, "b": 2})
        rig.commit(2, {"a": 1})
        assert rig.values() == {"a": 2, "b": 2}

    def test_a_full_disk(self, rig: Rig) -> None:
        with rig.database.sessions.engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ServiceUnavailableError, match="database or disk is full"):
            rig.commit(1, {f"{number}": 1 for number in range(10_000)})
        assert rig.rows() == []

    @pytest.mark.parametrize(
        ("moment", "error"), [("begin", ServiceUnavailableError), ("commit", AnswerLostError)]
    )
    def test_an_outage_at_commit_leaves_its_outcome_open(
        self, rig: Rig, moment: str, error: type[Exception]
    ) -> None:
        """Before the commit, nothing can have been committed."""

        def fails(_: object) -> None:
            failure = sqlite3.OperationalError("disk I/O error")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise failure

        sa.event.listen(rig.database.sessions.engine, moment, fails)
        with pytest.raises(ServiceUnavailableError, match="disk I/O error") as caught:
            rig.commit(1, {"a": 1})
        assert caught.type is error

    def test_decimals_are_text_of_their_scale(self, database: StateDatabase, url: str) -> None:
        """Whatever reads the table sees them as a person writes them. `top` still sorts them as numbers."""
        spec = word_table(key="k decimal(3,1)", value="n decimal(38,2)")
        rig = Rig(database, url, spec).join()
        rows = {Decimal(text): Decimal(text) for text in ("9.5", "-0.5", "10.0", "-10.0", "0.0")}
        rig.commit(1, rows)
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        stored = connection.execute("SELECT k, n, typeof(n) FROM word_count").fetchall()
        assert sorted(stored) == sorted((str(k), f"{k}0", "text") for k in rows)
        connection.close()
        greatest_first = [row["n"] for row in database.top("word_count", topology="words")]
        assert greatest_first == sorted(rows.values(), reverse=True)
        assert rig.join(first_run=False)

    def test_integers_stay_integers(self, rig: Rig, url: str) -> None:
        rig.commit(1, {"a": 2**62})
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute("UPDATE word_count SET n = n + n")  # the sum is a float
        connection.close()

    def test_names_differ_by_more_than_case(self, rig: Rig) -> None:
        """SQLite takes `Word_Count` for `word_count`, which is another topology's table."""
        with pytest.raises(StateTableError, match="exists and was not created"):
            Rig(rig.database, rig.url, word_table("Word_Count"), topology="other").join()


@each(
    ("url", "expected"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///file:x?mode=memory&uri=true", "in memory"),
        ("sqlite:///file:x?uri=true", "as a path"),
        (
            "oracle://me:hidden@host/db",
            r"me:\*\*\*@host/db: 'oracle' is not supported; known are mariadb, mysql",
        ),
        (
            "mysql+mysqldb://me:hidden@host/db",
            r"MariaDB is reached by mysql\+pymysql, which mysql alone means too",
        ),
        ("postgresql+psycopg2://me:hidden@host/db", r"PostgreSQL is reached by postgresql\+psycopg,"),
        ("not a url", "is not a SQLAlchemy URL; write for example sqlite:///"),
        ("postgresql://me:hidden@host:port/db", "is not a SQLAlchemy URL"),
    ],
)
def test_urls_that_cannot_be_used(url: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as told:
        open_database(url)
    assert "hidden" not in str(told.value)


def test_passwords_are_hidden() -> None:
    database = open_database("postgresql://me:hidden@host/db?password=hidden&sslmode=disable")
    assert database.display_url == "postgresql://me:***@host/db?password=%2A%2A%2A&sslmode=disable"


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ServiceUnavailableError, match=r"pip install 'txstream\[postgresql\]'"):
        open_database("postgresql://host/db")


def commit_and_die(url: str) -> None:
    rig = Rig(open_database(url), url, epoch=2)
    rig.commit(2, {"a": 1, "b": 1}, reached=lambda _: os.kill(os.getpid(), signal.SIGKILL))


def commit_and_freeze(url: str, ready: Connection) -> None:
    def freeze(_point: str) -> None:
        ready.send(os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)

    Rig(open_database(url), url).commit(1, {"a": 1}, reached=freeze)


class frozen_writer:  # noqa: N801 - used as `with frozen_writer(url) as pid`
    """A process that stopped inside its commit; it is killed at the end."""

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.ready, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=commit_and_freeze, args=(url, theirs))

    def __enter__(self) -> int:
        self.process.start()
        assert self.ready.poll(60)
        pid = int(self.ready.recv())
        os.waitpid(pid, os.WUNTRACED)  # returns when it has stopped
        return pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join(30)


def open_files(url: str) -> set[int]:
    """Return this process's file descriptors of the database."""
    path, found = Path(url.removeprefix("sqlite:///")).resolve(), set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone
            if descriptor.readlink() == path:
                found.add(int(descriptor.name))
    return found
