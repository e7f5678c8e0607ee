"""Taking up a topology: what must hold before a leader's first batch. `Driver.start` has the whole order of
a start: election, source and Spark come before this.

Invariants.
- Before every fence is raised, nothing that a decision depends on is read (`recovery`) and no table is
  changed, so that no older leader can write at the same time.
- An id stands for one topology, in ZooKeeper and in every database. A refused first run removes what it made
  and nothing else, so that the corrected run is not refused because of it.
- A state that is added later is *joining* until ZooKeeper's identity names it: until then nothing has been
  committed to it, and every start begins its joining again. It is empty and counts from the current txid on.
  A database that is new to the topology gets the ledger row of the txid before the current one, so that the
  next leader's recovery finds all ledgers alike. The identity is replaced after all of this.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec, to_json
from txstream.core.coordinator import Coordinator
from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    TxstreamError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID, AttemptId, AttemptSequence, Epoch, Txid
from txstream.engine.commit.committer import StateTarget
from txstream.engine.loop.operator_changes import Steered, Steering
from txstream.engine.start.recovery import (
    Resume,
    one_database,
    patiently,
    prove_distinct,
    recover,
    take_over,
)
from txstream.state import BatchRecord, FenceLockedError, StateBackend, TopologyStates
from txstream.state.records import COMMITTED
from txstream.zookeeper import Identity, ProgressStore, Requests

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Takeover:
    """A topology that was taken up: its identity and epoch, where it resumes, how operators steer it."""

    identity: Identity
    epoch: Epoch
    resume: Resume
    steering: Steering
    coordinator: Coordinator[Any]


@dataclass(frozen=True)
class Unsettled:
    """A topology whose leader has raised the fences of all its databases to `fence`, and has read nothing of
    its progress yet. What is committed under `fence` is committed by this leader, before its first batch."""

    identity: Identity
    store: ProgressStore
    states: Sequence[TopologyStates]
    fence: AttemptId


Settler = Callable[[Unsettled], None]
"""Finishes what was begun in the ledgers, or does nothing. It is called again after a crash inside."""


def take_up(
    topology: Topology,
    store: ProgressStore,
    targets: Sequence[StateTarget],
    codec: MetaCodec[Any],
    *,
    locked: Callable[[FenceLockedError], None],
    last_txid: Txid | None = None,
    asked_before: Requests | None = None,
    steered: Callable[[Coordinator[Any]], Steered] = lambda coordinator: coordinator,
    settlers: Sequence[Settler] = (),
) -> Takeover:
    """Claim the id and an epoch, recover, and make the coordinator that goes on from there.

    `locked` is called while a frozen writer holds a database's lock; it raises to give up. `last_txid` is the
    last txid that the coordinator opens. `asked_before` is what operators had asked before this driver stood
    for election. `steered` returns what obeys operators, `settlers` finish what they had begun. Raises what
    its steps raise, `claim_identity` to `settle_changes`. Where two of the targets turn out to be one
    database only by their fences, what a first run made stays, for the corrected run.
    """
    claim = claim_identity(topology, store, targets, locked=locked)
    states = [target.of(topology, claim.identity.uuid) for target in targets]
    epoch = take_over(store, states, locked=locked)
    fence = prove_distinct(topology.id, states, epoch, locked=locked)
    claim = confirm(topology, claim, store)
    for settle in settlers:
        settle(Unsettled(claim.identity, store, states, fence))
    newcomers = newcomers_of(topology, claim, store, states)
    settled = [one for one in states if one not in newcomers]
    resume = recover(topology.id, topology.semantics, store, settled, codec)
    identity = settle_changes(topology, claim, store, states, newcomers, fence, resume, codec, locked=locked)
    coordinator: Coordinator[Any] = Coordinator(
        topology.semantics,
        current=resume.progress.current,
        stored={txid: batch.metas for txid, batch in resume.progress.batches.items()},
        next_attempt=AttemptSequence(epoch, after=fence).next,
        max_spout_pending=topology.max_spout_pending,
        replays=resume.replays,
        last_txid=last_txid,
    )
    steering = Steering(topology, steered(coordinator))
    steering.restore(store.read_requests(), asked_before)
    return Takeover(identity, epoch, resume, steering, coordinator)


# --- the identity ------------------------------------------------------------------------------------------


def identity_of(topology: Topology) -> Identity:
    """Return what must stay the same under one topology id, with a new uuid."""
    source, described = topology.source_identity()
    states = [*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states)]
    return Identity.new(
        topology.semantics,
        f"{type(source).__module__}.{type(source).__qualname__}",
        described,
        tuple(sorted(one.table for state in states for one in (state, state.changes) if one is not None)),
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
    """Raise what `claim_identity` would, as far as reading shows: a run that cannot be is refused before it
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
    in it. A store that does not know is found out by its fence, once it has one (`prove_distinct`)."""
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
        # If two tables have one name, it is not known which of them is new.
        same_name = (Counter(mine.tables) - Counter(stored.tables)).keys() & set(stored.tables)
        if not removed and not same_name:
            comparable = replace(mine, tables=stored.tables)
    differences = stored.differences(comparable)
    if differences:
        drop = "" if stored.is_tracked else " --drop-state"
        raise IdentityMismatchError(
            f"topology {topology_id!r} was first run with other code: {'; '.join(differences)}. Run it under "
            f"another id (--id), or start afresh with `txstream delete {topology_id}{drop}`"
        )


# --- changes to the states since the last run ---------------------------------------------------------------


def newcomers_of(
    topology: Topology, claim: Claim, store: ProgressStore, states: Sequence[TopologyStates]
) -> list[TopologyStates]:
    """Return the databases that hold only joining states and have no ledger up to the current txid.

    Their ledger is empty, or left by a joining that was broken off and given up. Every fence must be raised.
    """
    if not claim.joining:
        return []
    progress = store.load()
    if topology.semantics is Semantics.NON_TRANSACTIONAL or progress.current == FIRST_TXID:
        return []
    found = []
    for one in states:
        names = {spec.state.table for spec in one.life.tables}
        if not names or not names <= claim.joining:
            continue
        last = one.last_batch()
        goes_on = last is not None and (
            last.txid >= progress.current
            or (last.txid == progress.current - 1 and last.attempt == progress.committed_by)
        )
        if not goes_on:
            found.append(one)
    return found


def settle_changes(
    topology: Topology,
    claim: Claim,
    store: ProgressStore,
    states: Sequence[TopologyStates],
    newcomers: Sequence[TopologyStates],
    fence: AttemptId,
    resume: Resume,
    codec: MetaCodec[Any],
    *,
    locked: Callable[[FenceLockedError], None],
) -> Identity:
    """Migrate tables that grew, let added states join, and return the identity from now on.

    Every fence is at `fence`. Raises StateTableError for a change that must wait until a partly committed
    txid is done.
    """
    unfinished = min(resume.replays, default=None)
    for one in states:
        for sentence in patiently(partial(one.migrate, fence, unfinished=unfinished), locked):
            log.info("topology %s: %s", topology.id, sentence)
    if newcomers:
        last = _last_batch(topology, claim.identity.uuid, states, resume, codec)
        for newcomer in newcomers:
            patiently(partial(newcomer.begin_ledger, fence, last), locked)
    identity = claim.joined if claim.joining else claim.identity
    if claim.joining:
        store.replace_identity(identity)
    # Before the first batch: a rebuild of ZooKeeper from these databases must know every state that counts.
    patiently(partial(keep_identity, identity, states, fence), locked)
    for name in sorted(claim.joining):
        log.info("topology %s: state %s counts from txid %d on", topology.id, name, resume.progress.current)
    return identity


def _last_batch(
    topology: Topology, uuid: str, states: Sequence[TopologyStates], resume: Resume, codec: MetaCodec[Any]
) -> BatchRecord:
    """Return the ledger row of the txid before the current one: what ZooKeeper knows about it and, for
    display, what another database knows."""
    progress = resume.progress
    txid = Txid(progress.current - 1)
    attempt, metas = progress.committed_by, codec.encode(progress.batches[txid].metas)
    if attempt is None:
        raise CorruptStateError(
            f"topology {topology.id!r}: ZooKeeper does not say which attempt committed txid {txid}"
        )
    for one in states:
        found = one.batch(txid)
        if found is not None and found.attempt == attempt:
            return replace(found, metas=metas, keys=0)
    now = datetime.now(UTC)
    return BatchRecord(
        topology.id, uuid, txid, attempt, topology.semantics, COMMITTED, metas, 0, 0, now, now, now, None
    )  # fmt: skip
