"""All state tables of one transaction: what each is to be given, and in which order.

Invariant: every transaction writes its tables in the order of their names, so that two cannot deadlock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from txstream.api.errors import ServiceUnavailableError, StateValueError, TxstreamError
from txstream.semantics import Semantics
from txstream.state.records import TableSpec
from txstream.state.sql.dialect import Touch
from txstream.state.sql.failures import Kind
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.writer import TableWriter
from txstream.transaction import TransactionAttempt

Work = list[tuple[TableWriter, pa.Table]]
"""Tables and their prepared deltas, in order."""


class TableWriters:
    """The writers of a database's state tables, each made when it is needed first."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._writers: dict[str, TableWriter] = {}

    def of(self, spec: TableSpec) -> TableWriter:
        """The writer of a table as it is declared now."""
        known = self._writers.get(spec.state.table)
        if known is None or known.spec != spec:
            known = self._writers[spec.state.table] = TableWriter(spec, self._sessions.dialect)
        return known

    def forget(self) -> None:
        """Tables may be declared otherwise from now on."""
        self._writers.clear()

    def prepare(self, specs: Sequence[TableSpec], deltas: Mapping[str, pa.Table]) -> Work:
        """The deltas of these tables, checked. Deltas of other databases' tables are not ours to write.

        Raises StateValueError or StateTableError."""
        mine = [(spec, deltas.get(spec.state.table)) for spec in specs]
        return self.prepare_shares([(spec, delta) for spec, delta in mine if delta is not None])

    def prepare_shares(self, writes: Sequence[tuple[TableSpec, pa.Table]]) -> Work:
        """As `prepare`, of deltas that all have their table."""
        work = [(self.of(spec), deltas) for spec, deltas in writes]
        return [(writer, writer.prepare(deltas)) for writer, deltas in sorted(work, key=_table_name)]

    def restore(
        self, connection: Connection, attempt: TransactionAttempt, specs: Sequence[TableSpec], answered: Touch
    ) -> None:
        """Undo an earlier attempt of this txid, in every table, with deltas or without. Only an attempt that
        left a ledger row can have written; it is asked for by a statement of its own, after the fence's:
        joined to it, it would see the ledger as it was before the fence's lock was granted, and miss the row
        of the transaction that was waited for.

        Raises ServiceUnavailableError for a table that cannot be read in the time that a statement has."""
        for spec in sorted(specs, key=lambda spec: spec.state.table):
            if spec.semantics is Semantics.OPAQUE:
                with self._undoing(attempt, spec):
                    self.of(spec).restore(connection, attempt.txid)
                answered()

    @contextlib.contextmanager
    def _undoing(self, attempt: TransactionAttempt, spec: TableSpec) -> Iterator[None]:
        """Say what helps where reading a table takes longer than a statement may; else it would be tried for
        ever without a word of it."""
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
                f"database {self._sessions.url_for_people}: undoing an earlier attempt of {attempt} in table "
                f"{spec.state.table!r} was broken off after {seconds:.0f} s: {failure.message}; if the table "
                f"is that large, declare it with index_txid=True, or raise message_timeout_seconds (now "
                f"{dialect.message_timeout_seconds:g}), and start again"
            ) from error

    def write(self, connection: Connection, attempt: TransactionAttempt, work: Work, answered: Touch) -> None:
        """Merge the deltas into their tables. Raises TxidRegressionError or StateValueError."""
        for writer, deltas in work:
            writer.write(connection, attempt, deltas, answered)

    @contextlib.contextmanager
    def transaction(self, attempt: TransactionAttempt, work: Work) -> Iterator[tuple[Connection, Touch]]:
        """As `Sessions.writing`; a value that the database refuses is named."""
        try:
            with self._sessions.writing(str(attempt)) as begun:
                yield begun
        except StateValueError as refused:
            if not isinstance(refused.__cause__, DBAPIError):
                raise
            raise self._explain(attempt, work, refused) from refused.__cause__

    def _explain(self, attempt: TransactionAttempt, work: Work, refused: TxstreamError) -> TxstreamError:
        """Which sum it is that does not fit; the database's own words when it is something else."""
        with (
            contextlib.suppress(ServiceUnavailableError),
            self._sessions.reading("the refused value") as connection,
        ):
            for writer, deltas in work:
                found = writer.explain(connection, attempt, deltas, refused)
                if found is not None:
                    return found
        return refused


def rows_of(work: Work) -> int:
    """How many rows are to be written."""
    return sum(deltas.num_rows for _, deltas in work)


def _table_name(work: tuple[TableWriter, pa.Table]) -> str:
    return work[0].spec.state.table
