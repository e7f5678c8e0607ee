"""`StateDatabase`: a SQL database as a `StateBackend`; one transaction of it, as the commit protocol uses it.

Invariants. Thread-safe: every call has its own transaction (`sessions`). For a fenced topology, nothing is
read before the fence has been raised or is held.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DBAPIError

from txstream.api.state import TXID_COLUMN
from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import (
    CorruptStateError,
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
    TxstreamError,
)
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.state.backend import StateBackend
from txstream.state.commit_protocol import StateTransaction
from txstream.state.records import BatchRecord, BatchStatus, FenceRow, TableSpec, TopologyLife
from txstream.state.sql import (
    fence,
    framework_tables as revisions,
    ledger,
    letter_table,
    tables as state_tables,
)
from txstream.state.sql.dialect import Touch
from txstream.state.sql.errors import Kind
from txstream.state.sql.framework_tables import (
    batch as batch_table,
    dead_letter as dead_letter_table,
    fence as fence_table,
)
from txstream.state.sql.ledger import LedgerWriter
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.sql_reading import SqlStateReading
from txstream.state.sql.urls import dialect_of
from txstream.state.stored_letters import StoredDeadLetter

if TYPE_CHECKING:
    from txstream.state.sql.writer import TableWriter


class PreparedStatements:
    """The statements of a database, for its ledger and for each state table; made when first needed."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.ledger = LedgerWriter(sessions.dialect)
        self._writers: dict[str, TableWriter] = {}

    def of(self, spec: TableSpec) -> TableWriter:
        """Return the writer of a table as it is declared now."""
        known = self._writers.get(spec.state.table)
        if known is None or known.spec != spec:
            # who only looks does not need it
            from txstream.state.sql.append_writer import AppendWriter
            from txstream.state.sql.writer import TableWriter

            kind = AppendWriter if spec.appends else TableWriter
            known = self._writers[spec.state.table] = kind(spec, self.sessions.dialect)
        return known

    def forget(self) -> None:
        """Forget the statements: tables may be declared differently from now on."""
        self._writers.clear()


class SqlTransaction(StateTransaction):
    """A state transaction on one connection. It calls `answered` whenever the server has answered."""

    def __init__(
        self, life: TopologyLife, statements: PreparedStatements, connection: Connection, answered: Touch
    ) -> None:
        self._life = life
        self._statements = statements
        self._sessions = statements.sessions
        self._begun_later = connection
        self._answered = answered
        self._written: list[tuple[TransactionAttempt, TableWriter, pa.Table]] = []

    @property
    def _connection(self) -> Connection:
        """The connection, its transaction begun: every statement but `raise_and_look` is sent on this one."""
        self._sessions.dialect.begin(self._begun_later)  # once it has begun, this does nothing
        return self._begun_later

    def raise_fence(self, attempt: AttemptId, *, may_be_equal: bool) -> None:
        url = self._sessions.display_url
        fence.raise_to(self._connection, url, self._life, attempt, may_be_equal=may_be_equal)

    def hold_fence(self, attempt: AttemptId) -> None:
        fence.require(self._connection, self._sessions, self._life, attempt)

    def entries(self, first: Txid, last: Txid) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        # A separate statement after the fence's. Joined to that, it would see the ledger as it was before the
        # fence's lock was granted, and miss the row of the transaction that held the lock.
        return ledger.entries(self._connection, self._life.topology, first, last)

    def raise_and_look(self, attempt: TransactionAttempt) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        """Both statements begin the transaction, in one round trip where the server can."""
        raising = fence.raising(self._life, attempt.attempt)
        looking = ledger.looking(self._life.topology, Txid(attempt.txid - 1), attempt.txid)
        begun = self._sessions.dialect.begin_with(self._begun_later, raising, looking)
        if begun is None:
            return super().raise_and_look(attempt)
        raised, rows = begun
        if raised != 1:
            url = self._sessions.display_url
            fence.refuse(self._connection, url, self._life, attempt.attempt, may_be_equal=False)
        return {Txid(int(txid)): (status, AttemptId(int(by))) for txid, status, by in rows}

    def write_batch(self, row: BatchRecord) -> None:
        self._statements.ledger.write(self._connection, row)
        self._answered()

    def restore(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        """Also raises ServiceUnavailableError when reading the table takes longer than a statement may."""
        with self._undoing(attempt, spec):
            self._statements.of(spec).restore(self._connection, attempt.txid)
        self._answered()

    def write(self, attempt: TransactionAttempt, spec: TableSpec, deltas: pa.Table) -> None:
        writer = self._statements.of(spec)
        self._written.append((attempt, writer, deltas))
        writer.write(self._connection, attempt, deltas, self._answered)

    def mark(self, attempt: TransactionAttempt, spec: TableSpec, until: datetime) -> None:
        self._statements.of(spec).mark(self._connection, attempt.txid, until)
        self._answered()

    def keep_changes(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        self._statements.of(spec).keep_changes(self._connection, attempt.txid)
        self._answered()

    def remove_expired(self, spec: TableSpec, horizon: int, most: int) -> None:
        self._statements.of(spec).remove_expired(self._connection, horizon, most, self._answered)

    def forget_removed(self, spec: TableSpec, txid: Txid) -> None:
        self._statements.of(spec).forget_removed(self._connection, txid)
        self._answered()

    def write_dead_letters(
        self, attempt: TransactionAttempt, letters: Sequence[DeadLetter], when: datetime
    ) -> None:
        life = self._life.topology, self._life.uuid
        letter_table.insert(self._connection, *life, attempt.txid, attempt.attempt, letters, when)
        self._answered()

    def undo_dead_letters(self, txid: Txid) -> None:
        letter_table.undo(self._connection, self._life.topology, self._life.uuid, txid)
        self._answered()

    def mark_retried(self, keys: Sequence[LetterKey], txid: Txid) -> None:
        letter_table.mark_retried(self._connection, self._life.topology, self._life.uuid, keys, txid)
        self._answered()

    @contextlib.contextmanager
    def _undoing(self, attempt: TransactionAttempt, spec: TableSpec) -> Iterator[None]:
        """Name the remedy when reading a table takes longer than a statement may. Otherwise it would be
        tried for ever, and nobody would know why."""
        dialect = self._sessions.dialect
        began = time.monotonic()
        try:
            yield
        except DBAPIError as error:
            seconds = time.monotonic() - began
            failure = dialect.classify(error)
            if failure.kind is not Kind.UNREACHABLE or seconds < dialect.message_timeout_seconds:
                raise
            raise ServiceUnavailableError(
                f"database {self._sessions.display_url}: undoing an earlier attempt of {attempt} in table "
                f"{spec.state.table!r} was broken off after {seconds:.0f} s: {failure.message}; if the table "
                f"is that large, declare it with index_txid=True (the next start says how to make the "
                f"index), or raise message_timeout_seconds (now {dialect.message_timeout_seconds:g}), and "
                f"start again"
            ) from error

    def explained(self, refused: StateValueError) -> TxstreamError:
        """Return the error for a value that the database has refused; called after the transaction. It names
        the sum that does not fit or the key that is too long, else has the database's own words."""
        with (
            contextlib.suppress(ServiceUnavailableError),
            self._sessions.reading("the refused value") as connection,
        ):
            for attempt, writer, deltas in self._written:
                found = writer.explain(connection, attempt, deltas, refused)
                if found is not None:
                    return found
        return refused


T = TypeVar("T")


class StateDatabase(StateBackend):
    """One SQL database that holds state tables, their fence and their ledger.

    `connect_timeout_seconds` limits the time to reach it. `message_timeout_seconds` is the topology's: the
    server ends a transaction that is idle for half of it, and a server that is silent for longer is given up.
    Raises UsageError for a URL that cannot be used, ServiceUnavailableError when its driver is missing.
    """

    keeps_dead_letters: ClassVar[bool] = True
    removes_expired: ClassVar[bool] = True
    marks_rows: ClassVar[bool] = True
    keeps_changes: ClassVar[bool] = True
    hides_removed: ClassVar[bool] = True

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
        self, life: TopologyLife, doing: str, *, alone: bool = True, lock_timeout_seconds: float | None = None
    ) -> Iterator[SqlTransaction]:
        """See `StateBackend.begin`. The error for a value that the database refuses names the value.

        The database ends a frozen writer before this call stops waiting for it. SQLite cannot do that; its
        message names the process.
        """
        here: SqlTransaction | None = None
        try:
            session = self.sessions.writing(
                doing, lock_timeout_seconds=lock_timeout_seconds, begins_later=True
            )
            with session as taken:
                here = SqlTransaction(life, self._statements, *taken)
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

    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        read = ledger.read_last
        return self._read("the ledger", lambda connection: read(connection, topology, limit, before), [])

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

    def drop_used(self, topology: str, table: str, before: Txid) -> int:
        with self.sessions.writing(f"dropping used rows of table {table!r}") as (connection, _):
            owned = {one.table: one for one in state_tables.owned_by(connection, topology)}
            if table not in owned or not owned[table].declaration.get("transient"):
                raise StateTableError(f"topology {topology!r} has no transient table {table!r} here")
            rows = state_tables.declared_table(owned[table], self._dialect)
            return connection.execute(delete(rows).where(rows.c[TXID_COLUMN] < before)).rowcount

    # --- dead letters -------------------------------------------------------------------------------

    def dead_letters(
        self, topology: str, *, whole: bool = True, key: LetterKey | None = None
    ) -> list[StoredDeadLetter]:
        read = letter_table.read
        return self._read(
            "the dead letters", lambda connection: read(connection, topology, whole=whole, key=key), []
        )

    def dead_letter_counts(self, topology: str) -> dict[tuple[Txid, str], int]:
        return self._read(
            "the dead letters", lambda connection: letter_table.counts(connection, topology), {}
        )

    def late_letters(self, topology: str) -> int:
        return self._read("the dead letters", lambda connection: letter_table.late(connection, topology), 0)

    def drop_dead_letters(self, topology: str, keys: Sequence[LetterKey]) -> int:
        with self.sessions.writing(f"dropping dead letters of topology {topology!r}") as (connection, _):
            return letter_table.drop(connection, topology, keys)

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
