"""The values that the engine and a state's database exchange."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa

from txstream.api.reducers import Reducer
from txstream.api.state import SqlState
from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import CorruptStateError, ServiceUnavailableError, StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid

BatchStatus = Literal["committing", "committed"]
COMMITTING: BatchStatus = "committing"
COMMITTED: BatchStatus = "committed"


class AnswerLostError(ServiceUnavailableError):
    """The connection broke while COMMIT was under way, so the batch may be committed or not.

    Wait until the database answers, then ask `TopologyStates.outcome`.
    """


class SchemaDamagedError(CorruptStateError):
    """A table or column that existed is missing: somebody dropped or altered it."""


class AccessDeniedError(StateTableError):
    """The account may not do this in the database."""


class FenceLockedError(ServiceUnavailableError):
    """Another session did not release a lock in time that this one needs. Nothing was written: try again."""


@dataclass(frozen=True)
class TableSpec:
    """One state table of a topology. `reducers` says for each value column how a delta is merged into it.

    The rows of a `SqlTable` are not merged: its reducers are all Put, and `state.on_conflict` decides.
    """

    state: SqlState
    semantics: Semantics
    reducers: Mapping[str, Reducer]

    @property
    def appends(self) -> bool:
        """Whether its rows are written as they come."""
        return self.state.on_conflict is not None

    @property
    def keeps_prev(self) -> bool:
        """Whether its rows keep what they held before their txid."""
        return self.semantics is Semantics.OPAQUE and self.state.on_conflict in (None, "replace")

    @property
    def is_keyed(self) -> bool:
        """Whether a key can have one row only. Without txids, a replayed row that may not be replaced must be
        able to come twice."""
        return self.semantics is not Semantics.NON_TRANSACTIONAL or self.state.on_conflict != "fail"


@dataclass(frozen=True)
class TopologyLife:
    """One life of a topology, from its first run until it is deleted, and its tables in one store."""

    topology: str
    uuid: str
    semantics: Semantics
    tables: tuple[TableSpec, ...] = ()

    @functools.cached_property
    def is_fenced(self) -> bool:
        return self.semantics is not Semantics.NON_TRANSACTIONAL


@dataclass(frozen=True)
class Commit:
    """One attempt of one batch, ready to be committed.

    `deltas` by table name: key columns first, then one delta per value column, every key once. A table that
    is missing or has no rows has no deltas in this batch. `metas` is the ledger's JSON document, `tuples` how
    many tuples the spout emitted, `error` why the attempt before this one failed, `after` the attempt that
    committed the previous txid (None where unknown). Times are timezone-aware. `details` is for information
    only, but for `read`, in JSON values: `path` ("driver" or "executors"), `timings` (seconds by step),
    `timings_before`
    (those of the commit of the batch before, which its own row cannot have), `attempts` (those of
    this txid that failed: attempt, error, failed_at), `waits` (what the run waited for since the
    batch before: what, since, until), `ended_before` (of a leader's first batch: the epoch of the last leader
    that ended well, or null), `digests` (by table: `txstream.core.digests`), `read` (what the batch was made
    from: `txstream.core.readings`). `letters` are
    the records that `metas` leave out, in the one store of the topology that keeps them; `retried` are those
    of earlier batches that it retries, wherever they are. `horizons` are those of the batch before, by
    table: rows of a time before that may be removed.
    """

    attempt: TransactionAttempt
    metas: dict[str, Any]
    deltas: Mapping[str, pa.Table]
    tuples: int
    planned_at: datetime
    processed_at: datetime
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    after: AttemptId | None = None
    letters: Sequence[DeadLetter] = ()
    retried: Sequence[LetterKey] = ()
    horizons: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FenceRow:
    """The row that every state transaction of a fenced topology first raises or holds.

    `identity` has two members: `identity`, as ZooKeeper has it, and `databases`, all databases of the
    topology. It is None when the row was written by a txstream that did not keep it.
    """

    topology: str
    uuid: str
    attempt: AttemptId
    identity: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class BatchRecord:
    """One row of the ledger. `keys` counts the rows written in all state tables of the database."""

    topology: str
    uuid: str
    txid: Txid
    attempt: AttemptId
    semantics: Semantics
    status: BatchStatus
    metas: dict[str, Any]
    tuples: int
    keys: int
    planned_at: datetime
    processed_at: datetime
    committed_at: datetime | None
    error: str | None
    details: Mapping[str, Any] = field(default_factory=dict)
