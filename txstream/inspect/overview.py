"""Which topologies there are, and how far one is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txstream.api.errors import CorruptStateError
from txstream.inspect.databases import databases_of, not_in_zookeeper, open_databases, open_zookeeper
from txstream.inspect.records import MissingDatabase, TopologyStatus, TopologySummary
from txstream.settings import Settings
from txstream.transaction import Txid

if TYPE_CHECKING:
    from txstream.failing import FailingBatch, Wait
    from txstream.inspect.databases import Databases
    from txstream.state import FenceRow
    from txstream.zookeeper import ZooKeeper


def topologies(settings: Settings | None = None) -> list[TopologySummary]:
    """The topologies that ZooKeeper or a database knows, by id. Raises UsageError without an address of
    ZooKeeper, ServiceUnavailableError. One whose progress cannot be read has a note that says so."""
    settings = (settings or Settings()).resolve()
    with open_zookeeper(settings) as zookeeper, open_databases(settings) as databases:
        return summaries(zookeeper, databases)


def summaries(zookeeper: ZooKeeper, databases: Databases) -> list[TopologySummary]:
    """As `topologies`, from what is open."""
    fences: dict[str, list[tuple[str, FenceRow]]] = {}
    last: dict[str, list[Txid]] = {}
    for database in databases.opened:
        for fence in database.topologies():
            fences.setdefault(fence.topology, []).append((database.url_for_people, fence))
            row = database.last_batch(fence.topology)
            last.setdefault(fence.topology, []).append(Txid(0) if row is None else row.txid)
    stored = set(zookeeper.topologies())
    found = []
    for topology_id in sorted(stored | fences.keys()):
        here = fences.get(topology_id, [])
        named = {url for _, fence in here for url in databases_of(fence)}
        missing = tuple(one for one in databases.missing if one.database in named)
        places = tuple(sorted({url for url, _ in here} | {one.database for one in missing}))
        known = _from_databases(databases, topology_id, here, max(last.get(topology_id, [Txid(0)])), places)
        if topology_id in stored:
            found.append(_from_zookeeper(zookeeper, topology_id, known))
        else:
            found.append(known)
        if missing:
            found[-1] = _with_missing(found[-1], missing)
    return found


def status(topology_id: str, settings: Settings | None = None) -> TopologyStatus:
    """How far a topology is, as ZooKeeper has it. Raises UnknownTopologyError, CorruptStateError, and as
    `topologies`."""
    from txstream.inspect.plain import positions, read_progress

    settings = (settings or Settings()).resolve()
    with open_zookeeper(settings) as zookeeper:
        identity, progress = read_progress(zookeeper, topology_id)
        if identity is None or progress is None:
            raise not_in_zookeeper(settings, topology_id)
        leader = zookeeper.leader(topology_id)
        failing = failing_of(zookeeper, topology_id, progress.current)
        waiting = waiting_of(zookeeper, topology_id, leader)
    committed = progress.batches.get(Txid(progress.current - 1))
    return TopologyStatus(
        id=topology_id,
        uuid=identity.uuid,
        semantics=identity.semantics,
        spout=identity.spout,
        source=dict(identity.source),
        tables=identity.tables,
        leader=leader,
        current_txid=progress.current,
        stored_plans=tuple(txid for txid in sorted(progress.batches) if txid >= progress.current),
        positions={} if committed is None else positions(committed.metas),
        failing=failing,
        waiting=waiting,
    )


def failing_of(zookeeper: ZooKeeper, topology_id: str, current: Txid) -> FailingBatch | None:
    """The batch that has failed last, unless it was committed since. Raises CorruptStateError."""
    from txstream.zookeeper import Paths, read_failing

    found = read_failing(zookeeper.tree(), Paths(zookeeper.root, topology_id))
    return found if found is not None and found.txid >= current else None


def waiting_of(zookeeper: ZooKeeper, topology_id: str, leader: str | None) -> tuple[Wait, ...]:
    """What the present leader waits for. Raises CorruptStateError."""
    from txstream.zookeeper import Paths, read_waiting

    return () if leader is None else read_waiting(zookeeper.tree(), Paths(zookeeper.root, topology_id))


def _from_zookeeper(zookeeper: ZooKeeper, topology_id: str, known: TopologySummary) -> TopologySummary:
    """`known` is what the databases know: one that is damaged in ZooKeeper must not hide the others."""
    from txstream.inspect.plain import read_progress

    leader = zookeeper.leader(topology_id)
    try:
        identity, progress = read_progress(zookeeper, topology_id)
    except CorruptStateError as error:
        return replace(known, leader=leader, note=str(error))
    return TopologySummary(
        id=topology_id,
        uuid=identity.uuid if identity else None,
        semantics=identity.semantics if identity else None,
        txid=Txid(progress.current - 1) if progress else Txid(0),
        leader=leader,
        tables=identity.tables if identity else (),
        databases=known.databases,
        note=None,
    )


def _from_databases(
    databases: Databases,
    topology_id: str,
    fences: list[tuple[str, FenceRow]],
    txid: Txid,
    places: tuple[str, ...],
) -> TopologySummary:
    row = next(
        (row for db in databases.opened if (row := db.last_batch(topology_id)) is not None),
        None,
    )
    return TopologySummary(
        id=topology_id,
        uuid=fences[0][1].uuid if fences else None,
        semantics=row.semantics if row else None,
        txid=txid,
        leader=None,
        tables=(),
        databases=places,
        note="not in this ZooKeeper",
    )


def _with_missing(summary: TopologySummary, missing: tuple[MissingDatabase, ...]) -> TopologySummary:
    named = ", ".join(one.database for one in missing)
    note = f"could not look at {named}"
    return replace(summary, missing=missing, note=f"{summary.note}; {note}" if summary.note else note)
