"""`recover`: rebuilds ZooKeeper's part of a topology from what its databases hold.

Invariants. Every database of the topology takes part, or nothing is changed. Everything that the result
depends on is read after an epoch above all others was claimed and every fence was raised to it; earlier reads
only say whether there is anything to mend. The result follows from the ledgers by the protocol's rules for a
new leader, and one write stores it. Nothing is guessed: what the rules do not explain is refused, with the
figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import (
    LeaderExistsError,
    ProgressMismatchError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID, AttemptId, Txid
from txstream.engine.start.recovery import decide, prove_distinct, take_over
from txstream.engine.start.takeover import identity_of
from txstream.inspect.databases import (
    is_tracked,
    living_driver,
    nowhere,
    open_databases,
    open_zookeeper,
    refuse_missing,
    tracks_tuples,
    with_states_of,
)
from txstream.inspect.plain_metas import codec_of
from txstream.inspect.records import Recovery
from txstream.inspect.snapshot import DatabasePart, Depth, OpenStore, Snapshot, take
from txstream.plugins.audit.rebuilt_progress import rebuild
from txstream.settings import Settings
from txstream.state import BatchRecord, StateBackend
from txstream.state.fence_rules import shown_attempt
from txstream.state.records import COMMITTED
from txstream.zookeeper import Identity, Leadership, Progress, StoredBatch

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.zookeeper import ZooKeeper


def recover(
    topology_id: str,
    settings: Settings | None = None,
    *,
    topology: Topology | None = None,
    confirm: Callable[[str], bool] = lambda _: True,
) -> Recovery:
    """Rebuild a topology in ZooKeeper from its ledgers, if it was lost there or restored from an old copy.

    `confirm` is given what is wrong and what would be done; if it returns False, everything stays as it is
    (UsageError). `topology` is needed only if the databases were last used by a txstream that kept no
    identity there. Afterwards `txstream run` goes on exactly-once. If nothing is wrong, nothing is changed.

    Raises LeaderExistsError while a driver runs the topology, UnknownTopologyError, ServiceUnavailableError
    if not every database can be opened, ProgressMismatchError if the databases contradict each other by more
    than a crash explains, and FencedError.
    """
    settings = with_states_of((settings or Settings()).resolve(), topology)
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(open_zookeeper(settings))
        if is_tracked(zookeeper, topology_id):
            raise tracks_tuples(topology_id)
        databases = stack.enter_context(open_databases(settings, topology_id, for_writing=True))
        if not databases.opened:
            raise nowhere(settings, topology_id)
        refuse_missing(databases.missing)
        with elected(zookeeper, topology_id):
            return recover_in(
                topology_id,
                partial(zookeeper.progress, topology_id),
                databases.opened,
                topology=topology,
                confirm=confirm,
            )


def recover_in(
    topology_id: str,
    open_store: OpenStore,
    databases: Sequence[StateBackend],
    *,
    topology: Topology | None = None,
    confirm: Callable[[str], bool] = lambda _: True,
) -> Recovery:
    """Do what `recover` does, over services that are open. Nobody else may lead the topology meanwhile."""

    def look() -> tuple[Snapshot, Identity]:
        snapshot = take(
            topology_id,
            open_store,
            databases,
            codec_for=lambda one: codec_of(one, topology),
            depth=Depth.TABLES,
        )
        return snapshot, identity_from(snapshot, topology)

    snapshot, identity = look()
    codec = codec_of(identity, topology)
    problem = problem_of(snapshot, identity, codec)
    if problem is None and snapshot.progress is not None and snapshot.epoch is not None:
        current = snapshot.progress.current
        return Recovery(topology_id, None, identity.uuid, current, False, snapshot.epoch, ())
    expected = rebuilt_from(snapshot, identity.semantics, codec)
    if not confirm(f"{problem}\n{_sentence(expected)}"):
        raise UsageError(f"topology {topology_id!r} was left as it is")
    changes = []
    for one in snapshot.databases:
        if one.fence is None:
            _join_again(identity, one, snapshot)
            changes.append(f"made the fence of {one.url} again")
    store = open_store(codec)
    store.mend_epoch()
    states = [one.of(topology_id, identity.uuid, identity.semantics) for one in databases]
    epoch = take_over(store, states)
    prove_distinct(topology_id, states, epoch)
    # From here on no older driver can change what is read. Until here one may have let a state join.
    snapshot, identity = look()
    rebuilt = rebuilt_from(snapshot, identity.semantics, codec)
    store.replace(partial(rebuild, codec, identity, rebuilt.progress))
    changes.append(f"stored in ZooKeeper that txid {rebuilt.progress.current} commits next")
    return Recovery(
        topology_id,
        problem,
        identity.uuid,
        rebuilt.progress.current,
        rebuilt.again,
        epoch,
        tuple(one.url for one in snapshot.databases),
        tuple(changes),
    )


# --- whose it is -----------------------------------------------------------------------------------


def identity_from(snapshot: Snapshot, topology: Topology | None) -> Identity:
    """Return the identity that the databases or ZooKeeper keep, or that of the code if they keep none.

    Raises the errors of databases that could not be read, ProgressMismatchError if there are two topologies
    of this id, UsageError if the code is needed, and ServiceUnavailableError if a database is missing.
    """
    topology_id, databases, stored = snapshot.topology, snapshot.databases, snapshot.identity
    for error in (error for one in databases for error in one.errors):
        raise error
    uuids = {one.uuid: one.url for one in databases if one.uuid is not None}
    if len(uuids) != 1:
        listed = ", ".join(f"{uuid} in {url}" for uuid, url in uuids.items()) or "none at all"
        raise ProgressMismatchError(
            f"topology {topology_id!r} has the uuid {listed}: these are databases of different topologies; "
            f"give only those of one by --database and --state-database"
        )
    (uuid,) = uuids
    if stored is not None and stored.uuid != uuid:
        raise ProgressMismatchError(
            f"topology {topology_id!r} has uuid {stored.uuid} in ZooKeeper and {uuid} in {uuids[uuid]}: "
            f"ZooKeeper holds another topology of this id, which is not overwritten; point at the right one "
            f"of the two, or run `txstream delete {topology_id} --uuid {stored.uuid}` if it is not wanted"
        )
    known = [found for one in databases if (found := one.identity()) is not None and found.uuid == uuid]
    # They differ only in their tables. A state is named beside a fence once it has joined, and never leaves.
    # So a row that names fewer is an older copy, or was left by a join that was given up.
    if stored is not None:
        known.append(stored)
    if not known and topology is None:
        raise UsageError(
            f"the databases of topology {topology_id!r} were last run by a txstream that did not keep its "
            f"identity there; give the topology's code: txstream recover {topology_id} --from-ledger "
            f"--topology MODULE:FACTORY"
        )
    if topology is not None:
        known = known or [replace(identity_of(topology), uuid=uuid)]
    identity = max(known, key=lambda one: len(one.tables))
    # The decision would miss the ledger of a database that was not looked at.
    unseen = {*identity.tables}.difference(*(one.names for one in databases))
    if unseen and all(one.tables is not None for one in databases):
        raise ServiceUnavailableError(
            f"topology {topology_id!r} has the state table {', '.join(sorted(unseen))}, which is in none of "
            f"the databases that were looked at ({', '.join(one.url for one in databases)}); "
            f"give its database by --state-database, since all of them must take part"
        )
    return identity


# --- what is wrong ---------------------------------------------------------------------------------


def problem_of(snapshot: Snapshot, identity: Identity, codec: MetaCodec[Any]) -> str | None:
    """Return the problem that keeps `txstream run` from going on and that a rebuild would mend, or None."""
    topology_id = snapshot.topology
    for one in snapshot.databases:
        if one.fence is None:
            return f"database {one.url} has lost the fence of topology {topology_id!r}"
    for error in snapshot.errors:
        return f"what ZooKeeper has of topology {topology_id!r} cannot be read: {error}"
    if snapshot.progress is None:
        return f"topology {topology_id!r} is not in ZooKeeper"
    if identity.semantics is Semantics.NON_TRANSACTIONAL:
        return None
    ledgers = {one.url: one.last for one in snapshot.databases if not one.is_joining}
    try:
        decide(topology_id, identity.semantics, snapshot.progress, ledgers, codec)
    except ProgressMismatchError as error:
        return str(error)
    return None


# --- doing it --------------------------------------------------------------------------------------


def _join_again(identity: Identity, lost: DatabasePart, snapshot: Snapshot) -> None:
    """Make a deleted fence again, at attempt 0. It is raised above all others next."""
    kept = {"identity": identity.to_document(), "databases": sorted(one.url for one in snapshot.databases)}
    life = lost.database.of(snapshot.topology, identity.uuid, identity.semantics)
    life.join(first_run=True, identity=kept)


def _sentence(expected: Rebuilt) -> str:
    current = expected.progress.current
    if expected.again:
        return f"The ledgers say that txid {current} was committed in part: it will run again."
    return f"The ledgers say that txid {current - 1} was committed last: txid {current} will be next."


@contextlib.contextmanager
def elected(zookeeper: ZooKeeper, topology_id: str) -> Iterator[None]:
    """Lead the topology for the time of the block, so that no driver takes it over meanwhile. Waits for the
    end of a dead leader's session. Raises LeaderExistsError."""
    living = living_driver(zookeeper, topology_id)
    if living is not None:
        raise LeaderExistsError(f"topology {topology_id!r} is run by {living.driver}; stop that driver first")
    leadership = Leadership(zookeeper, topology_id)
    leadership.acquire(wait=zookeeper.leader(topology_id) is not None)
    try:
        yield
    finally:
        leadership.release()


@dataclass(frozen=True)
class Rebuilt:
    """Progress as the ledgers have it. `again` says that `progress.current` was committed in part."""

    progress: Progress
    again: bool


def rebuilt_from(snapshot: Snapshot, semantics: Semantics, codec: MetaCodec[Any]) -> Rebuilt:
    """Return the progress that follows from the ledgers, by the rules for a new leader.

    If all are at one txid, committed by one attempt, the next txid is current. If some are at C, committing
    or committed, and the others at C - 1, then C runs again everywhere, a transactional C with the plan that
    the ledgers have. Raises ProgressMismatchError for anything else.
    """
    rebuilt = _by_the_rules(snapshot, semantics, codec)
    _refuse_older_ledgers(snapshot)
    return rebuilt


def _refuse_older_ledgers(snapshot: Snapshot) -> None:
    """Refuse a ledger that is older than its tables. Rows of a txid that the ledger lacks would not be undone
    before that txid runs again."""
    for one in snapshot.databases:
        ends = 0 if one.last is None else int(one.last.txid)
        newest = max(one.tables or (), key=lambda table: table.newest_txid, default=None)
        if newest is not None and newest.newest_txid > ends:
            raise ProgressMismatchError(
                f"topology {snapshot.topology!r}: state table {newest.table.name!r} in {one.url} has a row "
                f"that carries txid {newest.newest_txid}, and its ledger ends with txid {ends}: it is older "
                f"than its tables, so it is not built upon; restore both of one moment"
            )


def _by_the_rules(snapshot: Snapshot, semantics: Semantics, codec: MetaCodec[Any]) -> Rebuilt:
    topology_id = snapshot.topology
    rows = {one.url: one for one in snapshot.databases if not one.is_joining}
    txids = {url: 0 if one.last is None else int(one.last.txid) for url, one in rows.items()}
    newest, oldest = max(txids.values()), min(txids.values())
    if semantics is Semantics.NON_TRANSACTIONAL:
        return _at_least_once(rows, oldest, codec)
    if newest - oldest > 1:
        listed = ", ".join(f"{url} is at txid {txid}" for url, txid in txids.items())
        raise ProgressMismatchError(
            f"the databases of topology {topology_id!r} are more than one batch apart: {listed}. One of them "
            f"was restored from an older copy: bring it up to date; no command can do that without its data"
        )
    at_newest = {url: one.last for url, one in rows.items() if one.last and one.last.txid == newest}
    everywhere = len(at_newest) == len(rows) and all(r.status == COMMITTED for r in at_newest.values())
    if newest == 0:
        return Rebuilt(Progress(FIRST_TXID, None, {}), again=False)
    if everywhere and len({row.attempt for row in at_newest.values()}) == 1:
        batch = _agreed(topology_id, at_newest, codec)
        return _after(newest, batch, semantics, snapshot.progress, codec)
    before: dict[str, BatchRecord] = {}
    for url, one in rows.items():
        row = one.before if one.last and one.last.txid == newest else one.last
        if row is not None:
            before[url] = row
    batches: dict[Txid, StoredBatch] = {}
    committed_by: AttemptId | None = None
    if newest > FIRST_TXID:
        previous = _agreed(topology_id, before, codec, txid=newest - 1)
        batches[Txid(newest - 1)], committed_by = previous, previous.attempt
    if semantics is Semantics.TRANSACTIONAL:
        batches[Txid(newest)] = StoredBatch(_same_metas(topology_id, at_newest, codec), None)
    return Rebuilt(Progress(Txid(newest), committed_by, batches), again=True)


def _after(
    txid: int, batch: StoredBatch, semantics: Semantics, stored: Progress | None, codec: MetaCodec[Any]
) -> Rebuilt:
    """Return the progress after `txid`, which is committed everywhere. The plans that ZooKeeper still has for
    later txids are kept: transactional ones may have had effects outside the databases already."""
    batches = {Txid(txid): batch}
    if semantics is Semantics.TRANSACTIONAL and stored is not None:
        known = stored.batches.get(Txid(txid))
        follows = known is not None and codec.encode(known.metas) == codec.encode(batch.metas)
        following = txid + 1
        while follows and (plan := stored.batches.get(Txid(following))) is not None:
            batches[Txid(following)] = StoredBatch(plan.metas, None)
            following += 1
    return Rebuilt(Progress(Txid(txid + 1), batch.attempt, batches), again=False)


def _agreed(
    topology_id: str,
    rows: Mapping[str, BatchRecord],
    codec: MetaCodec[Any],
    *,
    txid: int | None = None,
) -> StoredBatch:
    """Return the one batch that all these ledgers have committed."""
    committed = {url: row for url, row in rows.items() if row.status == COMMITTED}
    attempts = {row.attempt for row in committed.values()}
    if len(committed) != len(rows) or len(attempts) != 1:
        listed = ", ".join(
            f"{url} says {row.status} by attempt {shown_attempt(row.attempt)}" for url, row in rows.items()
        )
        number = txid if txid is not None else next(iter(rows.values())).txid
        raise ProgressMismatchError(
            f"the ledgers of topology {topology_id!r} do not agree who committed txid {number}: "
            f"{listed or 'none of them has it any more'}; restore the database that is wrong"
        )
    (attempt,) = attempts
    return StoredBatch(_same_metas(topology_id, committed, codec), attempt)


def _same_metas(topology_id: str, rows: Mapping[str, BatchRecord], codec: MetaCodec[Any]) -> BatchMetas[Any]:
    decoded = {url: codec.decode(row.metas, f"ledger of {url}, txid {row.txid}") for url, row in rows.items()}
    metas = next(iter(decoded.values()))
    if any(codec.encode(other) != codec.encode(metas) for other in decoded.values()):
        raise ProgressMismatchError(
            f"the ledgers of topology {topology_id!r} hold different ranges for one batch, in "
            f"{' and '.join(decoded)}; restore the database that is wrong"
        )
    return metas


def _at_least_once(rows: Mapping[str, DatabasePart], oldest: int, codec: MetaCodec[Any]) -> Rebuilt:
    """Return non-transactional progress: that of the database furthest behind, so that nothing is lost. What
    the others have beyond it is counted again."""
    if oldest == 0:
        return Rebuilt(Progress(FIRST_TXID, None, {}), again=False)
    url, row = next((u, one.last) for u, one in rows.items() if one.last and one.last.txid == oldest)
    metas = codec.decode(row.metas, f"ledger of {url}, txid {oldest}")
    batch = StoredBatch(metas, row.attempt)
    return Rebuilt(Progress(Txid(oldest + 1), row.attempt, {Txid(oldest): batch}), again=False)
