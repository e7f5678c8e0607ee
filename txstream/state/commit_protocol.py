"""The commit protocol over any store: fence, ledger, restore and deltas, in the one correct order.

A batch is committed on one of two paths. *Driver path*: `commit`, one transaction that does everything.
*Executor path*: `begin_commit` on the driver, then `write` from any number of tasks, then `end_commit` on the
driver, one transaction each. A store only implements `StateTransaction`; the order is decided here.

Invariants:
- The fence of a topology only grows, and every transaction touches it first. `commit` and `begin_commit`
  raise it to their attempt. `write` and `end_commit` require it to equal their attempt and hold it until they
  end. So once a raise has returned, no older attempt can write anything any more.
- The ledger says `committed` exactly when the tables hold the whole batch, because the last deltas and that
  row are written in one transaction. It says `committing` before the first `write` can happen.
- A batch is committed only when this very store has committed the one before it. So nothing is built on a
  store that was restored from an older copy while a driver ran.
- When an earlier attempt may have written an opaque batch, its writes are undone in every table, with deltas
  or without, before the new attempt's first delta. Only an attempt that left a ledger row can have written.
  What it wrote of dead letters is undone whatever the semantics.
- Dead letters are written by the transaction that writes `committed`, so a record's row is there exactly when
  the batch that leaves it out is committed. So is the status of those that the batch retries.
- What a removed row was is kept until the next batch is committed. From then on nothing undoes its removal.
- What a commit removes because it is too old lies before the horizon of the batch before, which is committed
  in every store. No attempt of this batch or a later one may write such a row, so a removal is never undone.
- The rows that a batch marks are marked behind all its writes, by the transaction that writes `committed`. In
  an opaque table they carry its txid and their `prev_` from then on, so what undoes its writes undoes that.
- Changes are copied behind all writes and marks, by the transaction that writes `committed`, or by each write
  of a row, and then undone with it. So a copy holds what each batch left, whatever is written over it later.
- Tables are taken in the order of their names, so that no two transactions deadlock.
- Non-transactional topologies raise no fence, undo nothing and begin nothing; their ledger only informs. Only
  `txstream compare` gives one dead letters.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.core.errors import ProgressMismatchError
from txstream.core.fault_points import Point, Reached
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID, AttemptId, TransactionAttempt, Txid
from txstream.state.fence_rules import shown_attempt
from txstream.state.records import (
    COMMITTED,
    COMMITTING,
    BatchRecord,
    BatchStatus,
    Commit,
    FenceRow,
    TableSpec,
    TopologyLife,
)
from txstream.state.stored_letters import DeadLetterTransaction

if TYPE_CHECKING:
    from txstream.state.backend import StateBackend

_REMOVED_AT_LEAST = 10_000
"""PostgreSQL deletes so many rows by their index in a few hundredths of a second."""

Writes = Sequence[tuple[TableSpec, pa.Table]]
"""Deltas by table."""


def nobody(_point: Point) -> None:
    """Do nothing: the listener of a commit that nobody watches."""


class StateTransaction(DeadLetterTransaction, ABC):
    """What one transaction of a store can do for one life of a topology. Nobody sees its changes before it is
    committed, and nothing remains of them if it is not."""

    @abstractmethod
    def raise_fence(self, attempt: AttemptId, *, may_be_equal: bool) -> None:
        """Raise the fence to `attempt` and hold it alone until the end of the transaction.

        With `may_be_equal` the fence may be at `attempt` already, because a leader that lost the answer tries
        again. Waits for the transactions that hold the fence. Raises StaleAttemptError when the fence is not
        lower, CorruptStateError when there is none, ProgressMismatchError when it is another life's.
        """

    @abstractmethod
    def hold_fence(self, attempt: AttemptId) -> None:
        """Require the fence to be at `attempt` and keep it there until the end of the transaction.

        Several tasks may hold it at once. Raises StaleAttemptError when it is above, CorruptStateError when
        it is below or there is none, ProgressMismatchError when it is another life's.
        """

    @abstractmethod
    def entries(self, first: Txid, last: Txid) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        """Return status and attempt of those batches from `first` to `last` that are in the ledger."""

    def raise_and_look(self, attempt: TransactionAttempt) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        """Raise the fence to a new attempt, then return the entries of its txid and of the one before. A
        store may do both in one round trip, if the second sees what was committed while the first waited."""
        self.raise_fence(attempt.attempt, may_be_equal=False)
        return self.entries(Txid(attempt.txid - 1), attempt.txid)

    @abstractmethod
    def write_batch(self, row: BatchRecord) -> None:
        """Write a row of the ledger, in place of any other row of its txid."""

    @abstractmethod
    def restore(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        """Undo what an earlier attempt of this txid wrote into an opaque table: every row that carries the
        txid gets value = prev; a row that this txid created is deleted."""

    @abstractmethod
    def write(self, attempt: TransactionAttempt, spec: TableSpec, deltas: pa.Table) -> None:
        """Merge prepared deltas into a table by the value rules of `txstream.core.semantics`.

        Raises TxidRegressionError for a row that is newer, StateValueError for a value that does not fit.
        """

    def mark(self, attempt: TransactionAttempt, spec: TableSpec, until: datetime) -> None:
        """Set the boolean column of `spec.state.marks` in all rows in which the column of time beside it is
        not after `until`, as `write` would: they carry the txid then, and in an opaque table their values of
        before. Marked rows stay as they are. Optional: see `StateBackend.marks_rows`."""
        raise NotImplementedError(f"{type(self).__name__} marks nothing")

    def keep_changes(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        """Copy all rows that carry the txid, removed ones too, to the table `spec.state.changes`, which has
        none of this txid, unless `write` has done so: as the batch leaves them, or, if the state
        `keeps_versions`, as they were before it, where `GONE` says that there was none. Optional: see
        `StateBackend.keeps_changes`."""
        raise NotImplementedError(f"{type(self).__name__} keeps no changes")

    def remove_expired(self, spec: TableSpec, horizon: int, most: int) -> None:
        """Remove rows whose `spec.state.keep_on` lies before the horizon, in seconds since 1970: all of them,
        or at least `most`. Optional: see `StateBackend.removes_expired`."""
        raise NotImplementedError(f"{type(self).__name__} removes nothing")

    def forget_removed(self, spec: TableSpec, txid: Txid) -> None:
        """Forget what rows were that batches before `txid` have removed: delete them, or, in a table with
        `sequence_by`, keep key and sequence only. Optional: see `StateBackend.hides_removed`."""
        raise NotImplementedError(f"{type(self).__name__} forgets nothing")


class _RehearsedError(Exception):
    """Ends a transaction of which nothing is to remain."""


class TopologyStates:
    """One life of a topology in one store: what its drivers and tasks do there. Thread-safe.

    Every method raises ServiceUnavailableError, with nothing written, while the store cannot be reached;
    StaleAttemptError when the fence is above the attempt; CorruptStateError when there is no fence. Methods
    that write raise AnswerLostError when it is unknown whether they were committed; `outcome` then tells.
    """

    def __init__(self, store: StateBackend, life: TopologyLife) -> None:
        self.store = store
        self.life = life

    # --- at start -----------------------------------------------------------------------------------

    def join(self, *, first_run: bool, identity: Mapping[str, Any] | None = None) -> None:
        """See `StateBackend.join`."""
        self.store.join(self.life, first_run=first_run, identity=identity)

    def check_join(self, *, first_run: bool) -> None:
        """See `StateBackend.check_join`."""
        self.store.check_join(self.life, first_run=first_run)

    def migrate(self, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        """See `StateBackend.migrate`."""
        return self.store.migrate(self.life, attempt, unfinished=unfinished)

    def begin_ledger(self, attempt: AttemptId, last: BatchRecord) -> None:
        """See `StateBackend.begin_ledger`."""
        self.store.begin_ledger(self.life, attempt, last)

    def keep_identity(self, attempt: AttemptId, identity: Mapping[str, Any]) -> None:
        """See `StateBackend.keep_identity`."""
        self.store.keep_identity(self.life, attempt, identity)

    def raise_fence(self, attempt: AttemptId, *, lock_timeout_seconds: float | None = None) -> None:
        """Raise the fence for a new leader, to shut its predecessors out. May be repeated.

        Waits for open transactions of predecessors; raises FenceLockedError when they do not end in time.
        """
        doing = f"raising the fence of topology {self.life.topology!r}"
        with self.store.begin(self.life, doing, lock_timeout_seconds=lock_timeout_seconds) as here:
            here.raise_fence(attempt, may_be_equal=True)

    # --- the commit ---------------------------------------------------------------------------------

    def commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        """Driver path: raise the fence, undo an earlier attempt, merge the deltas, write `committed`.

        Raises TxidRegressionError, StateValueError or StateTableError with nothing written.
        """
        attempt, writes = commit.attempt, self._own(commit)
        with self.store.begin(self.life, str(attempt)) as here:
            if self.life.is_fenced:
                found = here.raise_and_look(attempt)
                if self._was_here(found, commit):
                    self._restore(here, attempt)
            rows = _write(here, attempt, writes)
            self._write_committed(here, commit, rows)
            reached(Point.INSIDE_COMMIT)

    def rehearse(self, commit: Commit) -> None:
        """Do all that `commit` does, and undo it. Raises what `commit` raises."""

        def undo(_point: Point) -> None:
            raise _RehearsedError

        with contextlib.suppress(_RehearsedError):
            self.commit(commit, reached=undo)

    def begin_commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        """Executor path, first step, on the driver: raise the fence, write `committing` in place of whatever
        row the ledger has of this txid, undo an earlier attempt. The deltas are not used.

        After an AnswerLostError the attempt must be given up: it cannot begin again.
        """
        if not self.life.is_fenced:
            return
        attempt = commit.attempt
        with self.store.begin(self.life, f"the beginning of {attempt}") as here:
            found = here.raise_and_look(attempt)
            # Asked before the row is replaced: without a row, no attempt has written this txid.
            written_before = self._was_here(found, commit)
            here.write_batch(self._row(commit, COMMITTING, 0))
            if written_before:
                self._restore(here, attempt)
            reached(Point.INSIDE_BEGIN)

    def write(self, attempt: TransactionAttempt, writes: Writes) -> int:
        """Executor path: write one task's share of the deltas. Returns the number of rows written.

        No key is in the share of two tasks. One share may be written twice under one attempt, even at the
        same time: by the value rules the second write changes nothing. Raises what `commit` raises.
        """
        prepared = self._prepared(writes)
        with self.store.begin(self.life, str(attempt), alone=not self.life.is_fenced) as here:
            if self.life.is_fenced:
                here.hold_fence(attempt.attempt)
            return _write(here, attempt, prepared)

    def end_commit(self, commit: Commit, *, keys: int = 0, reached: Reached = nobody) -> None:
        """Executor path, last step, on the driver, after every task has written: merge the deltas of `commit`
        (those that no task has written) and write `committed`. `keys` is the number of rows that the tasks
        have written. Raises what `commit` raises.
        """
        attempt, writes = commit.attempt, self._own(commit)
        # What marks rows changes those of the shares, which a task that writes again may still have in hand.
        alone = not self.life.is_fenced or any(spec.state.marks for spec in self.life.tables)
        with self.store.begin(self.life, str(attempt), alone=alone) as here:
            if self.life.is_fenced:
                here.hold_fence(attempt.attempt)
            rows = _write(here, attempt, writes)
            self._write_committed(here, commit, keys + rows)
            reached(Point.INSIDE_COMMIT)

    def outcome(self, attempt: TransactionAttempt) -> bool:
        """Tell after an AnswerLostError whether this very attempt has committed its batch.

        False may become true while the lost transaction is still running on the server. That does no harm: a
        new attempt waits for it at the fence and undoes it.
        """
        row = self.batch(attempt.txid)
        return row is not None and row.status == COMMITTED and row.attempt == attempt.attempt

    # --- reading ------------------------------------------------------------------------------------

    @property
    def display_url(self) -> str:
        """The store's URL without its password."""
        return self.store.display_url

    def read_fence(self) -> FenceRow | None:
        """Return the topology's fence, whichever life it belongs to; None when it has not been run here."""
        return self.store.read_fence(self.life.topology)

    def batch(self, txid: int) -> BatchRecord | None:
        """Return the ledger's row of one txid; None when it has none."""
        return self.store.batch(self.life.topology, txid)

    def last_batch(self) -> BatchRecord | None:
        """Return the ledger's row with the greatest txid."""
        return self.store.last_batch(self.life.topology)

    # --- parts --------------------------------------------------------------------------------------

    def _own(self, commit: Commit) -> Writes:
        """Check the deltas for this store's tables; `commit` may have deltas for other stores too."""
        deltas = commit.deltas
        return self._prepared((t, deltas[t.state.table]) for t in self.life.tables if t.state.table in deltas)

    def _prepared(self, writes: Iterable[tuple[TableSpec, pa.Table]]) -> Writes:
        return [(spec, self.store.prepare(spec, deltas)) for spec, deltas in sorted(writes, key=_name)]

    def _write_committed(self, here: StateTransaction, commit: Commit, keys: int) -> None:
        horizons = commit.metas.get("horizons", {})
        for spec in sorted(self.life.tables, key=lambda spec: spec.state.table):
            until = spec.state.marks_until(horizons.get(spec.state.table))
            if until is not None:
                here.mark(commit.attempt, spec, until)
            if spec.state.changes is not None:
                here.keep_changes(commit.attempt, spec)
        row = self._row(commit, COMMITTED, keys)
        here.write_batch(row)
        if commit.letters and row.committed_at is not None:
            if not self.life.is_fenced:  # as its ledger row, what a txid has set aside is what it did last
                here.undo_dead_letters(commit.attempt.txid)
            here.write_dead_letters(commit.attempt, commit.letters, row.committed_at)
        if commit.retried:
            here.mark_retried(commit.retried, commit.attempt.txid)
        self._remove_expired(here, commit, keys)

    def _row(self, commit: Commit, status: BatchStatus, keys: int) -> BatchRecord:
        return BatchRecord(
            topology=self.life.topology,
            uuid=self.life.uuid,
            txid=commit.attempt.txid,
            attempt=commit.attempt.attempt,
            semantics=self.life.semantics,
            status=status,
            metas=commit.metas,
            tuples=commit.tuples,
            keys=keys,
            planned_at=commit.planned_at,
            processed_at=commit.processed_at,
            committed_at=datetime.now(UTC) if status == COMMITTED else None,
            error=None if commit.error is None else _storable(commit.error),
            details=commit.details,
        )

    def _was_here(self, found: Mapping[Txid, tuple[BatchStatus, AttemptId]], commit: Commit) -> bool:
        """Has the ledger, of which `found` is, a row of this txid? Then an earlier attempt may have written.
        Raises ProgressMismatchError unless it has the batch before, committed by the attempt that ZooKeeper
        has."""
        topology, txid = self.life.topology, commit.attempt.txid
        before = Txid(txid - 1)
        status, by = found.get(before, ("missing", None))
        if status == COMMITTED and by is not None and commit.after not in (None, by):
            status = f"committed by attempt {shown_attempt(by)}, not {shown_attempt(commit.after)}"
        if txid > FIRST_TXID and status != COMMITTED:
            raise ProgressMismatchError(
                f"topology {topology!r}: ZooKeeper says that txid {before} was committed last, the ledger of "
                f"{self.display_url} says that it is {status}; the database was restored from an older "
                f"copy while this driver ran, and nothing was written on top of it. To go on from the copy, "
                f"end every driver and type `txstream recover {topology} --from-ledger`; `txstream fsck "
                f"{topology}` says what is wrong"
            )
        return txid in found

    def _remove_expired(self, here: StateTransaction, commit: Commit, rows: int) -> None:
        """Remove what has expired, twice as much as this batch writes if there is so much, or a little more:
        a table whose `keep` is new must not hold up a commit. Forget what nothing can bring back."""
        for spec in sorted(self.life.tables, key=lambda spec: spec.state.table):
            if spec.state.removed_by is not None:
                here.forget_removed(spec, commit.attempt.txid)
            horizon = spec.state.keeps_from(commit.horizons.get(spec.state.table))
            if horizon is not None:
                here.remove_expired(spec, horizon, max(_REMOVED_AT_LEAST, 2 * rows))

    def _restore(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
        for spec in sorted(self.life.tables, key=lambda spec: spec.state.table):
            if spec.semantics is Semantics.OPAQUE:
                here.restore(attempt, spec)
        here.undo_dead_letters(attempt.txid)


def _write(here: StateTransaction, attempt: TransactionAttempt, writes: Writes) -> int:
    for spec, deltas in writes:
        here.write(attempt, spec, deltas)
    return sum(deltas.num_rows for _, deltas in writes)


def _storable(message: str) -> str:
    """Escape NUL and lone surrogates: an error's text may quote anything, and not every store keeps these."""
    return message.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _name(write: tuple[TableSpec, pa.Table]) -> str:
    return write[0].state.table
