"""What inspection answers with: frozen dataclasses of plain values, for notebooks and for the command line.

`database` is always the URL without a password. Txid 0 means: none committed yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from txstream.failing_batch import FailingBatch, Wait
from txstream.semantics import Semantics
from txstream.transaction import AttemptId, Epoch, Txid

if TYPE_CHECKING:
    from txstream.zookeeper.candidates import Candidate


@dataclass(frozen=True, slots=True)
class MissingDatabase:
    """A database of a topology that could not be looked at: why, and what would help."""

    database: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"database {self.database} was left out: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """One known topology. `leader` is host:pid, None when nobody runs it; `databases` those that it has its
    state in, `missing` those of them that could not be looked at; `kind` its semantics, or "tracked"."""

    id: str
    uuid: str | None
    semantics: Semantics | None
    txid: Txid
    leader: str | None
    tables: tuple[str, ...]
    databases: tuple[str, ...]
    note: str | None
    missing: tuple[MissingDatabase, ...] = ()
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """How far one topology is. `positions` are the next place of each partition as of the last committed
    batch: an offset where the source's metas have one. `failing` is a batch whose attempts fail, `waiting`
    what the leader waits for, `trees` how tracked tuples are doing; `paused_since` and `paused_by` are None
    unless an operator has paused it. `standbys` are the drivers that wait to lead, the next one first."""

    id: str
    uuid: str
    semantics: Semantics
    spout: str
    source: Mapping[str, Any]
    tables: tuple[str, ...]
    leader: str | None
    current_txid: Txid
    stored_plans: tuple[Txid, ...]
    positions: Mapping[str, Any]
    failing: FailingBatch | None = None
    waiting: tuple[Wait, ...] = ()
    paused_since: datetime | None = None
    paused_by: str | None = None
    trees: Mapping[str, Any] | None = None
    standbys: tuple[Candidate, ...] = ()


# --- state -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateTable:
    """One state table. `key` and `value` are DDL; `rows` are counted as of txid `as_of`, the last one that
    this database has committed; None for a table that is gone or not as declared. `notes` say how far that
    holds."""

    database: str
    table: str
    key: str
    value: str
    semantics: Semantics
    rows: int | None
    as_of: Txid
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateRow:
    """One row. `prev` are the values before `txid` (opaque; None when that txid created the row); `txid` is
    the last batch that changed it, None where that is not known."""

    key: Mapping[str, Any]
    value: Mapping[str, Any]
    prev: Mapping[str, Any] | None = None
    txid: Txid | None = None


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one table as of txid `as_of`; empty when no row has the key asked for."""

    database: str
    table: str
    semantics: Semantics
    rows: tuple[StateRow, ...]
    as_of: Txid
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a txid did to a row; `before` is None when it created the row."""

    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What one txid changed in one table, as far as the table still knows.

    Opaque: `created` and `changed` rows with their values before and after; `unchanged` rows carry the txid
    with the value that they had before. Transactional: `carrying` rows carry the txid; what they were before
    is not kept. `carrying_count` counts all rows that carry it, also those beyond a limit.
    `overwritten` is how many rows it wrote that later batches have changed since, in all tables of this
    database together; None where that is not known.
    """

    database: str
    table: str
    semantics: Semantics
    txid: Txid
    status: str
    created: tuple[RowChange, ...]
    changed: tuple[RowChange, ...]
    unchanged: int
    carrying: tuple[StateRow, ...]
    carrying_count: int
    overwritten: int | None
    notes: tuple[str, ...] = ()


# --- batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One database's ledger row of a batch.

    `attempt` has the leader's epoch in its upper 32 bits; `status` is "committing" or "committed"; `tuples`
    came from the spout, `keys` counts the rows written over its state tables; times are in UTC, and
    `committed_at` is None until then; `error` is the last failed attempt's; `metas` and `details` are what is
    stored, as JSON objects.
    """

    database: str
    uuid: str
    attempt: AttemptId
    semantics: Semantics
    status: str
    tuples: int
    keys: int
    planned_at: datetime
    processed_at: datetime
    committed_at: datetime | None
    error: str | None
    metas: Mapping[str, Any]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One txid over all databases of its topology. `status` is "committed" when every one that was looked at
    has committed it, "committing" when one has begun, "partial" when one has no row of it."""

    txid: Txid
    status: str
    entries: tuple[LedgerEntry, ...]

    @property
    def first(self) -> LedgerEntry:
        return self.entries[0]

    @property
    def keys(self) -> int:
        """Rows written in all databases."""
        return sum(entry.keys for entry in self.entries)


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """What a batch read of one partition: `start` to `end` - 1 where the source's metas are offsets; `meta`
    is what is stored. `skipped_from`: data from there to `start` was lost and skipped."""

    partition: str
    start: int | None
    end: int | None
    skipped_from: int | None
    meta: Any

    @property
    def records(self) -> int | None:
        """In offsets: what compaction or markers left empty counts too."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt of a batch that failed before another one committed it. `ranges` are what it held, None
    where that is not known; of these and of what it `left_out`, the ledger had no room for `more`."""

    attempt: AttemptId | None
    error: str
    failed_at: datetime | None
    ranges: tuple[PartitionRange, ...] | None = None
    left_out: tuple[str, ...] = ()
    more: int = 0


@dataclass(frozen=True, slots=True)
class BatchDetails:
    """One txid in full. `path` is "driver" or "executors", `timings` seconds by step; both are missing for
    batches of an older txstream. `skipped` are partitions that read nothing but went behind a gap."""

    batch: Batch
    ranges: tuple[PartitionRange, ...]
    skipped: tuple[PartitionRange, ...]
    unavailable: Mapping[str, str]
    path: str | None
    timings: Mapping[str, float]
    failed_attempts: tuple[FailedAttempt, ...]


# --- fsck and recover ------------------------------------------------------------------------------


class Severity(StrEnum):
    """An error keeps the topology from going on exactly, or says that data is wrong; a warning may become
    one; a note is only worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` names the kind of finding and never changes; `where` is a place (a znode, a database, a table, a
    partition), `remedy` what mends it, `command` the command among it."""

    code: str
    severity: Severity
    where: str
    what: str
    remedy: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What was compared (`checked`, a sentence each) and what was found, worst first."""

    topology: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` has found wrong (`problem`; None: nothing, and nothing was changed) and made of it.

    `current_txid` commits next; it runs `again` when it was committed in part. `epoch` is the one that was
    claimed for the rebuild, `fences` the databases whose fences were raised to it.
    """

    topology: str
    problem: str | None
    uuid: str
    current_txid: Txid
    again: bool
    epoch: Epoch
    fences: tuple[str, ...]
    changes: tuple[str, ...] = ()
