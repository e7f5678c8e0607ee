"""Whose topology is this: what must hold before a leader claims an epoch.

Invariant: an id stands for one topology in ZooKeeper and in every database. A first run that is refused
takes back what it made and nothing else, so that the corrected run is not refused for its sake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstream.api.errors import IdentityMismatchError, ProgressMismatchError, TxstreamError
from txstream.api.topology import Topology
from txstream.engine.commit import StateTarget
from txstream.state import FenceLockedError, StateBackend
from txstream.transaction import FIRST_TXID
from txstream.zookeeper import Identity, ProgressStore


def identity_of(topology: Topology) -> Identity:
    """What must stay the same under one topology id, with a new uuid."""
    source = topology.spout.source
    return Identity.new(
        topology.semantics,
        f"{type(source).__module__}.{type(source).__qualname__}",
        source.identity(),
        tuple(sorted(bolt.state.table for bolt, _ in topology.states)),
    )


def claim_identity(
    topology: Topology,
    store: ProgressStore,
    targets: Sequence[StateTarget],
    *,
    locked: Callable[[FenceLockedError], None],
) -> Identity:
    """The identity under which this topology runs: the stored one if it is the same topology, else a new one
    where there was none; fences and tables are there when it returns.

    `locked` is called while a frozen writer holds a database's lock, before each further try; it raises to
    end them. Raises IdentityMismatchError, ProgressMismatchError, StateTableError or SchemaRevisionError.
    """
    mine = identity_of(topology)
    stored = store.read_identity()
    if stored is not None:
        _refuse_other(topology.id, stored, mine)
    for target in targets:
        target.database.ensure_framework_tables()
        if stored is None:
            _refuse_orphan(topology.id, target.database)
    identity = store.create_identity(mine) if stored is None else stored
    _refuse_other(topology.id, identity, mine)
    first_run = store.load().current == FIRST_TXID
    # Each database knows the others: whoever is shown one of them can find them all.
    kept = {
        "identity": identity.to_document(),
        "databases": sorted(target.database.url_for_people for target in targets),
    }
    joined: list[StateBackend] = []
    try:
        for target in targets:
            _join(topology, target, identity.uuid, kept, first_run=first_run, locked=locked)
            joined.append(target.database)
    except TxstreamError:
        if stored is None:
            _undo(topology.id, store, identity, joined)
        raise
    return identity


def _join(
    topology: Topology,
    target: StateTarget,
    uuid: str,
    kept: Mapping[str, Any],
    *,
    first_run: bool,
    locked: Callable[[FenceLockedError], None],
) -> None:
    while True:
        try:
            return target.database.join(
                topology.id,
                uuid,
                target.tables,
                semantics=topology.semantics,
                first_run=first_run,
                identity=kept,
            )
        except FenceLockedError as error:
            locked(error)


def _undo(topology_id: str, store: ProgressStore, identity: Identity, joined: Sequence[StateBackend]) -> None:
    """What cannot be removed now is told by the next run. Only what carries the fresh uuid is dropped."""
    with contextlib.suppress(TxstreamError):
        for database in joined:
            database.delete(topology_id, drop_state=True, uuid=identity.uuid)
        store.delete_everything()


def _refuse_orphan(topology_id: str, database: StateBackend) -> None:
    """ZooKeeper knows nothing of this topology, a database does: one of the two was lost."""
    fence = database.read_fence(topology_id)
    if fence is not None:
        last = database.last_batch(topology_id)
        raise ProgressMismatchError(
            f"topology {topology_id!r} is not in ZooKeeper, but {database.url_for_people} holds its state up "
            f"to txid {0 if last is None else last.txid} (uuid {fence.uuid}). Was ZooKeeper lost, or is this "
            f"another ZooKeeper? Point at the right one, or start afresh with "
            f"`txstream delete {topology_id} --drop-state`"
        )


def _refuse_other(topology_id: str, stored: Identity, mine: Identity) -> None:
    differences = stored.differences(mine)
    if differences:
        raise IdentityMismatchError(
            f"topology {topology_id!r} was first run with other code: {'; '.join(differences)}. Run it under "
            f"another id (--id), or start afresh with `txstream delete {topology_id} --drop-state`"
        )
