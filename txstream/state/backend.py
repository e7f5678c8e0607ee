"""`StateBackend`: what the engine needs from a store of states: a SQL database, or one of your own.

A store brings transactions (`begin`), tables and reading. How a batch is committed with them is in
`commit_protocol`, for every store alike; `of` gives it, bound to one life of a topology.

Invariant: what fails leaves nothing behind, but for an AnswerLostError, whose outcome
`TopologyStates.outcome` tells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.errors import StateTableError, UsageError
from txstream.semantics import Semantics
from txstream.state.commit_protocol import StateTransaction, TopologyStates
from txstream.state.reading import StateReading
from txstream.state.records import BatchRecord, FenceRow, TableSpec, TopologyLife
from txstream.transaction import AttemptId, Txid


class StateBackend(ABC):
    """One store with states, their fence and their ledger. Thread-safe: called from several threads at once.

    Every method raises ServiceUnavailableError while the store cannot be reached; the engine waits, with
    backoff, and asks again.
    """

    url_for_people: str
    """Where it is, without a password."""

    on_executors: ClassVar[bool] = True
    """Can a process on another machine open it by its URL? If not, every batch takes the driver path."""

    outlives_process: ClassVar[bool] = True
    """Is what was committed still there when this process has ended? If not, it is for tests: a run, whose
    progress in ZooKeeper stays, refuses it."""

    # --- at start -----------------------------------------------------------------------------------

    @abstractmethod
    def check(self) -> None:
        """Raise ServiceUnavailableError, with the remedy, unless the store answers in time."""

    @abstractmethod
    def ensure_framework_tables(self) -> None:
        """Make room for fence and ledger where there is none. Raises SchemaRevisionError where the room was
        made by another version and must be upgraded by a command."""

    @abstractmethod
    def join(self, life: TopologyLife, *, first_run: bool, identity: Mapping[str, Any] | None = None) -> None:
        """Make sure that fence and state tables are there and are this life's; all or nothing.

        On the first run what is missing is created; later, what is missing was lost, and is refused. The
        fence is created for every semantics: it also registers the topology here. `identity` is what
        `txstream recover` rebuilds ZooKeeper from; it is kept beside the fence. Once the fence was raised, it
        may be left to `keep_identity` to replace it. Raises
        ProgressMismatchError, IdentityMismatchError, StateTableError or CorruptStateError.
        """

    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        """Bring tables whose declaration has grown since they last joined to what is declared now; what was
        done, a sentence each. `join` accepts such a change and does nothing about it.

        Called by each leader once, after every fence was raised to `attempt` and before its first commit; the
        fence is demanded. A crash in it is followed by another call. `unfinished` is a txid that is committed
        in part: raises StateTableError for what cannot be done before that is over. Optional: the default is
        for a store whose `join` accepts no change.
        """
        return []

    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        """A store that joins a topology which has committed batches elsewhere: its ledger holds `last`, the
        last of them, and nothing else.

        Called by a leader after every fence was raised to `attempt`, which is demanded, before anything is
        committed here; it may be called again after a crash. Optional: the default raises StateTableError.
        """
        raise StateTableError(
            f"{self.url_for_people} cannot join topology {life.topology!r}, which has committed batches: "
            f"{type(self).__name__} does not implement begin_ledger; run it under another id (--id)"
        )

    def keep_identity(self, life: TopologyLife, attempt: AttemptId, identity: Mapping[str, Any]) -> None:
        """Keep `identity` beside the fence from now on, in place of what `join` has left there.

        Called by each leader after every fence was raised to `attempt`, which is demanded, and before its
        first commit; it may be called again. Optional: the default has `join` do it, which demands nothing,
        so that an older driver that wakes up may put its own in place of a newer one.
        """
        self.join(replace(life, tables=()), first_run=False, identity=identity)

    # --- the commit ---------------------------------------------------------------------------------

    bound: ClassVar[type[TopologyStates]] = TopologyStates

    def of(
        self, topology: str, uuid: str, semantics: Semantics, tables: Sequence[TableSpec] = ()
    ) -> TopologyStates:
        """This store, bound to one life of a topology; `tables` are those of its tables that are here."""
        return self.bound(self, TopologyLife(topology, uuid, semantics, tuple(tables)))

    @abstractmethod
    def begin(
        self,
        life: TopologyLife,
        doing: str,
        *,
        alone: bool = True,
        lock_timeout_seconds: float | None = None,
    ) -> AbstractContextManager[StateTransaction]:
        """One transaction, committed at the end of the `with` block and undone when that raises.

        `doing` is for messages. Only tasks of one attempt, which write different keys, may write side by side
        with others of this life (`alone=False`). Raises FenceLockedError when a lock is not granted within
        `lock_timeout_seconds`, ServiceUnavailableError, or AnswerLostError when only the ledger knows whether
        it was committed.
        """

    @abstractmethod
    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        """Deltas checked and in the order to write them in, before any transaction begins.

        Raises StateValueError or StateTableError for what this store cannot keep.
        """

    # --- the fence ----------------------------------------------------------------------------------

    @abstractmethod
    def read_fence(self, topology: str) -> FenceRow | None:
        """The fence of a topology; None when it has not been run here."""

    @abstractmethod
    def topologies(self) -> list[FenceRow]:
        """The topologies that have been run here, by id."""

    # --- the ledger ---------------------------------------------------------------------------------

    @abstractmethod
    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        """The ledger's row of one txid."""

    @abstractmethod
    def batches(self, topology: str, *, limit: int | None = None) -> list[BatchRecord]:
        """The ledger's rows, oldest first; with `limit` only the last ones."""

    def last_batch(self, topology: str) -> BatchRecord | None:
        """The ledger's row with the greatest txid."""
        found = self.batches(topology, limit=1)
        return found[0] if found else None

    def oldest_txid(self, topology: str) -> Txid | None:
        """The least txid in the ledger: what came before it was pruned, or was before this store joined. None
        for an empty one."""
        found = self.batches(topology)
        return found[0].txid if found else None

    def prune(
        self, topology: str, *, committed_before: datetime | None, newest: int | None, rows: int
    ) -> int:
        """Delete at most `rows` of the ledger's oldest rows in one short transaction; returns how many, fewer
        than `rows` when no more may go.

        A row may go when it was committed before `committed_before`, or is not among the `newest`; only
        together with all that are older, and never the last two committed ones or anything after them, such
        as one that is `committing`: another attempt may write over the last one, and then `recover` begins
        with the one before. Called on the driver, from a thread of its own beside the commits, every few
        minutes. What it raises is logged. Optional: the default keeps everything.
        """
        return 0

    # --- reading ------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        """The rows of `keys` (key columns, no key twice) that exist: key and value columns.

        Opaque: as they were before batch `before`, whatever an attempt of it has written since.
        Transactional: as they are, since a batch that is written twice is the same both times. Raises
        StateValueError for a key that the store cannot hold, as when it is written.
        """

    def read_state(self, topology: str) -> AbstractContextManager[StateReading]:
        """The topology's state as of one moment, for `txstream state ...` and `txstream.inspect`.

        Optional: the default raises UsageError, and everything but those commands works without it.
        """
        raise UsageError(
            f"the state in {self.url_for_people} cannot be shown: {type(self).__name__} does not implement "
            f"read_state; look at it with its own tools"
        )

    def top(self, table: str, *, topology: str, n: int = 10) -> list[dict[str, Any]]:
        """The `n` rows of a state table with the greatest first value, as column -> value, the framework's
        columns among them. As `read_state`; raises StateTableError when the table is not this topology's."""
        with self.read_state(topology) as state:
            rows = state.top(table, n)
            stored = next(found for found in state.tables() if found.name == table)
        return [stored.columns(row) for row in rows]

    @abstractmethod
    def delete(
        self, topology: str, *, drop_state: bool, uuid: str | None = None, attempt: AttemptId | None = None
    ) -> list[str]:
        """Forget a topology: its fence and ledger, with `drop_state` its state tables too; the names of the
        tables dropped. With `uuid` only what belongs to that life of it. What is not there is not missed. No
        driver of it may be running; where one may be, `attempt` is given: with the fence above it nothing is
        deleted. Raises StaleAttemptError then."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections. The object can be used again; it opens new ones."""
