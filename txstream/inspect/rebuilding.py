"""`recover`: ZooKeeper's part of a topology, made again from what its databases hold.

Invariants. Every database of the topology takes part, or nothing is changed. Nothing that the result depends
on is read before an epoch above all others is claimed and every fence is raised to it; what is read before
that only says whether there is anything to mend. The result is what the protocol's rules for a new leader
make of the ledgers, and one write stores it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txstream.api.errors import (
    CorruptStateError,
    LeaderExistsError,
    ProgressMismatchError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.engine.start.identity import identity_of
from txstream.engine.start.recovery import decide, take_over
from txstream.inspect.databases import (
    databases_of,
    is_dead,
    nowhere,
    open_databases,
    open_zookeeper,
    with_states_of,
)
from txstream.inspect.derived import Rebuilt, rebuilt_from
from txstream.inspect.holdings import Own, is_newcomer, own_of
from txstream.inspect.plain import codec_of
from txstream.inspect.records import Recovery
from txstream.inspect.tables import refuse_missing
from txstream.metas import MetaCodec
from txstream.semantics import Semantics
from txstream.settings import Settings
from txstream.state import StateBackend, place_of
from txstream.zookeeper import Identity, Leadership, Progress

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.zookeeper import ProgressStore, ZooKeeper


def recover(
    topology_id: str,
    settings: Settings | None = None,
    *,
    topology: Topology | None = None,
    confirm: Callable[[str], bool] = lambda _: True,
) -> Recovery:
    """Rebuild a topology in ZooKeeper from its ledgers, when it was lost there or restored from an old copy.

    `confirm` is given what is wrong and what would be done; False leaves all as it is (UsageError).
    `topology` is needed only where the databases were last run by a txstream that kept no identity there.
    Afterwards `txstream run` goes on exactly. Nothing is changed when nothing is wrong.

    Raises LeaderExistsError while a driver runs it, UnknownTopologyError, ServiceUnavailableError when not
    every database can be opened, ProgressMismatchError when the databases contradict each other by more than
    a crash explains, FencedError.
    """
    settings = with_states_of((settings or Settings()).resolve(), topology)
    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id, for_writing=True) as databases,
    ):
        if not databases.opened:
            raise nowhere(settings, topology_id)
        refuse_missing(databases.missing)
        with elected(zookeeper, topology_id):
            return recover_in(
                topology_id,
                lambda codec: _store(zookeeper, topology_id, codec),
                databases.opened,
                topology=topology,
                confirm=confirm,
            )


def recover_in(
    topology_id: str,
    open_store: Callable[[MetaCodec[Any]], ProgressStore],
    databases: Sequence[StateBackend],
    *,
    topology: Topology | None = None,
    confirm: Callable[[str], bool] = lambda _: True,
) -> Recovery:
    """As `recover`, over what is open; nobody else may lead the topology meanwhile."""
    own = own_of(topology_id, databases)
    identity = identity_from(topology_id, own, open_store, topology)
    _refuse_unseen(topology_id, identity, own)
    codec = codec_of(identity, topology)
    store = open_store(codec)
    problem = problem_of(topology_id, identity, store, own, codec)
    if problem is None:
        progress = store.load()
        return Recovery(topology_id, None, identity.uuid, progress.current, False, store.read_epoch(), ())
    expected = rebuilt_from(topology_id, identity.semantics, own, stored_or_none(store), codec)
    _refuse_older_ledger(topology_id, own)
    if not confirm(f"{problem}\n{_sentence(expected)}"):
        raise UsageError(f"topology {topology_id!r} was left as it is")
    changes = []
    for one in own:
        if one.fence is None:
            _join_again(topology_id, identity, one, own)
            changes.append(f"made the fence of {one.database.url_for_people} again")
    store.mend_epoch()
    states = [database.of(topology_id, identity.uuid, identity.semantics) for database in databases]
    epoch = take_over(store, states)
    # From here on no older driver can change what is read; until here one may have let a state join.
    own = own_of(topology_id, databases)
    identity = identity_from(topology_id, own, open_store, topology)
    _refuse_unseen(topology_id, identity, own)
    rebuilt = rebuilt_from(topology_id, identity.semantics, own, stored_or_none(store), codec)
    _refuse_older_ledger(topology_id, own)
    store.rebuild(identity, rebuilt.progress)
    changes.append(f"stored in ZooKeeper that txid {rebuilt.progress.current} commits next")
    return Recovery(
        topology_id,
        problem,
        identity.uuid,
        rebuilt.progress.current,
        rebuilt.again,
        epoch,
        tuple(database.url_for_people for database in databases),
        tuple(changes),
    )


def _refuse_older_ledger(topology_id: str, own: Sequence[Own]) -> None:
    """Rows of a txid that the ledger lacks would not be undone before that txid runs again."""
    for one in own:
        ends = 0 if one.last is None else int(one.last.txid)
        if one.newest is not None and one.newest[1] > ends:
            table, txid = one.newest
            raise ProgressMismatchError(
                f"topology {topology_id!r}: state table {table!r} in {one.database.url_for_people} has a row "
                f"that carries txid {txid}, and its ledger ends with txid {ends}: it is older than its "
                f"tables, so it is not built upon; restore both of one moment"
            )


# --- whose it is -----------------------------------------------------------------------------------


def _refuse_unseen(topology_id: str, identity: Identity, own: Sequence[Own]) -> None:
    """A table that is in none of the databases is in one that was not looked at: what its ledger says would
    be left out of the decision."""
    unseen = set(identity.tables).difference(*(one.tables or () for one in own))
    if unseen and all(one.tables is not None for one in own):
        raise ServiceUnavailableError(
            f"topology {topology_id!r} has the state table {', '.join(sorted(unseen))}, which is in none of "
            f"the databases that were looked at ({', '.join(one.database.url_for_people for one in own)}); "
            f"give its database by --state-database, since all of them must take part"
        )


def identity_from(
    topology_id: str,
    own: Sequence[Own],
    open_store: Callable[[MetaCodec[Any]], ProgressStore],
    topology: Topology | None,
) -> Identity:
    """The identity that the databases keep; that of ZooKeeper or of the code where they keep none.

    Raises ProgressMismatchError when there are two lives of this id, UsageError when the code is needed.
    """
    uuids = {one.uuid: one.database.url_for_people for one in own if one.uuid is not None}
    if len(uuids) != 1:
        listed = ", ".join(f"{uuid} in {url}" for uuid, url in uuids.items()) or "none at all"
        raise ProgressMismatchError(
            f"topology {topology_id!r} has the uuid {listed}: these are databases of different topologies; "
            f"give only those of one by --database and --state-database"
        )
    (uuid,) = uuids
    stored = _stored_identity(open_store)
    if stored is not None and stored.uuid != uuid:
        raise ProgressMismatchError(
            f"topology {topology_id!r} has uuid {stored.uuid} in ZooKeeper and {uuid} in {uuids[uuid]}: "
            f"ZooKeeper holds another topology of this id, which is not overwritten; point at the right one "
            f"of the two, or run `txstream delete {topology_id} --uuid {stored.uuid}` if it is not wanted"
        )
    known = [found for one in own if (found := one.kept) is not None and found.uuid == uuid]
    # They differ in the tables only. A state is named beside a fence once it has joined, and never leaves
    # again; who names fewer is an older copy, or what a joining that was given up has left.
    if stored is not None:
        known.append(stored)
    if known:
        return max(known, key=_tables_of)
    if topology is None:
        raise UsageError(
            f"the databases of topology {topology_id!r} were last run by a txstream that did not keep its "
            f"identity there; give the topology's code: txstream recover {topology_id} --from-ledger "
            f"--topology MODULE:FACTORY"
        )
    return replace(identity_of(topology), uuid=uuid)


def _tables_of(identity: Identity) -> int:
    return len(identity.tables)


def _stored_identity(open_store: Callable[[MetaCodec[Any]], ProgressStore]) -> Identity | None:
    with contextlib.suppress(CorruptStateError):  # then it is what is to be mended
        return open_store(codec_of(None, None)).read_identity()
    return None


def stored_or_none(store: ProgressStore) -> Progress | None:
    """ZooKeeper's progress, where it can be read."""
    with contextlib.suppress(CorruptStateError):
        return store.load() if store.read_identity() is not None else None
    return None


# --- what is wrong ---------------------------------------------------------------------------------


def problem_of(
    topology_id: str,
    identity: Identity,
    store: ProgressStore,
    own: Sequence[Own],
    codec: MetaCodec[Any],
) -> str | None:
    """What keeps `txstream run` from going on, and a rebuild would mend; None when nothing does."""
    for one in own:
        if one.fence is None:
            return f"database {one.database.url_for_people} has lost the fence of topology {topology_id!r}"
    try:
        if store.read_identity() is None:
            return f"topology {topology_id!r} is not in ZooKeeper"
        progress = store.load()
        store.read_epoch()
    except CorruptStateError as error:
        return f"what ZooKeeper has of topology {topology_id!r} cannot be read: {error}"
    if identity.semantics is Semantics.NON_TRANSACTIONAL:
        return None
    ledgers = {one.database.url_for_people: one.last for one in own if not is_newcomer(one)}
    try:
        decide(topology_id, identity.semantics, progress, ledgers, codec)
    except ProgressMismatchError as error:
        return str(error)
    return None


# --- doing it --------------------------------------------------------------------------------------


def _join_again(topology_id: str, identity: Identity, lost: Own, own: Sequence[Own]) -> None:
    """A fence that was deleted, at attempt 0; it is raised above all others next."""
    listed = next((databases_of(one.fence) for one in own if one.fence and databases_of(one.fence)), [])
    urls = {place_of(url): url for url in [*listed, *(one.database.url_for_people for one in own)]}
    kept = {"identity": identity.to_document(), "databases": sorted(urls.values())}
    lost.database.of(topology_id, identity.uuid, identity.semantics).join(first_run=True, identity=kept)


def _sentence(expected: Rebuilt) -> str:
    current = expected.progress.current
    if expected.again:
        return f"The ledgers say that txid {current} was committed in part: it will run again."
    return f"The ledgers say that txid {current - 1} was committed last: txid {current} will be next."


def _store(zookeeper: ZooKeeper, topology_id: str, codec: MetaCodec[Any]) -> ProgressStore:
    from txstream.zookeeper import ZooKeeperProgress

    return ZooKeeperProgress(
        zookeeper, topology_id, codec, deadline_seconds=zookeeper.connect_timeout_seconds
    )


@contextlib.contextmanager
def elected(zookeeper: ZooKeeper, topology_id: str) -> Iterator[None]:
    """Lead the topology for the time of the block, so that no driver takes it up meanwhile. A dead leader's
    session is waited for. Raises LeaderExistsError."""
    leader = zookeeper.leader(topology_id)
    if leader is not None and not is_dead(leader):
        raise LeaderExistsError(f"topology {topology_id!r} is run by {leader}; stop that driver first")
    leadership = Leadership(zookeeper, topology_id)
    leadership.acquire(wait=leader is not None)
    try:
        yield
    finally:
        leadership.release()
