"""`fsck`: checks that all stored data of a topology fits together, and that its source still has its data.

It only reads, and may do so while the topology runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from txstream.core.errors import CorruptStateError
from txstream.core.wording import counted
from txstream.inspect.databases import (
    Databases,
    UnknownTopologyError,
    is_tracked,
    open_databases,
    open_zookeeper,
    with_states_of,
)
from txstream.inspect.plain_metas import codec_of
from txstream.inspect.records import Finding, FsckReport, MissingDatabase, Severity
from txstream.inspect.snapshot import Depth, OpenStore, Snapshot, take
from txstream.inspect.source import check_source, source_of
from txstream.plugins.audit.fsck_progress import batches_compared, check_all
from txstream.settings import Settings

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.state import StateBackend
    from txstream.zookeeper import Identity

_WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


def fsck(
    topology_id: str, settings: Settings | None = None, *, topology: Topology | None = None
) -> FsckReport:
    """Compare ZooKeeper, the databases and the source of a topology. `topology` is its code, which is needed
    only if the source needs credentials or is not Kafka.

    Raises UsageError without an address of ZooKeeper, ServiceUnavailableError if it cannot be reached, and
    UnknownTopologyError. A database that cannot be opened is a finding.
    """
    settings = with_states_of((settings or Settings()).resolve(), topology)
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(open_zookeeper(settings))
        databases = Databases()
        if not is_tracked(zookeeper, topology_id):
            databases = stack.enter_context(open_databases(settings, topology_id, strict=False))
        if not databases.opened and topology_id not in zookeeper.topologies():
            raise UnknownTopologyError(topology_id)
        return fsck_in(
            topology_id,
            partial(zookeeper.progress, topology_id),
            databases.opened,
            settings,
            topology=topology,
            missing=databases.missing,
            listed_twice=databases.listed_twice(),
            leader=lambda: zookeeper.leader(topology_id),
        )


def fsck_in(
    topology_id: str,
    open_store: OpenStore,
    databases: Sequence[StateBackend],
    settings: Settings,
    *,
    topology: Topology | None = None,
    missing: Sequence[MissingDatabase] = (),
    listed_twice: Sequence[tuple[str, str]] = (),
    leader: Callable[[], str | None] = lambda: None,
) -> FsckReport:
    """Do what `fsck` does, over services that are open already."""
    snapshot = take(
        topology_id,
        open_store,
        databases,
        leader=leader,
        codec_for=lambda identity: codec_of(identity, topology),
        depth=Depth.ALL,
    )
    known = snapshot.identity or _kept(snapshot)
    codec = codec_of(known, topology)
    if known is not None and known.is_tracked:
        checked = f"ZooKeeper: tracked tuples, epoch {snapshot.epoch}; nothing else is kept of them"
        return FsckReport(topology_id, (checked,), tuple(check_all(snapshot, codec, is_whole=False)))
    source = source_of(known, topology, settings)
    found = [_not_opened(one) for one in missing]
    found += [_one_database(*urls) for urls in listed_twice]
    if not databases and not missing and snapshot.identity is not None:
        found.append(_no_database())
    found += check_all(snapshot, codec, is_whole=bool(databases) and not missing)
    found += check_source(snapshot, source, codec, settings)
    found.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    return FsckReport(topology_id, tuple(_checked(snapshot, asked=source is not None)), tuple(found))


def _kept(snapshot: Snapshot) -> Identity | None:
    """Return the identity stored beside a fence, for when ZooKeeper has lost it."""
    for database in snapshot.databases:
        with contextlib.suppress(CorruptStateError):
            if (found := database.identity()) is not None:
                return found
    return None


def _not_opened(one: MissingDatabase) -> Finding:
    return Finding("database-missing", Severity.ERROR, one.database, one.reason, one.remedy)


def _one_database(one: str, other: str) -> Finding:
    return Finding(
        "database-twice", Severity.ERROR, other,
        f"it is the same database as {one}, and the last run took it for another one: a batch that was "
        f"committed in one table only may have been taken for whole",
        "give all states in it the same URL, and count again under another id",
    )  # fmt: skip


def _no_database() -> Finding:
    return Finding(
        "database-missing", Severity.ERROR, "databases",
        "none of those that were looked at knows the topology, though ZooKeeper does",
        "give the database that it was run with by --database, and others by --state-database",
    )  # fmt: skip


def _checked(snapshot: Snapshot, *, asked: bool) -> list[str]:
    progress = snapshot.progress
    places = [
        "ZooKeeper: nothing"
        if snapshot.identity is None
        else f"ZooKeeper: txid {progress.current - 1} committed last, epoch {snapshot.epoch}"
        if progress is not None
        else "ZooKeeper: progress cannot be read"
    ]
    for database in snapshot.databases:
        last = database.last
        state = "no batch" if last is None else f"txid {last.txid} {last.status}"
        tables = len(database.tables or ())
        place = (
            f"{database.url}: {state}, {counted(len(database.rows), 'ledger row')}, "
            f"{counted(tables, 'state table')}"
        )
        appended = [one.table.name for one in database.tables or () if one.digests is not None]
        if appended:
            batches = counted(len(batches_compared(snapshot, database)), "batch", "batches")
            place += f"; {batches} compared with the rows of {', '.join(appended)}"
        places.append(place)
    places.append("source: stored plans and next places" if asked else "source: not asked")
    return places
