"""The list of topologies, and how far one of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from txstream.core.errors import CorruptStateError
from txstream.core.transaction import Txid
from txstream.inspect.databases import databases_of, not_in_zookeeper, open_databases, open_zookeeper
from txstream.inspect.records import TopologyStatus, TopologySummary
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.inspect.databases import Databases
    from txstream.inspect.snapshot import Snapshot
    from txstream.state import FenceRow, StateBackend
    from txstream.zookeeper import ZooKeeper
    from txstream.zookeeper.candidates import Candidate


def topologies(settings: Settings | None = None) -> list[TopologySummary]:
    """Return the topologies that ZooKeeper or a database knows, by id. One whose progress cannot be read has
    a note that says so. Raises UsageError without an address of ZooKeeper, and ServiceUnavailableError."""
    settings = (settings or Settings()).resolve()
    with open_zookeeper(settings) as zookeeper:
        return topologies_in(settings, zookeeper)


def topologies_in(settings: Settings, zookeeper: ZooKeeper) -> list[TopologySummary]:
    """Do what `topologies` does, over a ZooKeeper that is open already."""
    with open_databases(settings, strict=False) as databases:
        fences: dict[str, list[tuple[StateBackend, FenceRow]]] = {}
        for database in databases.opened:
            for fence in database.topologies():
                fences.setdefault(fence.topology, []).append((database, fence))
        stored = set(zookeeper.topologies())
        found = []
        for topology_id in sorted(stored | fences.keys()):
            known = _from_databases(databases, topology_id, fences.get(topology_id, []))
            found.append(_from_zookeeper(zookeeper, known) if topology_id in stored else known)
        return [_with_missing(one) if one.missing else one for one in found]


def status(topology_id: str, settings: Settings | None = None) -> TopologyStatus:
    """Return how far a topology is, as ZooKeeper has it. Raises UnknownTopologyError, CorruptStateError, and
    as `topologies`."""
    settings = (settings or Settings()).resolve()
    with open_zookeeper(settings) as zookeeper:
        return status_of(settings, look(zookeeper, topology_id), zookeeper.standbys(topology_id))


def look(zookeeper: ZooKeeper, topology_id: str, databases: Sequence[StateBackend] = ()) -> Snapshot:
    """Return the snapshot of a topology, metas as JSON. Raises CorruptStateError for unreadable data in
    ZooKeeper, and the errors of the databases."""
    from txstream.inspect.snapshot import take

    snapshot = take(
        topology_id,
        partial(zookeeper.progress, topology_id),
        databases,
        leader=lambda: zookeeper.leader(topology_id),
    )
    for error in (error for database in snapshot.databases for error in database.errors):
        raise error
    for error in (*snapshot.errors, *snapshot.other_errors):
        raise CorruptStateError(f"{error}; `txstream fsck {topology_id}` says how it is mended") from error
    return snapshot


def status_of(settings: Settings, snapshot: Snapshot, standbys: tuple[Candidate, ...] = ()) -> TopologyStatus:
    """Return how far the topology of a snapshot is. Raises UnknownTopologyError."""
    from txstream.inspect.plain_metas import positions

    identity, progress, paused = snapshot.identity, snapshot.progress, snapshot.in_force.paused
    if identity is None or progress is None:
        raise not_in_zookeeper(settings, snapshot.topology)
    committed = progress.batches.get(Txid(progress.current - 1))
    return TopologyStatus(
        id=snapshot.topology,
        uuid=identity.uuid,
        semantics=identity.semantics,
        spout=identity.spout,
        source=dict(identity.source),
        tables=identity.tables,
        leader=snapshot.leader,
        current_txid=progress.current,
        stored_plans=tuple(txid for txid in sorted(progress.batches) if txid >= progress.current),
        positions={} if committed is None else positions(committed.metas),
        failing=snapshot.failing,
        waiting=snapshot.waiting,
        paused_since=None if paused is None else paused.asked_at,
        paused_by=None if paused is None else paused.asked_by,
        trees=snapshot.trees,
        behind=snapshot.behind,
        standbys=standbys,
    )


def _from_databases(
    databases: Databases, topology_id: str, here: Sequence[tuple[StateBackend, FenceRow]]
) -> TopologySummary:
    rows = [row for database, _ in here if (row := database.last_batch(topology_id)) is not None]
    named = {url for _, fence in here for url in databases_of(fence)}
    # Of a topology that no open database knows, any that is away may be its own.
    missing = tuple(one for one in databases.missing if not here or one.database in named)
    return TopologySummary(
        id=topology_id,
        uuid=here[0][1].uuid if here else None,
        semantics=rows[0].semantics if rows else None,
        kind=str(rows[0].semantics) if rows else None,
        txid=max((row.txid for row in rows), default=Txid(0)),
        leader=None,
        tables=(),
        databases=tuple(sorted({one.display_url for one, _ in here} | {one.database for one in missing})),
        note="not in this ZooKeeper",
        missing=missing,
    )


def _from_zookeeper(zookeeper: ZooKeeper, known: TopologySummary) -> TopologySummary:
    """Add what ZooKeeper has to what the databases know. Damaged data only gives a note, so that one topology
    does not hide the others."""
    try:
        snapshot = look(zookeeper, known.id)
    except CorruptStateError as error:
        return replace(known, leader=zookeeper.leader(known.id), note=str(error))
    identity, progress = snapshot.identity, snapshot.progress
    return replace(
        known,
        uuid=identity.uuid if identity else None,
        semantics=identity.semantics if identity else None,
        kind=identity.kind if identity else None,
        txid=Txid(progress.current - 1) if progress else Txid(0),
        leader=snapshot.leader,
        tables=identity.tables if identity else (),
        note=None,
    )


def _with_missing(summary: TopologySummary) -> TopologySummary:
    note = f"could not look at {', '.join(one.database for one in summary.missing)}"
    return replace(summary, note=f"{summary.note}; {note}" if summary.note else note)
