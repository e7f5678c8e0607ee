"""One transaction of a SQL database, as the commit protocol uses it.

Invariant: for a fenced topology, nothing is read before the fence has been raised or is held.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import ServiceUnavailableError, StateValueError, TxstreamError
from txstream.dead_letters import DeadLetter, LetterKey
from txstream.state.commit_protocol import StateTransaction
from txstream.state.records import BatchRecord, BatchStatus, TableSpec, TopologyLife
from txstream.state.sql import dead_letters, fence, ledger
from txstream.state.sql.dialect import Touch
from txstream.state.sql.errors import Kind
from txstream.state.sql.ledger import LedgerWriter
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.writer import TableWriter
from txstream.transaction import AttemptId, TransactionAttempt, Txid


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
            known = self._writers[spec.state.table] = TableWriter(spec, self.sessions.dialect)
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
        self._connection = connection
        self._answered = answered
        self._written: list[tuple[TransactionAttempt, TableWriter, pa.Table]] = []

    def raise_fence(self, attempt: AttemptId, *, may_be_equal: bool) -> None:
        url = self._sessions.display_url
        fence.raise_to(self._connection, url, self._life, attempt, may_be_equal=may_be_equal)

    def hold_fence(self, attempt: AttemptId) -> None:
        fence.require(self._connection, self._sessions, self._life, attempt)

    def entries(self, first: Txid, last: Txid) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        # A separate statement after the fence's. Joined to that, it would see the ledger as it was before the
        # fence's lock was granted, and miss the row of the transaction that held the lock.
        return ledger.entries(self._connection, self._life.topology, first, last)

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

    def write_dead_letters(
        self, attempt: TransactionAttempt, letters: Sequence[DeadLetter], when: datetime
    ) -> None:
        life = self._life.topology, self._life.uuid
        dead_letters.insert(self._connection, *life, attempt.txid, attempt.attempt, letters, when)
        self._answered()

    def undo_dead_letters(self, txid: Txid) -> None:
        dead_letters.undo(self._connection, self._life.topology, self._life.uuid, txid)
        self._answered()

    def mark_retried(self, keys: Sequence[LetterKey], txid: Txid) -> None:
        dead_letters.mark_retried(self._connection, self._life.topology, self._life.uuid, keys, txid)
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
