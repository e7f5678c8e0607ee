"""Whose topology is this: what must hold before a leader claims an epoch.

Invariant: an id stands for one topology in ZooKeeper and in every database. A first run that is refused
takes back what it made and nothing else, so that the corrected run is not refused for its sake. A state that
is added later is *joining* until ZooKeeper's identity names it: until then nothing has been committed to it,
and every start takes its joining up again (`joining`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from txstream.api.errors import IdentityMismatchError, ProgressMismatchError, TxstreamError
from txstream.api.topology import Topology
from txstream.engine.commit import StateTarget
from txstream.state import FenceLockedError, StateBackend, TableSpec
from txstream.transaction import FIRST_TXID
from txstream.zookeeper import Identity, ProgressStore


def identity_of(topology: Topology) -> Identity:
    """What must stay the same under one topology id, with a new uuid."""
    source = topology.spout.source
    return Identity.new(
        topology.semantics,
        f"{type(source).__module__}.{type(source).__qualname__}",
        source.identity(),
        tuple(
            sorted(
                [
                    *(bolt.state.table for bolt, _ in topology.states),
                    *(use.state.table for use in topology.map_states),
                ]
            )
        ),
    )


@dataclass(frozen=True)
class Claim:
    """Under which identity a topology runs, as ZooKeeper has it, and the state tables of now."""

    identity: Identity
    tables: tuple[str, ...]

    @property
    def joining(self) -> frozenset[str]:
        """The state tables that the identity does not name yet."""
        return frozenset(self.tables) - frozenset(self.identity.tables)

    @property
    def joined(self) -> Identity:
        """The identity once they have joined."""
        return replace(self.identity, tables=self.tables)


def claim_identity(
    topology: Topology,
    store: ProgressStore,
    targets: Sequence[StateTarget],
    *,
    locked: Callable[[FenceLockedError], None],
) -> Claim:
    """The identity under which this topology runs: the stored one if it is the same topology, else a new one
    where there was none; fences and tables are there when it returns. States may have been added since.

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
    claim = Claim(identity, mine.tables)
    first_run = store.load().current == FIRST_TXID
    kept = kept_of(identity, targets)
    joined: list[StateBackend] = []
    try:
        for target in targets:
            known = tuple(spec for spec in target.tables if spec.state.table not in claim.joining)
            new = tuple(spec for spec in target.tables if spec.state.table in claim.joining)
            if known or not new:
                join(topology, target.database, known, kept, first_run=first_run, locked=locked)
            if new:
                join(topology, target.database, new, kept, first_run=True, locked=locked)
            joined.append(target.database)
    except TxstreamError:
        if stored is None:
            _undo(topology.id, store, identity, joined)
            # MySQL commits each table that it creates; elsewhere nothing is left of a join that failed.
            with contextlib.suppress(TxstreamError):
                target.database.delete(topology.id, drop_state=True, uuid=identity.uuid)
        raise
    return claim


def kept_of(identity: Identity, targets: Sequence[StateTarget]) -> dict[str, Any]:
    """What is kept beside each fence. Each database knows the others: whoever is shown one of them can find
    them all."""
    return {
        "identity": identity.to_document(),
        "databases": sorted(target.database.url_for_people for target in targets),
    }


def join(
    topology: Topology,
    database: StateBackend,
    tables: Sequence[TableSpec],
    kept: Mapping[str, Any],
    *,
    first_run: bool,
    locked: Callable[[FenceLockedError], None],
) -> None:
    """Have a database join with these tables of this topology."""
    while True:
        try:
            return database.join(
                topology.id,
                kept["identity"]["uuid"],
                tables,
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
            f"to txid {0 if last is None else last.txid} (uuid {fence.uuid}). If this is another ZooKeeper, "
            f"point at the right one; if it was lost, `txstream recover {topology_id} --from-ledger` makes "
            f"it again; `txstream delete {topology_id} --drop-state` starts afresh"
        )


def _refuse_other(topology_id: str, stored: Identity, mine: Identity) -> None:
    removed = Counter(stored.tables) - Counter(mine.tables)
    # Of two tables with one name nobody could tell which is the new one.
    same_name = sorted((Counter(mine.tables) - Counter(stored.tables)).keys() & set(stored.tables))
    comparable = mine if removed or same_name else replace(mine, tables=stored.tables)
    differences = stored.differences(comparable)
    if differences:
        raise IdentityMismatchError(
            f"topology {topology_id!r} was first run with other code: {'; '.join(differences)}. Run it under "
            f"another id (--id), or start afresh with `txstream delete {topology_id} --drop-state`"
        )
