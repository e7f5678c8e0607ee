"""What `fsck` looks at, read once: ZooKeeper's part, and each database's fence, ledger and tables.

Invariant: ZooKeeper's progress is read before and after the ledgers, and is the same both times, so that the
two can be compared while the topology runs. What cannot be read is kept as its error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txstream.api.errors import (
    CorruptStateError,
    SchemaRevisionError,
    StateTableError,
    TxstreamError,
    UsageError,
)
from txstream.metas import MetaCodec
from txstream.state import BatchRecord, FenceRow, StateBackend
from txstream.state.reading import StateReading, StoredTable
from txstream.state.records import AccessDeniedError
from txstream.transaction import Epoch

if TYPE_CHECKING:
    from txstream.zookeeper import Identity, Progress, ProgressStore

_READS = 5
_UNREADABLE = (CorruptStateError, SchemaRevisionError, AccessDeniedError)


@dataclass(frozen=True)
class TableEvidence:
    """One table. `differences` is None when it is gone; counts are only there when it is as declared."""

    table: StoredTable
    differences: tuple[str, ...] | None
    newest_txid: int = 0
    newest_key: Any = None
    before_the_first: int = 0
    half_created: int = 0
    carrying_last: int | None = None


@dataclass(frozen=True)
class DatabaseEvidence:
    """One database. `rows` are the ledger's, oldest first; `errors` what could not be read, in words.
    `snapshot_last` is the ledger's last row of the moment in which the tables were read."""

    url: str
    fence: FenceRow | None
    rows: tuple[BatchRecord, ...]
    tables: tuple[TableEvidence, ...]
    snapshot_last: BatchRecord | None
    errors: tuple[TxstreamError, ...] = ()

    @property
    def last(self) -> BatchRecord | None:
        return self.rows[-1] if self.rows else None

    @property
    def is_joining(self) -> bool:
        """Does it only hold states that were joining when their driver died? Then it has no ledger yet."""
        kept = ((self.fence.identity or {}).get("identity") or {}) if self.fence else {}
        named = kept.get("tables", []) if isinstance(kept, dict) else []
        return not self.rows and bool(self.tables) and not {t.table.name for t in self.tables} & {*named}

    @property
    def uuid(self) -> str | None:
        known = self.fence or self.last
        return None if known is None else known.uuid


@dataclass(frozen=True)
class Evidence:
    """Everything. `moved` says that the topology runs too fast for its progress to be compared."""

    topology: str
    identity: Identity | None
    progress: Progress | None
    epoch: Epoch | None
    leader: str | None
    databases: tuple[DatabaseEvidence, ...]
    moved: bool = False
    errors: tuple[TxstreamError, ...] = field(default=())


def gather(
    topology_id: str,
    open_store: Callable[[MetaCodec[Any]], ProgressStore],
    codec_for: Callable[[Identity | None], MetaCodec[Any]],
    databases: Sequence[StateBackend],
    leader: Callable[[], str | None],
) -> Evidence:
    """Read it all. `codec_for` says how the metas of an identity are read."""
    errors: list[TxstreamError] = []
    identity = _tried(lambda: open_store(codec_for(None)).read_identity(), errors)
    store = open_store(codec_for(identity))
    progress: Progress | None = None
    found: list[DatabaseEvidence] = []
    moved = False
    for _ in range(_READS):
        here: list[TxstreamError] = []
        progress = None if identity is None else _tried(store.load, here)
        found = [_look(topology_id, database) for database in databases]
        after = None if identity is None else _tried(store.load, [])
        moved = (progress and progress.current) != (after and after.current)
        if not moved:
            break
    # After the fences: an epoch is claimed before it is in a fence.
    epoch = _tried(store.read_epoch, here)
    for read in (store.read_requests, store.read_assignment, store.read_failing, store.read_waiting):
        _tried(read, here)
    return Evidence(topology_id, identity, progress, epoch, leader(), tuple(found), moved, (*errors, *here))


def _tried(read: Callable[[], Any], errors: list[TxstreamError]) -> Any:
    try:
        return read()
    except _UNREADABLE as error:
        errors.append(error)
        return None


def _look(topology_id: str, database: StateBackend) -> DatabaseEvidence:
    errors: list[TxstreamError] = []
    # The ledger first: an attempt is in the fence before it is in the ledger.
    rows = _tried(lambda: tuple(database.batches(topology_id)), errors) or ()
    fence = _tried(lambda: database.read_fence(topology_id), errors)
    tables: list[TableEvidence] = []
    last: BatchRecord | None = None
    try:
        with database.read_state(topology_id) as reading:
            last = reading.last
            for table in reading.tables():
                tables.append(_table(reading, table))
    except _UNREADABLE as error:
        if not errors:  # the ledger's own trouble is known already
            errors.append(error)
    except (StateTableError, UsageError):
        pass  # nothing is there, which the fence's absence tells, or its store shows no tables
    return DatabaseEvidence(database.url_for_people, fence, rows, tuple(tables), last, tuple(errors))


def _table(reading: StateReading, table: StoredTable) -> TableEvidence:
    differences = reading.differences(table.name)
    if differences is None or differences:
        return TableEvidence(table, None if differences is None else tuple(differences))
    if not table.has_txid:
        return TableEvidence(table, ())
    newest, key = reading.newest_row(table.name)
    last = reading.last
    return TableEvidence(
        table,
        (),
        newest,
        key,
        reading.rows_before_the_first(table.name),
        reading.rows_half_created(table.name),
        None if last is None else reading.count_written_by(table.name, last.txid),
    )
