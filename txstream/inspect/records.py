"""The answers of inspection: frozen dataclasses of plain values, for notebooks and for the command line.

`database` is always the URL without its password. Txid 0 means that none is committed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from txstream.core.entry_points import VIEWS, load
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, Epoch, Txid
from txstream.inspect.tabular import Tabular

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from txstream.zookeeper.candidates import Candidate


@dataclass(frozen=True, slots=True)
class MissingDatabase:
    """A database of a topology that could not be read: why, and what would help. If `database` is empty,
    nobody knows where it is."""

    database: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        which = f"database {self.database}" if self.database else "its database"
        return f"{which} was left out: {self.reason}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class TopologySummary:
    """One known topology. `leader` is host:pid, or None if nobody runs it. `databases` hold its state;
    `missing` are those of them that could not be read. `kind` is its semantics, or "tracked"."""

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
class TopologyStatus(Tabular):
    """How far one topology is. `positions` are the next place of each partition as of the last committed
    batch: an offset where the source's metas have one. `failing` is a batch whose attempts fail, `waiting` is
    what the leader waits for, and `trees` is the state of tracked tuples. `paused_since` and `paused_by` are
    None unless an operator has paused it. `standbys` are the drivers that wait to lead, the next one
    first. `behind` says of tables whose rows leave for a topic how many txids are not all there yet."""

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
    behind: Mapping[str, int] = field(default_factory=dict)

    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        rows: list[Sequence[object]] = [
            ("semantics", str(self.semantics)),
            ("leader", self.leader or "none, it is not running"),
            ("standbys", str(len(self.standbys))),
            ("current txid", str(self.current_txid)),
            *((f"next place of {name}", str(place)) for name, place in self.positions.items()),
            *(("waits for", str(wait)) for wait in self.waiting),
        ]
        if self.paused_since is not None:
            rows.append(("paused", f"since {self.paused_since} by {self.paused_by}"))
        if self.failing is not None:
            rows += [(f"txid {self.failing.txid} fails", reason) for reason in self.failing.reasons]
        return f"topology {self.id}", ["what", "value"], rows


# --- state -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateTable:
    """One state table. `key` and `value` are DDL. `rows` is their number as of txid `as_of`, the last one
    that this database has committed, or None for a table that is gone or not as declared. `notes` say how far
    that holds."""

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
    """One row. `txid` is the last batch that changed it, or None if unknown. `prev` holds the values before
    `txid` (opaque tables; None if that txid created the row)."""

    key: Mapping[str, Any]
    value: Mapping[str, Any]
    prev: Mapping[str, Any] | None = None
    txid: Txid | None = None


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows of one table as of txid `as_of`. `rows` is empty if no row has the key that was asked for."""

    database: str
    table: str
    semantics: Semantics
    rows: tuple[StateRow, ...]
    as_of: Txid
    notes: tuple[str, ...] = ()
    has_prev: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """What a txid did to a row. `before` is None if it created the row, `after` if it removed it."""

    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """What one txid changed in one table, as far as the table still knows.

    Opaque: `created`, `changed` and `removed` are rows with their values before and after, removed ones of
    the last batch only; `unchanged` counts the rows that carry the txid with the value that they had before.
    `carrying` are the rows that carry the txid and whose earlier values are not known: those of transactional
    tables, and of a table of rows that may be replaced those that an undone batch had replaced.
    `carrying_count` counts all rows that carry the txid, including those beyond a limit. `overwritten` counts
    the rows that it wrote and later batches have changed since, in all tables of this database together; None
    if unknown.
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
    removed: tuple[RowChange, ...] = ()


# --- batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One database's ledger row of a batch.

    `attempt` has the leader's epoch in the bits above the lower 32. `status` is "committing" or "committed".
    `tuples` counts those that came from the spout, `keys` the rows written in all its state tables. Times are
    in UTC; `committed_at` is None until the commit. `error` is that of the last failed attempt. `metas` and
    `details` are JSON objects, as stored.
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

    @property
    def lag_records(self) -> int | None:
        """The records that were there and not taken when the batch was planned; None where the row does not
        say: that of an older txstream, of a source that does not tell, or while a partition was away."""
        lag = self.details.get("lag_records")
        return lag if isinstance(lag, int) else None


def numbers_of(stored: Any) -> dict[str, float]:
    """Return the numbers of a stored object by name; empty if it is none."""
    return {
        str(name): float(value)
        for name, value in (stored.items() if isinstance(stored, Mapping) else ())
        if isinstance(value, (int, float))
    }


@dataclass(frozen=True, slots=True)
class Batch:
    """One txid over all databases of its topology. `status` is "committed" if every database that was read
    has committed it, "committing" if one has only begun, and "partial" if one has no row of it.
    `dead_letters` are the records that it left out, whatever has become of them since. `in_commit` has the
    seconds of its commit by step, which only the row of the next txid has: empty for the newest batch, for
    the last one of a driver, and where an older txstream wrote that row."""

    txid: Txid
    status: str
    entries: tuple[LedgerEntry, ...]
    dead_letters: int = 0
    in_commit: Mapping[str, float] = field(default_factory=dict)

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds by step, as far as the ledger has them; `begin` and `write` are parts of `commit`."""
        # All databases were given the same details; the one that committed last may have the most.
        best = max(self.entries, key=lambda one: len(one.details))
        return {**numbers_of(best.details.get("timings")), **self.in_commit}

    @property
    def first(self) -> LedgerEntry:
        return self.entries[0]

    @property
    def keys(self) -> int:
        """The number of rows written in all databases."""
        return sum(entry.keys for entry in self.entries)


class Batches(Tabular, list[Batch]):
    """Batches, oldest first: a list, and a table."""

    __slots__ = ()

    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        names = ["txid", "status", "tuples", "keys", "dead_letters", "lag_records"]
        names += ["planned_at", "committed_at", "error"]
        rows: list[Sequence[object]] = [
            (
                one.txid,
                one.status,
                one.first.tuples,
                one.keys,
                one.dead_letters,
                one.first.lag_records,
                one.first.planned_at,
                one.first.committed_at,
                one.first.error,
            )
            for one in self
        ]
        return "batches", names, rows

    def plot(self) -> Figure:
        """Return a figure of records per second, of the seconds of each phase and of the lag, by txid. Needs
        matplotlib, which the extra `svg` installs; raises
        ServiceUnavailableError without."""
        plot_batches: Callable[..., Figure] = load(VIEWS, "batches", "view of batches")
        ended = [one.first.committed_at for one in self]
        pairs = [
            (one, (now - before).total_seconds())
            for one, before, now in zip(self[1:], ended, ended[1:], strict=False)
            if before is not None and now is not None and now > before
        ]
        return plot_batches(
            [one.txid for one in self],
            [(one.txid, one.first.tuples / passed) for one, passed in pairs],
            [one.timings for one in self],
            [one.first.lag_records for one in self],
        )


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """What a batch read of one partition: `start` to `end` - 1 if the source's metas are offsets. `meta` is
    the stored meta. If `skipped_from` is set, data from there to `start` was lost and skipped."""

    partition: str
    start: int | None
    end: int | None
    skipped_from: int | None
    meta: Any

    @property
    def records(self) -> int | None:
        """The number of offsets, including those that compaction or markers left empty."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt of a batch that failed before another one committed it. `ranges` is what it held, or None if
    unknown. `left_out` are the partitions that it left out. `more` counts the ranges and left-out partitions
    for which the ledger had no room. `traceback` is that of user code, as far as the ledger had room."""

    attempt: AttemptId | None
    error: str
    failed_at: datetime | None
    ranges: tuple[PartitionRange, ...] | None = None
    left_out: tuple[str, ...] = ()
    more: int = 0
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class BatchDetails:
    """One txid in full. `path` is "driver" or "executors"; `timings` are seconds by step. Both are missing
    for batches of an older txstream. `skipped` are partitions of which nothing was read, but whose place
    moved past a gap. `taken_up` says which later txids hold what the batch would have held of a partition in
    `unavailable`: none yet if that is empty."""

    batch: Batch
    ranges: tuple[PartitionRange, ...]
    skipped: tuple[PartitionRange, ...]
    unavailable: Mapping[str, str]
    path: str | None
    timings: Mapping[str, float]
    failed_attempts: tuple[FailedAttempt, ...]
    taken_up: Mapping[str, tuple[Txid, ...]] = field(default_factory=dict)


# --- fsck and recover ------------------------------------------------------------------------------


class Severity(StrEnum):
    """How bad a finding is. An error keeps the topology from going on exactly-once, or says that data is
    wrong. A warning may become an error. A note is only worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `code` names its kind and never changes. `where` is a place (a znode, a database, a table,
    a partition). `remedy` says what mends it; `command` is the command in the remedy, if there is one."""

    code: str
    severity: Severity
    where: str
    what: str
    remedy: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class FsckReport(Tabular):
    """What was compared (`checked`, a sentence each), and the findings, worst first."""

    topology: str
    checked: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is worse than a note."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        rows: list[Sequence[object]] = [
            (str(one.severity), one.where, one.what, one.remedy, one.command) for one in self.findings
        ]
        title = f"fsck of {self.topology}: {len(self.checked)} checks"
        return title, ["severity", "where", "what", "remedy", "command"], rows


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `recover` found wrong and did. If `problem` is None, nothing was wrong and nothing was changed.

    `current_txid` commits next; it runs `again` if it was committed in part. `epoch` is the one that was
    claimed for the rebuild; `fences` are the databases whose fences were raised to it.
    """

    topology: str
    problem: str | None
    uuid: str
    current_txid: Txid
    again: bool
    epoch: Epoch
    fences: tuple[str, ...]
    changes: tuple[str, ...] = ()
