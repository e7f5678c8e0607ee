"""How a topology stands: everything that `txstream status ID` shows, read once, and the same as JSON."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstream.core.entry_points import REMARKS, every
from txstream.core.failing_batch import LeftOut
from txstream.core.transaction import FIRST_TXID
from txstream.inspect.databases import NOWHERE, Databases, is_tracked, open_databases
from txstream.inspect.health import Health, health_in
from txstream.inspect.json_documents import document, entry_document, failing_document
from txstream.inspect.ledgers import entry, failed_attempts
from txstream.inspect.left_out import newest_left_out, number_dead, number_late
from txstream.inspect.overview import look, status_of
from txstream.inspect.plain_metas import PlainCodec
from txstream.inspect.source import SourceNow, begin_to_ask
from txstream.inspect.watermarks import Watermark, least_of, watermarks_in
from txstream.zookeeper import ENDED

if TYPE_CHECKING:
    from txstream.inspect.records import FailedAttempt, MissingDatabase, TopologyStatus
    from txstream.inspect.snapshot import Snapshot
    from txstream.settings import Settings
    from txstream.state import BatchRecord
    from txstream.zookeeper import Request, ZooKeeper


@dataclass(frozen=True, slots=True)
class Remark:
    """What an installed package says of a topology, under a name: in words, and in JSON values."""

    name: str
    told: str
    document: Any


@dataclass(frozen=True, slots=True)
class Standing:
    """`dead_letters`, and how many of them are `late_records`, are None if a database could not be looked at:
    nobody knows, then."""

    status: TopologyStatus
    snapshot: Snapshot
    source: SourceNow
    dead_letters: int | None
    late_records: int | None
    missing: tuple[MissingDatabase, ...]
    left_out: LeftOut | None = None
    ended_well: bool = False
    remarks: tuple[Remark, ...] = ()

    @property
    def places(self) -> list[str]:
        """The databases' URLs, without passwords."""
        return [one.url for one in self.snapshot.databases]

    @property
    def shown_places(self) -> str:
        """Where its tables are, as far as that is known."""
        return ", ".join(self.places) or (
            "a database that could not be looked at" if self.missing else "no database yet"
        )

    @property
    def last(self) -> BatchRecord | None:
        """The newest ledger row of all databases."""
        return max(
            (one.last for one in self.snapshot.databases if one.last), key=lambda row: row.txid, default=None
        )

    @property
    def watermark(self) -> Watermark:
        """Up to which time the windows of all tables that have some are closed."""
        return least_of({} if self.last is None else watermarks_in(self.last.metas.get("horizons", {})))

    @property
    def last_error(self) -> FailedAttempt | None:
        """The last failure before the newest batch was committed; None once its run has ended well."""
        if self.last is None or self.ended_well:
            return None
        return next(reversed(failed_attempts(entry("", self.last))), None)

    @property
    def health(self) -> Health | None:
        """How it is; None if nobody leads it."""
        if self.status.leader is None:
            return None
        return health_in(self.snapshot, self.left_out)


def standing_of(settings: Settings, topology_id: str, zookeeper: ZooKeeper) -> Standing:
    """Read how a topology stands. Raises UnknownTopologyError, CorruptStateError, ServiceUnavailableError."""
    source = begin_to_ask(settings, look(zookeeper, topology_id))  # while the databases are read
    with contextlib.ExitStack() as stack:
        databases = Databases()
        if not is_tracked(zookeeper, topology_id):
            databases = stack.enter_context(open_databases(settings, topology_id, strict=False))
        snapshot = look(zookeeper, topology_id, databases.opened)
        dead = late = left_out = None
        missing = (*databases.missing_of_topology(), *_unknown(snapshot, databases))
        if not missing:
            dead = number_dead(topology_id, databases.opened)
            late = number_late(topology_id, databases.opened) if dead else 0
            left_out = newest_left_out(topology_id, databases.opened)
        status = status_of(settings, snapshot, zookeeper.standbys(topology_id))
        ended = zookeeper.progress(topology_id, PlainCodec()).notes.get(ENDED)
        ended_well = snapshot.leader is None and ended is not None and ended == snapshot.epoch
        remarks = tuple(one for remark in every(REMARKS, "remark") for one in remark(zookeeper, snapshot))
    return Standing(status, snapshot, source(), dead, late, missing, left_out, ended_well, remarks)


def _unknown(snapshot: Snapshot, databases: Databases) -> list[MissingDatabase]:
    """Return that no database is known of a topology that has committed something."""
    progress = snapshot.progress
    if databases.opened or databases.missing or progress is None or progress.current == FIRST_TXID:
        return []
    if snapshot.identity is None or snapshot.identity.is_tracked:
        return []
    return [NOWHERE]


def standing_document(found: Standing) -> dict[str, Any]:
    """Return what `txstream status ID --json` prints."""
    status, last, state = found.status, found.last, found.health
    return {
        "topology": status.id,
        "uuid": status.uuid,
        "semantics": str(status.semantics),
        "spout": status.spout,
        "source": status.source,
        "tables": list(status.tables),
        "database": found.places[0] if found.places else None,
        "databases": found.places,
        "leader": status.leader,
        "standbys": [
            {"driver": one.driver, "since": document(one.since), "standby": one.standby}
            for one in status.standbys
        ],
        "health": None if state is None else {"state": str(state.word), "told": str(state)},
        "paused": _paused(found.snapshot.in_force.paused),
        "paused_next": _paused(found.snapshot.paused_next),
        "current_txid": status.current_txid,
        "stored_plans": list(status.stored_plans),
        "last_batch": None if last is None else entry_document(last.txid, entry("", last)),
        "positions": status.positions,
        "lag_records": found.source.lag_records,
        "unavailable": dict(found.source.unavailable),
        "held_back": {
            name: {"records": one.records, "behind": one.behind}
            for name, one in found.source.held_back.items()
        },
        "behind": dict(status.behind),
        "dead_letters": found.dead_letters,
        "late_records": found.late_records,
        "watermark": document(found.watermark.at),
        "watermark_held_by": list(found.watermark.held_by),
        "failing": None if status.failing is None else failing_document(status.failing),
        "waiting": document(status.waiting),
        "trees": status.trees,
        "remarks": {one.name: one.document for one in found.remarks},
    }


def _paused(pause: Request | None) -> dict[str, str] | None:
    return None if pause is None else {"since": pause.asked_at.isoformat(), "by": pause.asked_by}
