"""All stored data of a topology, read once: ZooKeeper's part, and each database's fence, ledger and tables.

`status`, `fsck` and `recover` judge a snapshot and read nothing else.

Invariant: ZooKeeper's progress is the same before and after the databases are read, so the two can be
compared while the topology runs; otherwise `moved` is set. Of what cannot be read, the error is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.core.batch_metas import MetaCodec
from txstream.core.digests import TableDigest, digest_of
from txstream.core.errors import (
    CorruptStateError,
    SchemaRevisionError,
    StateTableError,
    TxstreamError,
    UsageError,
)
from txstream.core.transaction import Epoch, Txid
from txstream.inspect.plain_metas import PlainCodec
from txstream.state import BatchRecord, FenceRow, StateBackend
from txstream.state.reading import StateReading, StoredTable
from txstream.state.records import AccessDeniedError
from txstream.zookeeper import (
    ASSIGNMENT,
    FAILING,
    FAILING_ATTEMPTS,
    SENT,
    TREES,
    WAITING,
    Identity,
    InForce,
    Request,
    Requests,
)

if TYPE_CHECKING:
    from txstream.core.failing_batch import FailingBatch, Wait
    from txstream.zookeeper import Progress, ProgressStore

_READS = 5
_ROWS_AT_ONCE = 10_000
_UNREADABLE = (CorruptStateError, SchemaRevisionError, AccessDeniedError)

OpenStore = Callable[[MetaCodec[Any]], "ProgressStore"]


class Depth(IntEnum):
    """How much to read of each database."""

    ENDS = 0  # the fence and the ledger's newest two rows
    TABLES = 1  # and the newest row of each table, which takes a scan
    ALL = 2  # and the whole ledger, and counts of rows


@dataclass(frozen=True)
class TablePart:
    """One table. `differences` is None if it is gone. The newest row and the counts are set only if it is as
    declared and its rows carry txids. `digests` are those of the rows of each batch that the ledger has, None
    for a table whose rows may be merged or replaced."""

    table: StoredTable
    differences: tuple[str, ...] | None
    newest_txid: int = 0
    newest_key: Any = None
    before_the_first: int = 0
    half_created: int = 0
    carrying_last: int | None = None
    keeps_older_rows: bool = False
    digests: Mapping[Txid, TableDigest] | None = None


@dataclass(frozen=True)
class DatabasePart:
    """One database. `rows` are the ledger's, oldest first. `tables` is None if its store cannot list them or
    was not asked. `tables_last` is the ledger's last row at the moment when the tables were read. `errors`
    say what could not be read. `dead_letters` is their number by txid and status."""

    database: StateBackend
    fence: FenceRow | None
    rows: tuple[BatchRecord, ...]
    tables: tuple[TablePart, ...] | None = None
    tables_last: BatchRecord | None = None
    errors: tuple[TxstreamError, ...] = ()
    dead_letters: Mapping[tuple[Txid, str], int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.database.display_url

    @property
    def last(self) -> BatchRecord | None:
        return self.rows[-1] if self.rows else None

    @property
    def before(self) -> BatchRecord | None:
        """The row of the txid before the last, if the ledger has it."""
        found = self.rows[-2] if len(self.rows) > 1 else None
        return found if found is not None and found.txid == self.rows[-1].txid - 1 else None

    @property
    def uuid(self) -> str | None:
        known = self.fence or self.last
        return None if known is None else known.uuid

    @property
    def names(self) -> set[str]:
        """The names of its tables."""
        return {one.table.name for one in self.tables or ()}

    def identity(self) -> Identity | None:
        """Return the identity stored beside its fence, if any. Raises CorruptStateError."""
        document = None if self.fence is None else (self.fence.identity or {}).get("identity")
        if not document:
            return None
        return Identity.decode(json.dumps(document).encode(), f"txstream_fence of {self.url}")

    @property
    def is_joining(self) -> bool:
        """Whether it holds only states that were joining when their driver died. Then it has no ledger yet,
        and the next run lets them join."""
        if self.rows or not self.tables:
            return False
        try:
            kept = self.identity()
        except CorruptStateError:
            return False
        return kept is not None and not self.names & {*kept.tables}

    @property
    def is_behind_its_tables(self) -> bool:
        """Whether a table has rows of a txid that the ledger does not know yet."""
        newest = 0 if self.tables_last is None else int(self.tables_last.txid)
        return any(one.newest_txid > newest for one in self.tables or ())


@dataclass(frozen=True)
class Snapshot:
    """Everything that was read. `paused_next` is the pause that the next leader begins with. `failing` is the
    batch that failed last, unless it was committed since. `waiting` is what the leader waits for, `trees` the
    state of tracked tuples. `errors` say what could not be read of the progress, `other_errors` what could
    not be read of operators' requests and of the notes shown to them."""

    topology: str
    identity: Identity | None
    progress: Progress | None
    epoch: Epoch | None = None
    leader: str | None = None
    in_force: InForce = field(default_factory=InForce)
    paused_next: Request | None = None
    failing: FailingBatch | None = None
    waiting: tuple[Wait, ...] = ()
    databases: tuple[DatabasePart, ...] = ()
    moved: bool = False
    errors: tuple[TxstreamError, ...] = ()
    other_errors: tuple[TxstreamError, ...] = ()
    trees: Mapping[str, Any] | None = None
    sent: Mapping[str, Txid] = field(default_factory=dict)

    @property
    def behind(self) -> dict[str, int]:
        """Return how many txids each table whose rows leave for elsewhere is behind what is committed."""
        committed = 0 if self.progress is None else self.progress.current - 1
        return {table: max(0, committed - txid) for table, txid in self.sent.items()}


def take(
    topology_id: str,
    open_store: OpenStore,
    databases: Sequence[StateBackend] = (),
    *,
    leader: Callable[[], str | None] = lambda: None,
    codec_for: Callable[[Identity | None], MetaCodec[Any]] = lambda _: PlainCodec(),
    depth: Depth = Depth.ENDS,
) -> Snapshot:
    """Read everything. `codec_for` says how the metas of an identity are read; without it they stay JSON."""
    errors: list[TxstreamError] = []
    identity = _tried(lambda: open_store(codec_for(None)).read_identity(), errors)
    codec = codec_for(identity)
    store = open_store(codec)
    for _ in range(_READS):
        here: list[TxstreamError] = []
        progress: Progress | None = None if identity is None else _tried(store.load, here)
        parts = tuple(_look(topology_id, database, depth) for database in databases)
        after = None if identity is None or not databases else _tried(store.load, [])
        moved = bool(databases) and (progress and progress.current) != (after and after.current)
        if not moved:
            break
    # Read after the fences: an epoch is claimed before a fence has it, so it cannot seem to be behind.
    epoch = _tried(store.read_epoch, here)
    others: list[TxstreamError] = []
    requests: Requests = _tried(store.read_requests, others) or Requests()
    failing: FailingBatch | None = _tried(partial(store.notes.get, FAILING), others)
    if failing is not None and progress is not None and failing.txid < progress.current:
        failing = None
    if failing is not None:
        noted: FailingBatch | None = _tried(partial(store.notes.get, FAILING_ATTEMPTS), others)
        if noted is not None and noted.txid == failing.txid and noted.attempt >= failing.attempt:
            failing = noted
        plan = None if progress is None else progress.batches.get(failing.txid)
        if plan is not None:
            failing = replace(failing, metas=codec.encode(plan.metas))
    waiting: tuple[Wait, ...] = _tried(partial(store.notes.get, WAITING), others) or ()
    trees = _tried(partial(store.notes.get, TREES), others)
    sent: Mapping[str, Txid] = _tried(partial(store.notes.get, SENT), others) or {}
    if depth is Depth.ALL:
        _tried(partial(store.notes.get, ASSIGNMENT), others)
    led_by = leader()
    return Snapshot(
        topology_id, identity, progress, epoch, led_by, requests.in_force,
        requests.paused_next, failing, waiting if led_by else (), parts, moved, (*errors, *here),
        tuple(others), trees, sent,
    )  # fmt: skip


def _tried(read: Callable[[], Any], errors: list[TxstreamError]) -> Any:
    try:
        return read()
    except _UNREADABLE as error:
        errors.append(error)
        return None


def _look(topology_id: str, database: StateBackend, depth: Depth) -> DatabasePart:
    errors: list[TxstreamError] = []
    limit = None if depth is Depth.ALL else 2
    dead = (_tried(lambda: database.dead_letter_counts(topology_id), errors) or {}) if limit is None else {}
    # Read before the fence: an attempt is in the fence before it is in the ledger. So are dead letters.
    rows = _tried(lambda: tuple(database.batches(topology_id, limit=limit)), errors) or ()
    fence = _tried(lambda: database.read_fence(topology_id), errors)
    if depth is Depth.ENDS:
        return DatabasePart(database, fence, rows, errors=tuple(errors))
    tables: tuple[TablePart, ...] | None = ()
    last: BatchRecord | None = None
    try:
        with database.read_state(topology_id) as reading:
            last = reading.last
            first = rows[0].txid if rows else Txid(0)
            tables = tuple(_table(reading, table, depth, first) for table in reading.tables())
    except _UNREADABLE as error:
        if not errors:  # an error of the ledger is known already
            errors.append(error)
    except StateTableError:
        tables = ()  # there are no tables; the missing fence is reported
    except UsageError:
        tables = None
    return DatabasePart(database, fence, rows, tables, last, tuple(errors), dead)


def _table(reading: StateReading, table: StoredTable, depth: Depth, first: Txid) -> TablePart:
    differences = reading.differences(table.name)
    if differences is None or differences:
        return TablePart(table, None if differences is None else tuple(differences))
    if not table.has_txid:
        return TablePart(table, ())
    newest, key = reading.newest_row(table.name)
    if depth is not Depth.ALL:
        return TablePart(table, (), newest, key)
    last = reading.last
    return TablePart(
        table,
        (),
        newest,
        key,
        reading.rows_before_the_first(table.name),
        reading.rows_half_created(table.name),
        None if last is None else 0 if table.copies else reading.count_written_by(table.name, last.txid),
        table.keeps_older,
        _digests(reading, table, first)
        if table.on_conflict in ("fail", "ignore") and table.copies is None
        else None,
    )


def _digests(reading: StateReading, table: StoredTable, first: Txid) -> dict[Txid, TableDigest]:
    """Return the digest of the rows of each txid from the first on."""
    found: dict[Txid, TableDigest] = {}
    rows = iter(reading.written_since(table.name, first))
    schema = pa.schema([*table.key, *table.value])
    while some := [*islice(rows, _ROWS_AT_ONCE)]:
        for txid, of_one in groupby(some, key=lambda row: row.txid):
            values = pa.Table.from_pylist([{**row.key, **row.value} for row in of_one], schema)
            if txid is not None:
                found[txid] = found.get(txid, TableDigest()) + digest_of(values, table.key.names)
    return found
