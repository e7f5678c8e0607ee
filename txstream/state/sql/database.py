"""`StateDatabase`: a SQL database as a `StateBackend`.

Invariants. A commit from the driver is one transaction, in the order that the protocol was checked in:
fence, restore, upserts, ledger, COMMIT; a commit from executors is one to begin it (fence, ledger, restore),
one for each task (fence, upserts) and one to end it (fence, upserts, ledger). The fence is always the first
statement, nothing is read before it, and nothing is sent twice: whatever fails before COMMIT leaves nothing,
and whatever fails at COMMIT is an AnswerLostError, to be settled by the ledger.

Thread-safe: every call takes a connection of its own from the pool.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa
from sqlalchemy import Connection, delete, select
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeoutError

from txstream.api.errors import (
    CorruptStateError,
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
    TxstreamError,
)
from txstream.semantics import Semantics
from txstream.state.backend import INSIDE_BEGIN, INSIDE_COMMIT, StateBackend, nobody
from txstream.state.records import BatchRecord, Commit, FenceRow, TableSpec
from txstream.state.sql import fence, ledger, revisions, tables as state_tables
from txstream.state.sql.dialect import StateDialect, Touch
from txstream.state.sql.failures import one_line, to_error
from txstream.state.sql.framework import batch as batch_table, fence as fence_table
from txstream.state.sql.ledger import LedgerWriter
from txstream.state.sql.reading import SqlStateReading
from txstream.state.sql.sqlite import READ_ONLY
from txstream.state.sql.urls import dialect_of, without_password
from txstream.state.sql.writer import TableWriter
from txstream.transaction import AttemptId, TransactionAttempt, Txid

T = TypeVar("T")

Work = list[tuple[TableWriter, pa.Table]]
"""Tables and their prepared deltas, in the order in which every transaction writes them."""

_PING_AFTER_IDLE_SECONDS = 1.0
_PATIENCE_SECONDS = 24 * 3600.0  # a silent server is given up even then
_USED_AT = "txstream_used_at"  # in what SQLAlchemy keeps beside a pooled connection


class StateDatabase(StateBackend):
    """One SQL database that holds state tables, their fence and their ledger.

    `connect_timeout_seconds` bounds reaching it. `message_timeout_seconds` is the topology's: a transaction
    that is idle for half of it is ended by the server, and a server that is silent for longer is given up.
    Raises UsageError for a URL that cannot be used, ServiceUnavailableError when its driver is missing.
    """

    def __init__(
        self, url: str, *, connect_timeout_seconds: float = 10.0, message_timeout_seconds: float = 30.0
    ) -> None:
        self._dialect: StateDialect = dialect_of(url, connect_timeout_seconds, message_timeout_seconds)
        self.url_for_people = without_password(self._dialect.url)
        try:
            self._engine = self._dialect.create_engine()
        except ImportError as error:
            raise ServiceUnavailableError(
                f"database {self.url_for_people} needs a driver that is not installed ({one_line(error)}); "
                f"type pip install 'txstream[{self._dialect.name}]'"
            ) from error
        self._connect_timeout_seconds = connect_timeout_seconds
        self._ledger = LedgerWriter(self._dialect)
        self._writers: dict[str, TableWriter] = {}

    # --- at start -----------------------------------------------------------------------------------

    def check(self) -> None:
        self._dialect.check()
        if self._dialect.is_there():
            with self._reading("a first question", self._connect_timeout_seconds) as connection:
                connection.execute(select(1))

    def ensure_framework_tables(self) -> None:
        """Create the framework's tables where there are none. Raises SchemaRevisionError for another
        revision than this txstream's, naming the command or the txstream that would help."""
        with self._reading("its revision") as connection:
            revision = revisions.read_revision(connection, self.url_for_people)
        if revision is not None:
            revisions.refuse_other_revision(revision, self.url_for_people)
            return
        with self._writing("creating txstream's tables") as (connection, _):
            self._dialect.lock_definitions(connection)
            revisions.create_or_check(connection, self.url_for_people)

    def upgrade(self) -> tuple[str | None, str]:
        """Bring the framework's tables to this txstream's revision: (from, to), `from` None for none."""
        with self._writing("upgrading txstream's tables") as (connection, _):
            self._dialect.lock_definitions(connection)
            return revisions.upgrade(connection, self.url_for_people)

    def join(
        self,
        topology: str,
        uuid: str,
        tables: Sequence[TableSpec],
        *,
        semantics: Semantics,
        first_run: bool,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        with self._writing(f"topology {topology!r} joining") as (connection, _):
            self._dialect.lock_definitions(connection)
            fence.join(
                connection, self.url_for_people, topology, uuid, first_run=first_run, identity=identity
            )
            for check_only in (True, False):
                for spec in tables:
                    state_tables.join_table(
                        connection,
                        self._dialect,
                        topology,
                        uuid,
                        spec,
                        first_run=first_run,
                        check_only=check_only,
                    )

    def migrate(
        self,
        topology: str,
        uuid: str,
        tables: Sequence[TableSpec],
        attempt: AttemptId,
        *,
        unfinished: Txid | None = None,
    ) -> list[str]:
        with self._reading(f"the tables of topology {topology!r}") as connection:
            due = [
                spec
                for spec in tables
                if state_tables.changes_due(connection, self._dialect, spec, unfinished)
            ]
        if not due:
            return []
        done: list[str] = []
        with self._writing(f"changing tables of topology {topology!r}", patient=True) as (connection, _):
            fence.require(connection, self._dialect, self.url_for_people, topology, uuid, attempt)
            self._dialect.lock_definitions(connection)
            for spec in due:
                changes = state_tables.migrate_table(connection, self._dialect, spec, unfinished)
                done += [f"{spec.state.table}: {change}" for change in changes]
        return done

    def begin_ledger(self, topology: str, uuid: str, attempt: AttemptId, last: BatchRecord) -> None:
        with self._writing(f"topology {topology!r} joining") as (connection, _):
            fence.require(connection, self._dialect, self.url_for_people, topology, uuid, attempt)
            self._ledger.begin(connection, last)

    # --- the fence ----------------------------------------------------------------------------------

    def read_fence(self, topology: str) -> FenceRow | None:
        return self._read("the fence", lambda connection: fence.read(connection, topology), None)

    def raise_fence(
        self, topology: str, uuid: str, attempt: AttemptId, *, lock_timeout_seconds: float | None = None
    ) -> None:
        """As every backend. A frozen writer is ended by the database before this gives up; SQLite cannot do
        that: its message names the process."""
        doing = f"raising the fence of topology {topology!r}"
        with self._writing(doing, lock_timeout_seconds=lock_timeout_seconds) as (connection, _):
            fence.raise_to(connection, self.url_for_people, topology, uuid, attempt, may_be_equal=True)

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
        # What may go is read before: only the deletion itself holds up other writers, of a file for example.
        with self._reading("the age of its ledger") as connection:
            last = ledger.last_to_prune(connection, topology, committed_before, newest, rows)
        if last is None:
            return 0
        with self._writing("pruning its ledger") as (connection, _):
            return ledger.prune(connection, topology, last)

    # --- the commit ---------------------------------------------------------------------------------

    def commit(
        self,
        topology: str,
        uuid: str,
        tables: Sequence[TableSpec],
        commit: Commit,
        *,
        semantics: Semantics,
        reached: Callable[[str], None] = nobody,
    ) -> None:
        attempt = commit.attempt
        work = self._prepare(tables, commit.deltas)
        with self._explaining(attempt, work), self._writing(str(attempt)) as (connection, answered):
            if semantics is not Semantics.NON_TRANSACTIONAL:
                self._raise(connection, topology, uuid, attempt)
                if ledger.has(connection, topology, attempt.txid):
                    self._restore(connection, attempt, tables, answered)
            self._write(connection, attempt, work, answered)
            self._commit_ledger(connection, topology, uuid, commit, semantics, _rows(work))
            answered()
            reached(INSIDE_COMMIT)

    def begin_commit(
        self,
        topology: str,
        uuid: str,
        tables: Sequence[TableSpec],
        commit: Commit,
        *,
        semantics: Semantics,
        reached: Callable[[str], None] = nobody,
    ) -> None:
        if semantics is Semantics.NON_TRANSACTIONAL:
            return
        attempt = commit.attempt
        with self._writing(f"the beginning of {attempt}") as (connection, answered):
            self._raise(connection, topology, uuid, attempt)
            # Asked before the row is written over: without one nobody has written this txid.
            written_before = ledger.has(connection, topology, attempt.txid)
            self._ledger.write_committing(connection, topology, uuid, commit, semantics)
            if written_before:
                self._restore(connection, attempt, tables, answered)
            reached(INSIDE_BEGIN)

    def write(
        self,
        topology: str,
        uuid: str,
        attempt: TransactionAttempt,
        writes: Sequence[tuple[TableSpec, pa.Table]],
        *,
        semantics: Semantics,
    ) -> int:
        work = [(self._writer(spec), deltas) for spec, deltas in writes]
        work = [(writer, writer.prepare(deltas)) for writer, deltas in sorted(work, key=_table_name)]
        with self._explaining(attempt, work), self._writing(str(attempt)) as (connection, answered):
            self._hold(connection, topology, uuid, attempt, semantics)
            self._write(connection, attempt, work, answered)
        return _rows(work)

    def end_commit(
        self,
        topology: str,
        uuid: str,
        tables: Sequence[TableSpec],
        commit: Commit,
        *,
        semantics: Semantics,
        keys: int = 0,
        reached: Callable[[str], None] = nobody,
    ) -> None:
        attempt = commit.attempt
        work = self._prepare(tables, commit.deltas)
        with self._explaining(attempt, work), self._writing(str(attempt)) as (connection, answered):
            self._hold(connection, topology, uuid, attempt, semantics)
            self._write(connection, attempt, work, answered)
            self._commit_ledger(connection, topology, uuid, commit, semantics, keys + _rows(work))
            answered()
            reached(INSIDE_COMMIT)

    def _raise(self, connection: Connection, topology: str, uuid: str, attempt: TransactionAttempt) -> None:
        fence.raise_to(connection, self.url_for_people, topology, uuid, attempt.attempt, may_be_equal=False)

    def _hold(
        self,
        connection: Connection,
        topology: str,
        uuid: str,
        attempt: TransactionAttempt,
        semantics: Semantics,
    ) -> None:
        if semantics is not Semantics.NON_TRANSACTIONAL:
            fence.require(connection, self._dialect, self.url_for_people, topology, uuid, attempt.attempt)

    def _write(
        self, connection: Connection, attempt: TransactionAttempt, work: Work, answered: Touch
    ) -> None:
        for writer, deltas in work:
            writer.write(connection, attempt, deltas, answered)

    def _commit_ledger(
        self,
        connection: Connection,
        topology: str,
        uuid: str,
        commit: Commit,
        semantics: Semantics,
        keys: int,
    ) -> None:
        self._ledger.write_committed(connection, topology, uuid, commit, semantics, keys, datetime.now(UTC))

    def _prepare(self, specs: Sequence[TableSpec], deltas: Mapping[str, pa.Table]) -> Work:
        """The tables of this database, in one order for all writers; deltas of other databases' tables are
        not ours to write."""
        work = []
        for spec in sorted(specs, key=lambda spec: spec.state.table):
            delta = deltas.get(spec.state.table)
            if delta is not None:
                writer = self._writer(spec)
                work.append((writer, writer.prepare(delta)))
        return work

    def _writer(self, spec: TableSpec) -> TableWriter:
        known = self._writers.get(spec.state.table)
        if known is None or known.spec != spec:
            known = self._writers[spec.state.table] = TableWriter(spec, self._dialect)
        return known

    def _restore(
        self,
        connection: Connection,
        attempt: TransactionAttempt,
        specs: Sequence[TableSpec],
        answered: Touch,
    ) -> None:
        """Undo an earlier attempt of this txid, in every table, with deltas or without. Only an attempt that
        left a ledger row can have written; it is asked for by a statement of its own, after the fence's:
        joined to it, it would see the ledger as it was before the fence's lock was granted, and miss the row
        of the transaction that was waited for."""
        for spec in sorted(specs, key=lambda spec: spec.state.table):
            if spec.semantics is Semantics.OPAQUE:
                self._writer(spec).restore(connection, attempt.txid)
                answered()

    @contextlib.contextmanager
    def _explaining(self, attempt: TransactionAttempt, work: Work) -> Iterator[None]:
        """Around a transaction: a value that the database refused is named."""
        try:
            yield
        except StateValueError as refused:
            if not isinstance(refused.__cause__, DBAPIError):
                raise
            raise self._explain(attempt, work, refused) from refused.__cause__

    def _explain(self, attempt: TransactionAttempt, work: Work, refused: TxstreamError) -> TxstreamError:
        """Which sum it is that does not fit; the database's own words when it is something else."""
        with (
            contextlib.suppress(ServiceUnavailableError),
            self._reading("the refused value") as connection,
        ):
            for writer, deltas in work:
                found = writer.explain(connection, attempt, deltas, refused)
                if found is not None:
                    return found
        return refused

    # --- reading ------------------------------------------------------------------------------------

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        with self._reading(f"table {spec.state.table!r}") as connection:
            return self._writer(spec).read(connection, keys, before)

    @contextlib.contextmanager
    def read_state(self, topology: str) -> Iterator[SqlStateReading]:
        """Raises StateTableError when nothing of txstream is in this database."""
        nothing = StateTableError(
            f"{self.url_for_people} has no state tables; no topology has been run on it"
        )
        if not self._dialect.is_there():
            raise nothing
        with self._reading(f"the state of topology {topology!r}", snapshot=True) as connection:
            revision = revisions.read_revision(connection, self.url_for_people)
            if revision is None:
                raise nothing
            revisions.refuse_other_revision(revision, self.url_for_people)
            yield SqlStateReading(connection, self._dialect, self.url_for_people, topology)

    # --- for people ---------------------------------------------------------------------------------

    def top(self, table: str, *, topology: str, n: int = 10) -> list[dict[str, Any]]:
        """The `n` rows of a state table with the greatest first value, as column -> value in table order, as
        they are stored now.

        Raises StateTableError when the table is not this topology's.
        """
        with self.read_state(topology) as reading:
            return reading.columns(table, n)

    def delete(self, topology: str, *, drop_state: bool, uuid: str | None = None) -> list[str]:
        if not self._dialect.is_there():
            return []
        with self._writing(f"deleting topology {topology!r}") as (connection, _):
            self._dialect.lock_definitions(connection)
            revision = revisions.read_revision(connection, self.url_for_people)
            if revision is None:
                return []
            revisions.refuse_other_revision(revision, self.url_for_people)
            for table in (fence_table, batch_table):
                rows = delete(table).where(table.c.topology == topology)
                connection.execute(rows if uuid is None else rows.where(table.c.uuid == uuid))
            if not drop_state:
                return []
            owned = state_tables.owned_by(connection, topology)
            mine = [owner for owner in owned if uuid in (None, owner.uuid)]
            dropped = state_tables.drop_tables(connection, mine)
        self._writers.clear()
        return dropped

    def close(self) -> None:
        self._engine.dispose()

    # --- transactions -------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _writing(
        self, doing: str, *, lock_timeout_seconds: float | None = None, patient: bool = False
    ) -> Iterator[tuple[Connection, Touch]]:
        """One transaction, committed at the end. The database's errors become the framework's. A `patient`
        one may work on a whole table, for longer than a commit may take."""
        connection = self._connect(doing)
        at_commit = False
        try:
            with contextlib.ExitStack() as stack:
                silence_seconds = _PATIENCE_SECONDS if patient else None
                answered = stack.enter_context(self._dialect.deadline(connection, silence_seconds))
                if lock_timeout_seconds is not None:
                    stack.enter_context(self._dialect.lock_timeout(connection, lock_timeout_seconds))
                with connection.begin():
                    if patient:
                        self._dialect.be_patient(connection)
                    yield connection, answered
                    at_commit = True
        except DBAPIError as error:
            raise self._understood(error, doing, at_commit=at_commit) from error
        finally:
            self._release(connection)

    @contextlib.contextmanager
    def _reading(
        self, doing: str, silence_seconds: float | None = None, *, snapshot: bool = False
    ) -> Iterator[Connection]:
        """One transaction that only reads and waits for nobody; with `snapshot` all of it sees one moment."""
        connection = self._connect(doing).execution_options(**{READ_ONLY: True})
        if snapshot and self._dialect.snapshot_isolation is not None:
            # The pool puts the usual one back.
            connection = connection.execution_options(isolation_level=self._dialect.snapshot_isolation)
        try:
            with self._dialect.deadline(connection, silence_seconds), connection.begin():
                yield connection
        except DBAPIError as error:
            raise self._understood(error, doing) from error
        finally:
            self._release(connection)

    def _read(self, doing: str, read: Callable[[Connection], T], without_tables: T) -> T:
        """What `read` answers; `without_tables` when nothing of txstream is in this database. Raises
        SchemaRevisionError when an older or newer txstream made its tables, and they lack what is read."""
        if not self._dialect.is_there():
            return without_tables
        try:
            with self._reading(doing) as connection:
                return read(connection)
        except CorruptStateError as error:
            if not isinstance(error.__cause__, DBAPIError):
                raise
            with self._reading(doing) as connection:
                revision = revisions.read_revision(connection, self.url_for_people)
            if revision is None:
                return without_tables
            # What an older revision has and this one reads is read; what it lacks, its upgrade brings.
            revisions.refuse_other_revision(revision, self.url_for_people)
            raise

    def _connect(self, doing: str) -> Connection:
        try:
            connection = self._engine.connect()
            idle_seconds = time.monotonic() - connection.info.get(_USED_AT, time.monotonic())
            if idle_seconds < _PING_AFTER_IDLE_SECONDS or self._answers(connection):
                return connection
            # The server was restarted meanwhile, so all connections of the pool are as dead as this one.
            connection.invalidate()
            connection.close()
            self._engine.dispose()
            return self._engine.connect()
        except DBAPIError as error:
            raise self._understood(error, doing) from error
        except PoolTimeoutError as error:
            raise ServiceUnavailableError(
                f"database {self.url_for_people}: all connections are in use for {doing}; try again"
            ) from error

    def _answers(self, connection: Connection) -> bool:
        try:
            with self._dialect.deadline(connection, self._connect_timeout_seconds):
                self._dialect.ping(connection)
        except DBAPIError:
            return False
        return True

    @staticmethod
    def _release(connection: Connection) -> None:
        if not connection.invalidated:
            connection.info[_USED_AT] = time.monotonic()
        connection.close()

    def _understood(self, error: DBAPIError, doing: str, *, at_commit: bool = False) -> TxstreamError:
        failure = self._dialect.classify(error)
        return to_error(failure, self.url_for_people, doing, at_commit=at_commit)


def _rows(work: Work) -> int:
    return sum(deltas.num_rows for _, deltas in work)


def _table_name(work: tuple[TableWriter, pa.Table]) -> str:
    return work[0].spec.state.table
