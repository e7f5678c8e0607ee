"""`StateBackend`: what the engine needs from a store of states: a SQL database, or one of your own.

A store provides transactions (`begin`), tables and reading. `commit_protocol` commits a batch with them, in
the same way for every store; `of` returns it bound to one life of a topology.

Invariant: a method that fails leaves nothing behind, unless it raises AnswerLostError. After that,
`TopologyStates.outcome` tells whether the batch was committed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from txstream.core.dead_letters import LetterKey
from txstream.core.errors import StateTableError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Txid
from txstream.state.commit_protocol import StateTransaction, TopologyStates
from txstream.state.reading import StateReading
from txstream.state.records import BatchRecord, FenceRow, TableSpec, TopologyLife
from txstream.state.stored_letters import DEAD, StoredDeadLetter


class StateBackend(ABC):
    """One store with states, their fence and their ledger. Thread-safe: several threads call it at once.

    Every method raises ServiceUnavailableError while the store cannot be reached. The engine then waits, with
    backoff, and calls it again.
    """

    display_url: str
    """The store's URL without its password."""

    on_executors: ClassVar[bool] = True
    """Can a process on another machine open it by its URL? If not, every batch takes the driver path."""

    outlives_process: ClassVar[bool] = True
    """Does committed state outlive this process? If not, the store is for tests: a run refuses it, because
    the run's progress stays in ZooKeeper."""

    keeps_dead_letters: ClassVar[bool] = False
    """Can its transactions keep dead letters? If not, a topology that asks for them is refused where this is
    its first store."""

    removes_expired: ClassVar[bool] = False
    """Do its transactions have `remove_expired`? If not, a topology with a table that has `keep` here is
    refused."""

    hides_removed: ClassVar[bool] = False
    """Is a row whose `REMOVED` is not false hidden from people, and do its transactions have
    `forget_removed`? If not, a topology with a table that has `removed_by` here is refused."""

    marks_rows: ClassVar[bool] = False
    """Do its transactions have `mark`? If not, a topology with a table that has `marks` here is refused."""

    keeps_changes: ClassVar[bool] = False
    """Do its transactions have `keep_changes`? If not, a topology with a table that has `changes_to` here is
    refused."""

    # --- at start -----------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise ServiceUnavailableError, with the remedy, unless the store answers in time."""

    def place(self) -> str | None:
        """Return which place this is, as the store itself knows it: the same text through every URL of one
        store, another text for any other store. None if the store cannot tell, or nothing is there yet.

        Whoever only reads, such as `txstream fsck`, counts one store under two URLs once by this. A leader
        needs it only to refuse them before it makes anything: it proves by the fences that its stores are
        different ones. Optional: the default returns None.
        """
        return None

    @abstractmethod
    def ensure_framework_tables(self) -> None:
        """Create what fence and ledger are kept in, where it is missing. Raises SchemaRevisionError where
        another version created it and a command must upgrade it."""

    @abstractmethod
    def join(self, life: TopologyLife, *, first_run: bool, identity: Mapping[str, Any] | None = None) -> None:
        """Make sure that the fence and the state tables exist and belong to this life; all or nothing.

        The first run creates what is missing. Later, what is missing was lost, and `join` refuses. The fence
        is created for every semantics, because it also registers the topology here. `identity` is what
        `txstream recover` rebuilds ZooKeeper from; it is kept beside the fence. Once the fence has been
        raised, `join` may leave it to `keep_identity` to replace the identity. Raises ProgressMismatchError,
        IdentityMismatchError, StateTableError or CorruptStateError.
        """

    def check_join(self, life: TopologyLife, *, first_run: bool) -> None:
        """Raise what `join` would, as far as reading tells: asked before a run starts anything. It writes
        nothing, and there may be no framework tables yet. Optional: the default refuses nothing."""
        return

    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        """Change the tables whose declaration has grown since they last joined to what is declared now.

        Returns one sentence per change. `join` accepts such a change, but leaves the table as it is. Each
        leader calls this once, after it has raised every fence to `attempt` and before its first commit; the
        fence must be at `attempt`. After a crash inside, it is called again. `unfinished` is a txid that is
        committed in part; raises StateTableError for a change that must wait until it is committed.
        Optional: the default is for a store whose `join` accepts no change.
        """
        return []

    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        """Make `last` the only row of the ledger of a store that joins late.

        The topology has committed batches elsewhere already, and `last` is the last of them. A leader calls
        this after it has raised every fence to `attempt`, and before anything is committed here; the fence
        must be at `attempt`. It may be called again after a crash. Optional: the default raises
        StateTableError.
        """
        raise StateTableError(
            f"{self.display_url} cannot join topology {life.topology!r}, which has committed batches: "
            f"{type(self).__name__} does not implement begin_ledger; run it under another id (--id)"
        )

    def keep_identity(self, life: TopologyLife, attempt: AttemptId, identity: Mapping[str, Any]) -> None:
        """Replace the identity that `join` left beside the fence with `identity`.

        Each leader calls this after it has raised every fence to `attempt`, and before its first commit; the
        fence must be at `attempt`. It may be called again. Optional: the default calls `join`, which does not
        check the fence, so an older driver that wakes up may replace a newer identity with its own.
        """
        self.join(replace(life, tables=()), first_run=False, identity=identity)

    # --- the commit ---------------------------------------------------------------------------------

    bound: ClassVar[type[TopologyStates]] = TopologyStates

    def of(
        self, topology: str, uuid: str, semantics: Semantics, tables: Sequence[TableSpec] = ()
    ) -> TopologyStates:
        """Bind this store to one life of a topology. `tables` are those of its tables that are kept here."""
        return self.bound(self, TopologyLife(topology, uuid, semantics, tuple(tables)))

    @abstractmethod
    def begin(
        self, life: TopologyLife, doing: str, *, alone: bool = True, lock_timeout_seconds: float | None = None
    ) -> AbstractContextManager[StateTransaction]:
        """Begin one transaction; commit it at the end of the `with` block, undo it when the block raises.

        `doing` describes it in messages. `alone=False` is for the tasks of one attempt and for its
        `end_commit`: they write different keys, so they may run side by side. Raises FenceLockedError when a
        lock is not granted within `lock_timeout_seconds`, ServiceUnavailableError, or AnswerLostError when
        only the ledger knows whether the transaction was committed.
        """

    @abstractmethod
    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        """Check the deltas and put them in the order in which they are written.

        Called before a transaction begins. Raises StateValueError or StateTableError for what this store
        cannot keep.
        """

    # --- the fence ----------------------------------------------------------------------------------

    @abstractmethod
    def read_fence(self, topology: str) -> FenceRow | None:
        """Return the fence of a topology; None when the topology has not been run here."""

    @abstractmethod
    def topologies(self) -> list[FenceRow]:
        """Return the fences of all topologies that have been run here, sorted by topology id."""

    # --- the ledger ---------------------------------------------------------------------------------

    @abstractmethod
    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        """Return the ledger's row of one txid; None when it has none."""

    @abstractmethod
    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        """Return the ledger's rows, oldest first; with `before` those of smaller txids, with `limit` only
        that many of the last ones."""

    def last_batch(self, topology: str) -> BatchRecord | None:
        """Return the ledger's row with the greatest txid."""
        found = self.batches(topology, limit=1)
        return found[0] if found else None

    def oldest_txid(self, topology: str) -> Txid | None:
        """Return the smallest txid in the ledger; None when it is empty. Earlier rows were pruned, or their
        batches were committed before this store joined."""
        found = self.batches(topology)
        return found[0].txid if found else None

    def prune(
        self, topology: str, *, committed_before: datetime | None, newest: int | None, rows: int
    ) -> int:
        """Delete at most `rows` of the ledger's oldest rows in one short transaction.

        Returns how many were deleted: fewer than `rows` when no more may go. A row may go when it was
        committed before `committed_before` or is not among the `newest`, but only together with all older
        rows. The last two committed rows stay, and everything after them, such as a `committing` row: another
        attempt may write over the last committed row, and `recover` then begins with the one before.
        The driver calls this every few minutes, from a separate thread, while batches are committed. Errors
        are logged. Optional: the default keeps everything.
        """
        return 0

    def drop_used(self, topology: str, table: str, before: Txid) -> int:
        """Delete the rows of a transient table (`SqlTable`) that batches before `before` have written, all of
        which are committed in every store. Returns how many there were. Optional: the default keeps them.
        """
        return 0

    # --- dead letters -------------------------------------------------------------------------------

    def dead_letters(
        self, topology: str, *, whole: bool = True, key: LetterKey | None = None
    ) -> list[StoredDeadLetter]:
        """Return a topology's dead letters, those of all its lives, the oldest batch first; with `key` only
        that one. Without `whole`, they lack key, value, headers and traceback, which may be large. Optional,
        as the three methods below: the defaults are for a store that keeps none.
        """
        return []

    def dead_letter_counts(self, topology: str) -> dict[tuple[Txid, str], int]:
        """Return the number of a topology's dead letters by the txid that left them out and by status."""
        return {}

    def late_letters(self, topology: str) -> int:
        """Return how many of a topology's dead letters are late records, and dead as yet. The default reads
        all dead letters."""
        found = self.dead_letters(topology, whole=False)
        return sum(one.status == DEAD and one.letter.is_late for one in found)

    def drop_dead_letters(self, topology: str, keys: Sequence[LetterKey]) -> int:
        """Delete dead letters, because an operator no longer wants them. Returns how many there were."""
        return 0

    # --- reading ------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        """Return the existing rows of `keys` (key columns, no key twice) with their key and value columns.

        Opaque: as they were before batch `before`, whatever an attempt of it has written since.
        Transactional: as they are now, because a batch that is written twice is the same both times. Raises
        StateValueError for a key that could not be written either.
        """

    def read_state(self, topology: str) -> AbstractContextManager[StateReading]:
        """Return the topology's state as of one moment, for `txstream state ...` and `txstream.inspect`.

        Optional: the default raises UsageError, and everything but those two works without it.
        """
        raise UsageError(
            f"the state in {self.display_url} cannot be shown: {type(self).__name__} does not implement "
            f"read_state; look at it with its own tools"
        )

    def top(self, table: str, *, topology: str, n: int = 10) -> list[dict[str, Any]]:
        """Return the `n` rows of a state table with the greatest first value, each as column -> value.

        The framework's columns are included. Raises what `read_state` raises, and StateTableError when the
        table does not belong to this topology.
        """
        with self.read_state(topology) as state:
            rows = state.top(table, n)
            stored = next(found for found in state.tables() if found.name == table)
        return [stored.columns(row) for row in rows]

    @abstractmethod
    def delete(
        self, topology: str, *, drop_state: bool, uuid: str | None = None, attempt: AttemptId | None = None
    ) -> list[str]:
        """Delete a topology's fence and ledger, with `drop_state` its state tables too.

        Returns the names of the dropped tables. With `uuid`, only what belongs to that life is deleted. What
        does not exist is skipped. No driver of the topology may be running. Where one may be, pass `attempt`:
        when the fence is above it, this raises StaleAttemptError and deletes nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Close all connections. The object stays usable: it opens new ones when needed."""
