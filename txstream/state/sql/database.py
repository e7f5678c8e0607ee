"""`StateDatabase`: a SQL database as a `StateBackend`.

Thread-safe: every call has its own transaction (`sessions`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import (
    CorruptStateError,
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
    TxstreamError,
)
from txstream.dead_letters import LetterKey
from txstream.state.backend import StateBackend
from txstream.state.dead_letters import StoredDeadLetter
from txstream.state.records import BatchRecord, FenceRow, TableSpec, TopologyLife
from txstream.state.sql import (
    dead_letters,
    fence,
    framework_revisions as revisions,
    ledger,
    tables as state_tables,
)
from txstream.state.sql.adapter import PreparedStatements, SqlTransaction
from txstream.state.sql.framework_tables import (
    batch as batch_table,
    dead_letter as dead_letter_table,
    fence as fence_table,
)
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.sql_reading import SqlStateReading
from txstream.state.sql.urls import dialect_of
from txstream.transaction import AttemptId, Txid

T = TypeVar("T")


class StateDatabase(StateBackend):
    """One SQL database that holds state tables, their fence and their ledger.

    `connect_timeout_seconds` limits the time to reach it. `message_timeout_seconds` is the topology's: the
    server ends a transaction that is idle for half of it, and a server that is silent for longer is given up.
    Raises UsageError for a URL that cannot be used, ServiceUnavailableError when its driver is missing.
    """

    keeps_dead_letters: ClassVar[bool] = True

    def __init__(
        self, url: str, *, connect_timeout_seconds: float = 10.0, message_timeout_seconds: float = 30.0
    ) -> None:
        self._dialect = dialect_of(url, connect_timeout_seconds, message_timeout_seconds)
        self.sessions = Sessions(self._dialect)
        self.display_url = self.sessions.display_url
        self._statements = PreparedStatements(self.sessions)

    # --- at start -----------------------------------------------------------------------------------

    def check(self) -> None:
        self._dialect.check()
        if self._dialect.is_there():
            seconds = self._dialect.connect_timeout_seconds
            with self.sessions.reading("a first question", seconds) as connection:
                connection.execute(select(1))

    def place(self) -> str | None:
        if not self._dialect.is_there():
            return None
        try:
            with self.sessions.reading("which place it is") as connection:
                return self._dialect.place(connection)
        except (ServiceUnavailableError, CorruptStateError):
            raise
        except TxstreamError:
            return None  # a server without these functions, or an account that may not call them

    def ensure_framework_tables(self) -> None:
        """Create the framework's tables where there are none. Raises SchemaRevisionError for a revision that
        is not this txstream's; it names the command or the txstream version that would help."""
        with self.sessions.reading("its revision") as connection:
            revision = revisions.read_revision(connection, self.display_url)
        if revision is not None:
            revisions.refuse_other_revision(revision, self.display_url)
            return
        with self.sessions.writing("creating txstream's tables") as (connection, _):
            self._dialect.lock_definitions(connection)
            revisions.create_or_check(connection, self.display_url)

    def upgrade(self) -> tuple[str | None, str]:
        """Upgrade the framework's tables to this txstream's revision. Returns (from, to); `from` is None when
        there were no tables."""
        with self.sessions.writing("upgrading txstream's tables") as (connection, _):
            self._dialect.lock_definitions(connection)
            return revisions.upgrade(connection, self.display_url)

    def upgrade_sql(self) -> tuple[str | None, str, str]:
        """Return (from, to, SQL): what `upgrade` would return and the statements it would run. Changes
        nothing."""
        with self.sessions.reading("its revision") as connection:
            return revisions.upgrade_sql(connection, self.display_url)

    def join(self, life: TopologyLife, *, first_run: bool, identity: Mapping[str, Any] | None = None) -> None:
        with self.sessions.writing(f"topology {life.topology!r} joining") as (connection, _):
            self._dialect.lock_definitions(connection)
            fence.join(connection, self.display_url, life, first_run=first_run, identity=identity)
            # A database that commits each CREATE by itself cannot undo the first tables when a later one is
            # refused, so there all tables are checked before the first is created.
            for check_only in (True, False) if revisions.commits_each_step(connection) else (False,):
                for spec in life.tables:
                    state_tables.join_table(
                        connection, self._dialect, life, spec, first_run=first_run, check_only=check_only
                    )

    def check_join(self, life: TopologyLife, *, first_run: bool) -> None:
        with self.sessions.reading(f"the tables of topology {life.topology!r}") as connection:
            revision = revisions.read_revision(connection, self.display_url)
            if revision is None:  # nothing here can be ours
                for spec in life.tables:
                    state_tables.refuse_foreign(connection, life, spec)
                return
            revisions.refuse_other_revision(revision, self.display_url)
            fence.check_join(connection, self.display_url, life, first_run=first_run)
            for spec in life.tables:
                state_tables.join_table(
                    connection, self._dialect, life, spec, first_run=first_run, check_only=True
                )

    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        with self.sessions.reading(f"the tables of topology {life.topology!r}") as connection:
            due = [spec for spec in life.tables if state_tables.changes_due(connection, spec, unfinished)]
        if not due:
            return []
        done: list[str] = []
        doing = f"changing tables of topology {life.topology!r}"
        with self.sessions.writing(doing, patient=True) as (connection, _):
            fence.require(connection, self.sessions, life, attempt)
            self._dialect.lock_definitions(connection)
            for spec in due:
                changes = state_tables.migrate_table(connection, self._dialect, spec, unfinished)
                done += [f"{spec.state.table}: {change}" for change in changes]
        return done

    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        with self.sessions.writing(f"topology {life.topology!r} joining") as (connection, _):
            fence.require(connection, self.sessions, life, attempt)
            self._statements.ledger.begin(connection, last)

    def keep_identity(self, life: TopologyLife, attempt: AttemptId, identity: Mapping[str, Any]) -> None:
        with self.sessions.writing(f"keeping the identity of topology {life.topology!r}") as (connection, _):
            fence.keep(connection, self.display_url, life, attempt, identity)

    # --- the commit ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def begin(
        self,
        life: TopologyLife,
        doing: str,
        *,
        alone: bool = True,
        lock_timeout_seconds: float | None = None,
    ) -> Iterator[SqlTransaction]:
        """See `StateBackend.begin`. The error for a value that the database refuses names the value.

        The database ends a frozen writer before this call stops waiting for it. SQLite cannot do that; its
        message names the process.
        """
        here: SqlTransaction | None = None
        try:
            with self.sessions.writing(doing, lock_timeout_seconds=lock_timeout_seconds) as begun:
                here = SqlTransaction(life, self._statements, *begun)
                yield here
        except StateValueError as refused:
            if here is None or not isinstance(refused.__cause__, DBAPIError):
                raise
            raise here.explained(refused) from refused.__cause__

    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        return self._statements.of(spec).prepare(deltas)

    # --- the fence ----------------------------------------------------------------------------------

    def read_fence(self, topology: str) -> FenceRow | None:
        return self._read("the fence", lambda connection: fence.read(connection, topology), None)

    def topologies(self) -> list[FenceRow]:
        return self._read("its topologies", fence.read_all, [])

    # --- the ledger ---------------------------------------------------------------------------------

    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        return self._read("the ledger", lambda connection: ledger.read_one(connection, topology, txid), None)

    def batches(self, topology: str, *, limit: int | None = None) -> list[BatchRecord]:
        return self._read("the ledger", lambda connection: ledger.read_last(connection, topology, limit), [])

    def oldest_txid(self, topology: str) -> Txid | None:
        return self._read("the ledger", lambda connection: ledger.oldest(connection, topology), None)

    def prune(
        self, topology: str, *, committed_before: datetime | None, newest: int | None, rows: int
    ) -> int:
        # What may go is read beforehand, so that only the deletion blocks other writers (in SQLite, all).
        with self.sessions.reading("the age of its ledger") as connection:
            last = ledger.last_to_prune(connection, topology, committed_before, newest, rows)
        if last is None:
            return 0
        with self.sessions.writing("pruning its ledger") as (connection, _):
            return ledger.prune(connection, topology, last)

    # --- dead letters -------------------------------------------------------------------------------

    def dead_letters(
        self, topology: str, *, whole: bool = True, key: LetterKey | None = None
    ) -> list[StoredDeadLetter]:
        read = dead_letters.read
        return self._read(
            "the dead letters", lambda connection: read(connection, topology, whole=whole, key=key), []
        )

    def dead_letter_counts(self, topology: str) -> dict[tuple[Txid, str], int]:
        return self._read(
            "the dead letters", lambda connection: dead_letters.counts(connection, topology), {}
        )

    def drop_dead_letters(self, topology: str, keys: Sequence[LetterKey]) -> int:
        with self.sessions.writing(f"dropping dead letters of topology {topology!r}") as (connection, _):
            return dead_letters.drop(connection, topology, keys)

    # --- reading ------------------------------------------------------------------------------------

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        with self.sessions.reading(f"table {spec.state.table!r}") as connection:
            return self._statements.of(spec).read(connection, keys, before)

    @contextlib.contextmanager
    def read_state(self, topology: str) -> Iterator[SqlStateReading]:
        """Raises StateTableError when nothing of txstream is in this database."""
        nothing = StateTableError(f"{self.display_url} has no state tables; no topology has been run on it")
        if not self._dialect.is_there():
            raise nothing
        with self.sessions.reading(f"the state of topology {topology!r}", snapshot=True) as connection:
            revision = revisions.read_revision(connection, self.display_url)
            if revision is None:
                raise nothing
            revisions.refuse_other_revision(revision, self.display_url)
            yield SqlStateReading(connection, self._dialect, self.display_url, topology)

    # --- for commands -------------------------------------------------------------------------------

    def top(self, table: str, *, topology: str, n: int = 10) -> list[dict[str, Any]]:
        """Return the `n` rows of a state table with the greatest first value, as they are stored now.

        Each is column -> value in table order. Raises StateTableError when the table is not this topology's.
        """
        with self.read_state(topology) as reading:
            return reading.columns(table, n)

    def delete(
        self, topology: str, *, drop_state: bool, uuid: str | None = None, attempt: AttemptId | None = None
    ) -> list[str]:
        if not self._dialect.is_there():
            return []
        with self.sessions.writing(f"deleting topology {topology!r}") as (connection, _):
            self._dialect.lock_definitions(connection)
            revision = revisions.read_revision(connection, self.display_url)
            if revision is None:
                return []
            revisions.refuse_other_revision(revision, self.display_url)
            if attempt is not None:
                fence.keep_below(connection, topology, attempt)
            for table in (fence_table, batch_table, dead_letter_table):
                rows = delete(table).where(table.c.topology == topology)
                connection.execute(rows if uuid is None else rows.where(table.c.uuid == uuid))
            if not drop_state:
                return []
            owned = state_tables.owned_by(connection, topology)
            mine = [owner for owner in owned if uuid in (None, owner.uuid)]
            dropped = state_tables.drop_tables(connection, mine)
        self._statements.forget()
        return dropped

    def close(self) -> None:
        self.sessions.close()

    def _read(self, doing: str, read: Callable[[Connection], T], without_tables: T) -> T:
        """Return what `read` returns, or `without_tables` when nothing of txstream is in this database.
        Raises SchemaRevisionError when another txstream created the tables and they lack what is read."""
        if not self._dialect.is_there():
            return without_tables
        try:
            with self.sessions.reading(doing) as connection:
                return read(connection)
        except CorruptStateError as error:
            if not isinstance(error.__cause__, DBAPIError):
                raise
            with self.sessions.reading(doing) as connection:
                revision = revisions.read_revision(connection, self.display_url)
            if revision is None:
                return without_tables
            # Reading an older revision is allowed, as long as it has what is read. This one lacks it.
            revisions.refuse_other_revision(revision, self.display_url)
        # A first run may have created the tables in between. If not, this fails for the same reason again.
        with self.sessions.reading(doing) as connection:
            return read(connection)
