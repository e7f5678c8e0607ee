"""Whether an id belongs to this topology: what must hold before a leader claims an epoch.

Invariants. An id stands for one topology, in ZooKeeper and in every database. A refused first run removes
what it made and nothing else, so that the corrected run is not refused because of it. A state that is added
later is *joining* until ZooKeeper's identity names it: until then nothing has been committed to it, and every
start begins its joining again (`joining`).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from txstream.api.errors import CorruptStateError, IdentityMismatchError, ProgressMismatchError, TxstreamError
from txstream.api.topology import Topology
from txstream.batch_metas import to_json
from txstream.engine.commit.committer import StateTarget
from txstream.engine.start.recovery import one_database, patiently
from txstream.state import FenceLockedError, StateBackend, TopologyStates
from txstream.transaction import FIRST_TXID, AttemptId
from txstream.zookeeper import Identity, ProgressStore


def identity_of(topology: Topology) -> Identity:
    """Return what must stay the same under one topology id, with a new uuid."""
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
    """The identity that a topology runs under, as ZooKeeper has it, and the state tables of its code."""

    identity: Identity
    tables: tuple[str, ...]

    @property
    def joining(self) -> frozenset[str]:
        """The state tables that the identity does not name yet."""
        return frozenset(self.tables) - frozenset(self.identity.tables)

    @property
    def joined(self) -> Identity:
        """The identity once those tables have joined."""
        return replace(self.identity, tables=self.tables)


def check_identity(topology: Topology, store: ProgressStore, targets: Sequence[StateTarget]) -> None:
    """Raise what `claim_identity` would, as far as reading tells: a run that cannot be is refused before it
    starts Spark. Writes nothing, so `claim_identity` asks it all again."""
    mine, stored = identity_of(topology), store.read_identity()
    if stored is not None:
        _refuse_other(topology.id, stored, mine)
    claim = Claim(stored or mine, mine.tables)
    first_run = stored is None or store.load().current == FIRST_TXID
    for target in targets:
        if stored is None:
            _refuse_orphan(topology.id, store, target.database)
        for states, first_of_these in _parts(topology, claim, target, first_run):
            states.check_join(first_run=first_of_these)


def _parts(
    topology: Topology, claim: Claim, target: StateTarget, first_run: bool
) -> Iterator[tuple[TopologyStates, bool]]:
    """Yield a database's tables that the identity names and those that are joining; whether each is new."""
    known = tuple(spec for spec in target.tables if spec.state.table not in claim.joining)
    new = tuple(spec for spec in target.tables if spec.state.table in claim.joining)
    for tables, first_of_these in ((known, first_run), (new, True)):
        if tables or (tables is known and not new):
            yield (
                target.database.of(topology.id, claim.identity.uuid, topology.semantics, tables),
                first_of_these,
            )


def claim_identity(
    topology: Topology,
    store: ProgressStore,
    targets: Sequence[StateTarget],
    *,
    locked: Callable[[FenceLockedError], None],
) -> Claim:
    """Return the identity under which this topology runs, with its fences and tables in place.

    It is the stored identity if that is the same topology (states may have been added since), or a new one if
    there was none. While a frozen writer holds a database's lock, `locked` is called before each further try;
    it raises to give up. Raises IdentityMismatchError, ProgressMismatchError, StateTableError,
    SchemaRevisionError, or TopologyError where two targets say that they are one place.
    """
    mine = identity_of(topology)
    stored = compared = store.read_identity()
    if compared is not None:
        _refuse_other(topology.id, compared, mine)
    places: dict[str | None, str] = {}
    for target in targets:
        _refuse_known_place(topology.id, target.database, places)
        target.database.ensure_framework_tables()
        if len(targets) > 1:  # by now there is something that can be asked which place it is
            places[target.database.place()] = target.database.display_url
        if stored is None:
            stored = _refuse_orphan(topology.id, store, target.database)
    identity = store.create_identity(mine) if stored is None else stored
    if identity is not compared:
        _refuse_other(topology.id, identity, mine)
    claim = Claim(identity, mine.tables)
    first_run = store.load().current == FIRST_TXID
    kept = kept_of(identity, [target.database for target in targets])
    joined: list[StateBackend] = []
    try:
        for target in targets:
            database = target.database
            # Only a leader replaces an identity that is already kept: a newer driver may lead by now.
            fence = database.read_fence(topology.id)
            first = None if fence is not None and fence.identity else kept
            for states, first_of_these in _parts(topology, claim, target, first_run):
                patiently(partial(states.join, first_run=first_of_these, identity=first), locked)
            joined.append(database)
    except TxstreamError:
        if identity.uuid == mine.uuid:
            # MySQL commits each table that it creates, so the database that failed may hold some too.
            _undo(topology.id, store, identity, [*joined, target.database])
        raise
    return claim


def _refuse_known_place(topology_id: str, database: StateBackend, places: Mapping[str | None, str]) -> None:
    """Raise TopologyError if a database says that it is one of those before it, so that nothing is made twice
    in it. A store that cannot tell is found out by its fence, once it has one (`prove_distinct`)."""
    place = database.place() if places else None
    if place is not None and place in places:
        raise one_database(topology_id, places[place], database.display_url)


def kept_of(identity: Identity, databases: Iterable[StateBackend | TopologyStates]) -> dict[str, Any]:
    """Return what is kept beside each fence. It names all databases, so that one of them leads to all."""
    return {
        "identity": identity.to_document(),
        "databases": sorted(database.display_url for database in databases),
    }


def keep_identity(identity: Identity, states: Sequence[TopologyStates], attempt: AttemptId) -> None:
    """Store the identity that this leader runs under in every database that keeps another one or none."""
    kept = kept_of(identity, states)
    document = json.loads(to_json(kept))
    for one in states:
        fence = one.read_fence()
        if fence is None or fence.identity != document:
            one.keep_identity(attempt, kept)


def confirm(topology: Topology, claim: Claim, store: ProgressStore) -> Claim:
    """Return the final claim. Called after the epoch was claimed, so that nobody else can change it.

    Since `claim_identity`, another driver may have led with other code; states that joined under it count.
    Raises IdentityMismatchError if this code lacks one of them, CorruptStateError if the topology is gone.
    """
    stored = store.read_identity()
    if stored is None or stored.uuid != claim.identity.uuid:
        raise CorruptStateError(
            f"topology {topology.id!r} was deleted, or ZooKeeper lost it, while this driver started"
        )
    if stored != claim.identity:
        _refuse_other(topology.id, stored, claim.joined)
    return replace(claim, identity=stored)


def _undo(
    topology_id: str, store: ProgressStore, identity: Identity, databases: Sequence[StateBackend]
) -> None:
    """Remove what a refused first run made: only what carries its fresh uuid, and nothing that another driver
    has taken up meanwhile. The next run reports what cannot be removed now."""
    with contextlib.suppress(TxstreamError):
        for database in databases:
            database.delete(topology_id, drop_state=True, uuid=identity.uuid, attempt=AttemptId(0))
        store.delete_everything(unless_led=True)


def _refuse_orphan(topology_id: str, store: ProgressStore, database: StateBackend) -> Identity | None:
    """Raise if a database knows this topology and ZooKeeper does not: one of the two was lost. Return the
    identity if another driver has made both meanwhile, None if there is neither."""
    fence = database.read_fence(topology_id)
    if fence is not None and (stored := store.read_identity()) is not None:
        return stored
    if fence is not None:
        last = database.last_batch(topology_id)
        raise ProgressMismatchError(
            f"topology {topology_id!r} is not in ZooKeeper, but {database.display_url} holds its state up "
            f"to txid {0 if last is None else last.txid} (uuid {fence.uuid}). If this is another ZooKeeper, "
            f"point at the right one; if it was lost, `txstream recover {topology_id} --from-ledger` makes "
            f"it again; `txstream delete {topology_id} --uuid {fence.uuid} --drop-state` starts afresh"
        )
    return None


def _refuse_other(topology_id: str, stored: Identity, mine: Identity) -> None:
    comparable = mine
    if mine.tables != stored.tables:
        removed = Counter(stored.tables) - Counter(mine.tables)
        # If two tables have one name, nobody can tell which of them is new.
        same_name = (Counter(mine.tables) - Counter(stored.tables)).keys() & set(stored.tables)
        if not removed and not same_name:
            comparable = replace(mine, tables=stored.tables)
    differences = stored.differences(comparable)
    if differences:
        raise IdentityMismatchError(
            f"topology {topology_id!r} was first run with other code: {'; '.join(differences)}. Run it under "
            f"another id (--id), or start afresh with `txstream delete {topology_id} --drop-state`"
        )
